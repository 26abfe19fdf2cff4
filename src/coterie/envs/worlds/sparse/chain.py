"""A chain of rooms as lookup tables: squares, move targets and shortest paths.

Rooms of `size` x `size` squares are arranged in lines of `columns`, separated by walls one square thick. The first line
is traversed from left to right, the next one above it from right to left, and so on. Each room has one door to the
next, alternating between top and bottom (to the line above: between right and left), so the path winds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

MOVES: tuple[tuple[int, int], ...] = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Displacement (x, y) of actions 0 to 4: stay, left, right, down, up."""
NAMES = ("stay", "left", "right", "down", "up")


@dataclass(frozen=True)
class Chain:
    """Lookup tables of a chain of rooms. Square (x, y) has the index y * width + x, with y pointing up.

    Attributes:
        floor: [C] bool, True where there is no wall.
        neighbor: [C, 5] int64, target of each move; the square itself at a wall.
        doors: [rooms - 1] int64, square of each door.
        toward: [C, C] int64, first move of a shortest path from the first square to the second with all doors open.
        room: [C] int64, room of each square; a door belongs to the room before it.
        plates: [rooms - 1, 2] int64, two corners of every room but the last.
        goal: [] int64, corner of the last room farthest from its door.
    """

    rooms: int
    size: int
    columns: int
    floor: Tensor
    neighbor: Tensor
    doors: Tensor
    toward: Tensor
    room: Tensor
    plates: Tensor
    goal: Tensor

    @property
    def width(self) -> int:
        return min(self.rooms, self.columns) * (self.size + 1) - 1

    @property
    def height(self) -> int:
        return -(-self.rooms // self.columns) * (self.size + 1) - 1

    def square(self, room: int, x: int, y: int) -> int:
        """Square at (x, y) of a room."""
        left, low = corner(room, self.size, self.columns)
        return (low + y) * self.width + left + x


def corner(room: int, size: int, columns: int) -> tuple[int, int]:
    """(x, y) of the lower left square of a room."""
    line, along = divmod(room, columns)
    return (along if line % 2 == 0 else columns - 1 - along) * (size + 1), line * (size + 1)


def _door(room: int, size: int, columns: int) -> tuple[int, int]:
    """(x, y) of the door from a room to the next."""
    (left, low), (beyond, above) = corner(room, size, columns), corner(room + 1, size, columns)
    aside = size - 1 if room % 2 == 0 else 0
    if above > low:
        return left + aside, above - 1
    return (beyond - 1 if beyond > left else left - 1), low + aside


@functools.cache
def chain(rooms: int, size: int, columns: int, device: torch.device) -> Chain:
    """Builds the tables on a device."""
    width, height = min(rooms, columns) * (size + 1) - 1, -(-rooms // columns) * (size + 1) - 1
    squares = torch.arange(width * height)
    x, y = squares % width, squares // width
    line, along = y // (size + 1), x // (size + 1)
    room = line * columns + torch.where(line % 2 == 0, along, columns - 1 - along)
    doors = torch.tensor([(dy * width + dx) for dx, dy in (_door(k, size, columns) for k in range(rooms - 1))])
    floor = (x % (size + 1) != size) & (y % (size + 1) != size) & (room < rooms)
    floor[doors], room[doors] = True, torch.arange(rooms - 1)
    steps = []
    for dx, dy in MOVES:
        to = (y + dy).clamp(0, height - 1) * width + (x + dx).clamp(0, width - 1)
        steps.append(torch.where(floor[to], to, squares))
    neighbor = torch.stack(steps, 1)
    distance = _distances(neighbor, floor)
    toward = distance[neighbor].argmin(1)  # [C, 5, C]: remaining distance after each move; ties go to the first move
    plates = []
    for left, low in (corner(k, size, columns) for k in range(rooms - 1)):  # upper left and lower right
        plates.append([(low + size - 1) * width + left, low * width + left + size - 1])
    inside = torch.where(room == rooms - 1, distance[doors[-1]], -1).masked_fill(~floor, -1)
    tables = (floor, neighbor, doors, toward, room, torch.tensor(plates), inside.argmax())
    return Chain(rooms, size, columns, *(table.to(device) for table in tables))


def _distances(neighbor: Tensor, floor: Tensor) -> Tensor:
    """Path lengths between all squares [C, C]; a large number if one of them is a wall."""
    count = len(neighbor)
    far = torch.full((count, count), 10 * count)
    far[floor, floor] = 0
    while True:
        nearer = torch.minimum(far, far[neighbor].amin(1) + 1)
        if torch.equal(nearer, far):
            return far
        far = nearer

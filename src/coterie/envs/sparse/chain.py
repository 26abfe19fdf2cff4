"""A chain of rooms as tables: squares, where every move leads, and the shortest ways.

Rooms of `size` x `size` squares stand in lines of `columns`, a wall one square thick between neighbours. The first line
is walked from left to right, the next one, above it, from right to left, and so on. Each room has one door to the next,
near the top and near the bottom in turn (to a line above: near the right and near the left), so that the way winds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

MOVES: tuple[tuple[int, int], ...] = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""What the choices 0 to 4 add to (x, y): stay, left, right, down, up."""
NAMES = ("stay", "left", "right", "down", "up")


@dataclass(frozen=True)
class Chain:
    """`rooms` rooms of `size` x `size` in lines of `columns`; square (x, y) has the number y * width + x, y upwards.

    floor: [C] bool, no wall; neighbour: [C, 5] int64, where every move leads, the square itself at a wall; doors:
    [rooms - 1] int64, the square of each door; toward: [C, C] int64, the first move of a shortest way from the first
    square to the second, all doors open; room: [C] int64, which room a square belongs to, a door to the one before it;
    plates: [rooms - 1, 2] int64, two corners of every room but the last; goal: [] int64, the last room's corner that is
    furthest from its door.
    """

    rooms: int
    size: int
    columns: int
    floor: Tensor
    neighbour: Tensor
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
        """The square at (x, y) of a room."""
        left, low = corner(room, self.size, self.columns)
        return (low + y) * self.width + left + x


def corner(room: int, size: int, columns: int) -> tuple[int, int]:
    """(x, y) of a room's lower left square."""
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
    """The rooms with their tables on a device."""
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
    neighbour = torch.stack(steps, 1)
    distance = _distances(neighbour, floor)
    toward = distance[neighbour].argmin(1)  # [C, 5, C]: how far each move leaves one; the first of the best
    plates = []
    for left, low in (corner(k, size, columns) for k in range(rooms - 1)):  # upper left and lower right
        plates.append([(low + size - 1) * width + left, low * width + left + size - 1])
    inside = torch.where(room == rooms - 1, distance[doors[-1]], -1).masked_fill(~floor, -1)
    tables = (floor, neighbour, doors, toward, room, torch.tensor(plates), inside.argmax())
    return Chain(rooms, size, columns, *(table.to(device) for table in tables))


def _distances(neighbour: Tensor, floor: Tensor) -> Tensor:
    """Steps between all squares [C, C]; very many where a wall is one of them."""
    count = len(neighbour)
    far = torch.full((count, count), 10 * count)
    far[floor, floor] = 0
    while True:
        nearer = torch.minimum(far, far[neighbour].amin(1) + 1)
        if torch.equal(nearer, far):
            return far
        far = nearer

"""A chain of rooms as tables: squares, where every move leads, and the shortest ways.

Rooms of `size` x `size` squares stand side by side from left to right, a wall one square thick between neighbours. Each
wall has one door, the first at the top, the next at the bottom, and so on, so that the way winds.
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
    """`rooms` rooms of `size` x `size`; square (x, y) has the number y * width + x, y grows upwards.

    floor: [C] bool, no wall; neighbour: [C, 5] int64, where every move leads, the square itself at a wall; doors:
    [rooms - 1] int64, the square of each door; toward: [C, C] int64, the first move of a shortest way from the first
    square to the second, all doors open; room: [C] int64, which room a square belongs to, a door to the one before it;
    plates: [rooms - 1, 2] int64, two corners of every room but the last; goal: [] int64, the last room's corner that is
    furthest from its door.
    """

    rooms: int
    size: int
    floor: Tensor
    neighbour: Tensor
    doors: Tensor
    toward: Tensor
    room: Tensor
    plates: Tensor
    goal: Tensor

    @property
    def width(self) -> int:
        return self.rooms * (self.size + 1) - 1

    @property
    def height(self) -> int:
        return self.size

    def square(self, room: int, x: int, y: int) -> int:
        """The square at (x, y) of a room."""
        return y * self.width + room * (self.size + 1) + x


@functools.cache
def chain(rooms: int, size: int, device: torch.device) -> Chain:
    """The rooms with their tables on a device."""
    width = rooms * (size + 1) - 1
    squares = torch.arange(width * size)
    x, y = squares % width, squares // width
    doors = torch.tensor(
        [(size - 1 if k % 2 == 0 else 0) * width + k * (size + 1) + size for k in range(rooms - 1)], dtype=torch.int64
    )
    floor = (x % (size + 1) != size).index_fill(0, doors, True)
    steps = []
    for dx, dy in MOVES:
        to = (y + dy).clamp(0, size - 1) * width + (x + dx).clamp(0, width - 1)
        steps.append(torch.where(floor[to], to, squares))
    neighbour = torch.stack(steps, 1)
    distance = _distances(neighbour, floor)
    toward = distance[neighbour].argmin(1)  # [C, 5, C]: how far each move leaves one; the first of the best
    room = torch.div(x, size + 1, rounding_mode="floor")
    left = torch.arange(rooms - 1) * (size + 1)
    plates = torch.stack((left + (size - 1) * width, left + size - 1), 1)  # from the upper left to the lower right
    goal = torch.tensor((0 if rooms % 2 == 0 else size - 1) * width + width - 1)
    tables = (floor, neighbour, doors, toward, room, plates, goal)
    return Chain(rooms, size, *(table.to(device) for table in tables))


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

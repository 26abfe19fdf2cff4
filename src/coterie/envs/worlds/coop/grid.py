"""A grid room as lookup tables: move targets, legal moves and shortest paths."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

MOVES: tuple[tuple[int, int], ...] = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Displacement (x, y) of actions 0 to 4: stay, left, right, down, up."""
STAY, LEFT, RIGHT, DOWN, UP = range(5)
NAMES = ("stay", "left", "right", "down", "up")


@dataclass(frozen=True)
class Grid:
    """Lookup tables of a `width` x `height` room. Square (x, y) has the index y * width + x, with y pointing up.

    Attributes:
        neighbor: [C * 5] int64, target of a move at index square * 5 + move; the square itself at a wall.
        open: [C, 5] bool, True for legal moves (staying is always legal).
        place: [C, 2], center of the square in -1 .. 1 on both axes.
        distance: [C, C] int64, number of steps from the first square to the second.
        toward: [C * C] int64, first move of a shortest path at index from * C + to.
    """

    width: int
    height: int
    neighbor: Tensor
    open: Tensor
    place: Tensor
    distance: Tensor
    toward: Tensor

    @property
    def squares(self) -> int:
        """Number of squares C."""
        return self.width * self.height

    def square(self, x: int, y: int) -> int:
        return y * self.width + x

    def moved(self, square: Tensor, move: Tensor) -> Tensor:
        """Target squares of the moves; both int64 of equal shape."""
        return self.neighbor[square * len(MOVES) + move]

    def way(self, start: Tensor, goal: Tensor) -> Tensor:
        """First move of a shortest path from `start` to `goal`; both int64 of equal shape."""
        return self.toward[start * self.squares + goal]


@functools.cache
def grid(width: int, height: int, device: torch.device) -> Grid:
    """Builds the tables of a room on a device."""
    x, y = torch.arange(width).repeat(height), torch.arange(height).repeat_interleave(width)
    neighbor = torch.stack(
        [(y + dy).clamp(0, height - 1) * width + (x + dx).clamp(0, width - 1) for dx, dy in MOVES], 1
    )
    squares = torch.arange(width * height)
    opened = neighbor != squares[:, None]
    opened[:, STAY] = True
    distance = (x[:, None] - x).abs() + (y[:, None] - y).abs()
    toward = distance[neighbor].argmin(1)  # [C, 5, C]: remaining distance after each move; ties go to the first move
    half = torch.tensor([max(width - 1, 1), max(height - 1, 1)]) / 2
    place = torch.stack((x, y), 1) / half - 1
    tables = (neighbor.flatten(), opened, place, distance, toward.flatten())
    return Grid(width, height, *(table.to(device) for table in tables))

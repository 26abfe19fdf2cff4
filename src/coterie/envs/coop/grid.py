"""A room of squares as tables: where every move leads, which ones are open, and the shortest ways."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

MOVES: tuple[tuple[int, int], ...] = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""What the choices 0 to 4 add to (x, y): stay, left, right, down, up."""
STAY, LEFT, RIGHT, DOWN, UP = range(5)
NAMES = ("stay", "left", "right", "down", "up")


@dataclass(frozen=True)
class Grid:
    """A room of `width` x `height` squares; square (x, y) has the number y * width + x, y grows upwards.

    neighbour: [C * 5] int64, at square * 5 + move where the move leads, the square itself at a wall; open: [C, 5] bool,
    the move leads somewhere (staying always does); place: [C, 2] the square's middle, both axes in -1 .. 1; distance:
    [C, C] int64, steps from the first square to the second; toward: [C * C] int64, at from * C + to the first move of a
    shortest way, staying where there is none to go.
    """

    width: int
    height: int
    neighbour: Tensor
    open: Tensor
    place: Tensor
    distance: Tensor
    toward: Tensor

    @property
    def squares(self) -> int:
        """C."""
        return self.width * self.height

    def square(self, x: int, y: int) -> int:
        return y * self.width + x

    def moved(self, square: Tensor, move: Tensor) -> Tensor:
        """Where the moves lead; both int64 of one shape."""
        return self.neighbour[square * len(MOVES) + move]

    def way(self, start: Tensor, goal: Tensor) -> Tensor:
        """First move of a shortest way from `start` to `goal`; both int64 of one shape."""
        return self.toward[start * self.squares + goal]


@functools.cache
def grid(width: int, height: int, device: torch.device) -> Grid:
    """The room of that size with its tables on a device."""
    x, y = torch.arange(width).repeat(height), torch.arange(height).repeat_interleave(width)
    neighbour = torch.stack(
        [(y + dy).clamp(0, height - 1) * width + (x + dx).clamp(0, width - 1) for dx, dy in MOVES], 1
    )
    squares = torch.arange(width * height)
    opened = neighbour != squares[:, None]
    opened[:, STAY] = True
    distance = (x[:, None] - x).abs() + (y[:, None] - y).abs()
    toward = distance[neighbour].argmin(1)  # [C, 5, C]: how far each move leaves one; the first of the best
    half = torch.tensor([max(width - 1, 1), max(height - 1, 1)]) / 2
    place = torch.stack((x, y), 1) / half - 1
    tables = (neighbour.flatten(), opened, place, distance, toward.flatten())
    return Grid(width, height, *(table.to(device) for table in tables))

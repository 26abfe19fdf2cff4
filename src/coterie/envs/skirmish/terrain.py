"""The field of a battle: a square, and on one map a wall with a gap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SIZE = 32.0
"""Side of the field."""


@dataclass(frozen=True)
class Wall:
    """A thin wall from south to north, with a gap in the middle. Shots and looks go over it.

    x: where it stands; gap: half the width of the opening; margin: how far from its edges units pass.
    """

    x: float = SIZE / 2
    gap: float = 1.5
    margin: float = 0.5

    def stop(self, before: Tensor, now: Tensor) -> Tensor:
        """Places [2, U, B] in which those who walked into the wall stand before it."""
        here, there = before[0] - self.x, now[0] - self.x
        blocked = (here * there <= 0) & ((now[1] - SIZE / 2).abs() > self.gap)
        return torch.stack((torch.where(blocked, before[0], now[0]), now[1]))

    def way(self, pos: Tensor, goal_x: Tensor) -> tuple[Tensor, Tensor]:
        """Who has the wall before its goal [U, B] bool, and where to go for the gap [2, U, B]: up to it, then through.

        pos: [2, U, B]; goal_x: [U, B].
        """
        here, there = pos[0] - self.x, goal_x - self.x
        inner = self.gap - self.margin
        y = pos[1].clamp(SIZE / 2 - inner, SIZE / 2 + inner)
        lined_up = (pos[1] - y).abs() < self.margin / 2
        x = torch.where(lined_up, self.x + there.sign(), self.x + 0.5 * here.sign())
        return here * there <= 0, torch.stack((x, y))

"""The battlefield: a square, and on one map a wall with a gap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SIZE = 32.0
"""Side of the field."""


@dataclass(frozen=True)
class Wall:
    """A thin wall from south to north with a gap in the middle. It blocks movement but not shots or sight.

    Attributes:
        x: Position of the wall.
        gap: Half-width of the gap.
        margin: Clearance of units from the edges of the gap.
    """

    x: float = SIZE / 2
    gap: float = 1.5
    margin: float = 0.5

    def stop(self, before: Tensor, now: Tensor) -> Tensor:
        """Positions [2, U, B] after units that would cross the wall are stopped in front of it."""
        here, there = before[0] - self.x, now[0] - self.x
        blocked = (here * there <= 0) & ((now[1] - SIZE / 2).abs() > self.gap)
        return torch.stack((torch.where(blocked, before[0], now[0]), now[1]))

    def way(self, pos: Tensor, goal_x: Tensor) -> tuple[Tensor, Tensor]:
        """Units whose goal is behind the wall [U, B] bool, and their next waypoint [2, U, B]: to the gap, then through
        it.

        Args:
            pos: [2, U, B].
            goal_x: [U, B].
        """
        here, there = pos[0] - self.x, goal_x - self.x
        inner = self.gap - self.margin
        y = pos[1].clamp(SIZE / 2 - inner, SIZE / 2 + inner)
        lined_up = (pos[1] - y).abs() < self.margin / 2
        x = torch.where(lined_up, self.x + there.sign(), self.x + 0.5 * here.sign())
        return here * there <= 0, torch.stack((x, y))

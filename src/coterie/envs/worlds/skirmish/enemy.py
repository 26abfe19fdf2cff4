"""The scripted side of a battle."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coterie.core.device_constants import constant
from coterie.envs.worlds.skirmish.combat import Wall
from coterie.envs.worlds.skirmish.observations import SIGHT
from coterie.envs.worlds.skirmish.units import Force, Tables

Focus = Literal["nearest", "weakest"]
"""Target choice, see `SkirmishConfig.enemy_focus`."""
FIRST = 1e6
"""Ranks units within reach before all others."""
WHOLE = 1e4
"""Ranks teammates that need no healing after all others."""
NOBODY = 1e5
"""Rank of a teammate that is no target."""


class Enemy:
    """Chooses the target of every enemy once per step.

    Args:
        force: units of the map.
        focus: choice between several targets.
        home: where enemies without a target go.
        wall: wall of the map.
    """

    def __init__(self, force: Force, focus: Focus, home: tuple[float, float], wall: Wall | None):
        self._force, self.focus, self.home, self.wall = force, focus, home, wall
        n = force.n
        self.healers = tuple(i for i in force.healers if i >= n)
        self.teammates = tuple(i for i in range(n, force.size) if not force.units[i].air)

    def choose(self, pos: Tensor, points: Tensor, tables: Tables) -> Tensor:
        """[m, B] int64: target of each enemy, `size` for none.

        The nearest unit that it can hit, if within sight; with `weakest`, the unit within reach with the fewest points,
        else the nearest. Healers choose the nearest injured teammate, else the nearest teammate.

        Args:
            pos: [2, U, B].
            points: [1 or 2, U, B].
        """
        n, size = self._force.n, self._force.size
        apart = pos[:, n:].unsqueeze(2) - pos[:, :n].unsqueeze(1)
        square = apart[0].square().add_(apart[1].square())
        if tables.unfit is not None:
            square = square + tables.unfit
        if self.focus == "weakest":
            left = points.sum(0)[:n] - FIRST
            square = torch.where(square <= tables.reach2, left, square)
        least, chosen = square.min(1)
        chosen = chosen.masked_fill_(least >= SIGHT**2, size)
        if self.healers:
            chosen = self._with_healer_targets(chosen, pos, points[0], tables)
        return chosen

    def _with_healer_targets(self, chosen: Tensor, pos: Tensor, health: Tensor, tables: Tables) -> Tensor:
        """`chosen` with the targets of healers filled in."""
        n, size = self._force.n, self._force.size
        teammates, healers = (constant(units, pos.device, torch.int64) for units in (self.teammates, self.healers))
        apart = pos[:, healers].unsqueeze(2) - pos[:, teammates].unsqueeze(1)
        square = apart[0].square().add_(apart[1].square()) + (health[teammates] >= tables.full[0, teammates]) * WHOLE
        least, teammate = square.min(1)
        best = teammates[teammate].masked_fill(least >= NOBODY, size)
        return chosen.index_copy(0, healers - n, best)

    def detour(self, chosen: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Targets [m, B] and destinations [2, m, B] of enemies whose path is blocked by the wall.

        A unit with the wall between itself and its destination drops its target and walks to the gap.
        """
        n, num_envs = self._force.n, pos.shape[2]
        point = pos.new_empty(2, self._force.m, num_envs)
        point[0], point[1] = self.home
        if self.wall is None:
            return chosen, point
        size = self._force.size
        target_x = pos[0].gather(0, chosen.clamp(max=size - 1))
        goal_x = torch.where(chosen < size, target_x, point[0])
        behind, way = self.wall.way(pos[:, n:], goal_x)
        return chosen.masked_fill(behind, size), torch.where(behind, way, point)

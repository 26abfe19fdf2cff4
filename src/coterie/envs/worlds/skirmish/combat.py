"""One environment step of a battle: look up orders, move, attack, resolve collisions and regenerate shields.

The battlefield is a square, on one map with a wall that has a gap.

The batch is the last axis, so that every operation runs along contiguous memory: a battle is a tensor [F, U, B] of unit
features. A step consists of a few substeps of equal length (`SUBSTEPS`). Within a substep all units see the positions
at its start, and

    a unit whose target is within reach attacks if its weapon becomes ready before the end of the substep,
    a unit whose target is out of reach, or that moves to a point, walks toward it.

All attacks of a substep are resolved together at its end, so two units can kill each other. The next attack is ready
one period after the exact tick of the previous one, so the attack rate does not depend on the substep length. Dead
units are moved far away (`units.PARK`), where nothing reaches or sees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.envs.worlds.skirmish.units import (
    ENERGY,
    ENERGY_GROWTH,
    HEAL,
    HEALTH_FOR_ENERGY,
    HIT,
    PACE,
    REACH,
    SHIELD_DELAY,
    SHIELD_GROWTH,
    STEP,
    WOUND,
    Force,
    Tables,
)

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


SUBSTEPS = 2
"""Substeps per step (two of four ticks). No weapon fires twice within one."""
TICKS = STEP / SUBSTEPS
PUSH = 0.45
"""Fraction of the overlap with another unit by which a unit is pushed away per substep."""
BEAM_DEPTH = 0.15
"""Half the depth of a beam along the line of its attack."""
AWAY = 500.0
"""A distance greater than that of any two living units."""
NEAR = 1e-6
"""Least distance, and least damage, by which is divided."""
SAME = 1e-4
"""Least squared distance of two units, in units of their contact distance."""
CLOSE = 1e-3
"""Tolerance of reach: a unit that walks up to its range may stop a rounding error short of it."""


class Layout:
    """Feature rows of a battle: x, y, health, shield (if any), cooldown and order, plus ticks since the last hit
    (shields) and energy (healers) where needed.
    """

    def __init__(self, force: Force):
        shields = any(force.shielded)
        names = ["x", "y", "health", *(["shield"] if shields else []), "cooldown", "order"]
        names += ["calm"] if shields else []
        names += ["energy"] if force.healers else []
        self.names = tuple(names)
        self.place = {name: i for i, name in enumerate(names)}
        self.points = slice(2, 4 if shields else 3)
        """Rows of health and shield."""
        self.shields, self.heals = shields, bool(force.healers)


class Orders(NamedTuple):
    """Orders of all units for one step.

    Attributes:
        sheet: [R, U, B], parameters of the orders.
        target: [U B] int64, position of each target in the flattened [U, B].
        point: [2, U, B], destination of units without a target.
        code: [U, B], order numbers.
    """

    sheet: Tensor
    target: Tensor
    point: Tensor
    code: Tensor


class Combat:
    """Simulates one step of the battles on one map."""

    def __init__(self, force: Force, layout: Layout, wall: Wall | None):
        self._force, self._layout, self._wall = force, layout, wall

    def fight(self, units: Tensor, orders: Orders, tables: Tables) -> Tensor:
        """Features [F, U, B] after a step."""
        layout = self._layout
        pos, points = units[:2], units[layout.points]
        cooldown = units[layout.place["cooldown"]]
        energy = units[layout.place["energy"]] if layout.heals else None
        aims = orders.sheet[REACH] > -torch.inf
        pace = orders.sheet[PACE] * TICKS
        hit_at_all: Tensor | None = None
        for _ in range(SUBSTEPS):
            goal = pos.reshape(2, -1).index_select(1, orders.target).view_as(pos)
            offset = torch.where(aims, goal, orders.point).sub_(pos)
            distance = torch.hypot(offset[0], offset[1])
            gap = distance - orders.sheet[REACH]
            inside = gap <= CLOSE
            fires = (inside & (cooldown < TICKS)).to(pos.dtype)
            taken = self._attacks(pos, offset, distance, fires, orders=orders, tables=tables)
            points, hit = self._apply_damage(points, taken)
            if energy is not None:
                points, energy = self._heal(points, energy, inside, orders, tables=tables)
            if hit is not None:
                hit_at_all = hit if hit_at_all is None else hit_at_all | hit
            cooldown = torch.addcmul(cooldown, fires, tables.period).sub_(TICKS).clamp_min_(0)
            # Dead units are not pursued and do not move.
            walked = torch.minimum(gap.clamp_(min=0), pace).masked_fill_(distance > AWAY, 0)
            walked = torch.addcmul(pos, offset, walked.div_(distance.clamp_min_(NEAR)))
            pos = self._resolve_collisions(pos, walked, points[0], tables)
        if hit_at_all is not None:
            points, calm = self._recover(points, units[layout.place["calm"]], hit_at_all, tables)
            tail = [calm.unsqueeze(0)]
        else:
            tail = []
        if energy is not None:
            tail.append(energy.unsqueeze(0))
        return torch.cat((pos, points, cooldown.unsqueeze(0), orders.code.unsqueeze(0), *tail))

    # ---------------------------------------------------------------------------------------------- attacks

    def _attacks(
        self, pos: Tensor, offset: Tensor, distance: Tensor, fires: Tensor, orders: Orders, tables: Tables
    ) -> Tensor:
        """[1 or 2, U, B]: damage to the health (and shield) of each unit from the units that fire."""
        rows = orders.sheet[WOUND : HIT + 1] if self._layout.shields else orders.sheet[WOUND : WOUND + 1]
        dealt = (fires * rows).view(len(rows), -1)
        taken = torch.zeros_like(dealt).scatter_add_(1, orders.target.expand_as(dealt), dealt).view_as(rows)
        for i in self._force.beams:
            taken = taken + self._beam_damage(i, pos, offset, distance, fires=fires, tables=tables)
        return taken

    def _beam_damage(
        self, i: int, pos: Tensor, offset: Tensor, distance: Tensor, fires: Tensor, tables: Tables
    ) -> Tensor:
        """[2, U, B]: damage of unit i's beam to the units next to its target, excluding the target."""
        unit = self._force.units[i]
        start, stop = (self._force.n, self._force.size) if i < self._force.n else (0, self._force.n)
        along = offset[:, i] / distance[i].clamp_min(NEAR)
        apart = pos[:, start:stop] - (pos[:, i] + offset[:, i]).unsqueeze(1)  # from the target
        ahead = apart[0] * along[0] + apart[1] * along[1]
        aside = apart[0] * along[1] - apart[1] * along[0]
        others = (apart[0] != 0) | (apart[1] != 0)
        burnt = others & (ahead.abs() <= BEAM_DEPTH + tables.radius[start:stop]) & (aside.abs() <= unit.beam)
        taken = pos.new_zeros(2, *fires.shape)
        taken[:, start:stop] = (burnt * fires[i]) * tables.beam[:, i, start:stop].unsqueeze(-1)
        return taken

    def _apply_damage(self, points: Tensor, taken: Tensor) -> tuple[Tensor, Tensor | None]:
        """Health and shield after the attacks, and which units were hit [U, B] (None without shields).

        The shield absorbs damage at full strength; the remainder, reduced by armor, is taken from health.
        """
        if not self._layout.shields:
            return (points - taken).clamp_min_(0), None
        wound, hit = taken
        absorbed = torch.minimum(points[1], hit)
        through = 1 - absorbed / hit.clamp_min(NEAR)
        health = torch.addcmul(points[0], wound, through, value=-1).clamp_min_(0)
        shield = (points[1] - absorbed).mul_(health > 0)
        return torch.stack((health, shield)), hit > 0

    # --------------------------------------------------------------------------------------------- recovery

    def _heal(
        self, points: Tensor, energy: Tensor, inside: Tensor, orders: Orders, tables: Tables
    ) -> tuple[Tensor, Tensor]:
        """Points and energy after healing: health never exceeds its maximum, and dead units stay dead."""
        missing = tables.full[0] - points[0]
        needed = missing.view(-1).index_select(0, orders.target).view_as(missing)
        given = torch.minimum(orders.sheet[HEAL] * TICKS * inside, needed)
        given = torch.minimum(given, energy * HEALTH_FOR_ENERGY)
        healed = torch.zeros_like(given).view(-1).scatter_add_(0, orders.target, given.view(-1)).view_as(given)
        health = torch.minimum(points[0] + healed * (points[0] > 0), tables.full[0])
        spent = energy - given / HEALTH_FOR_ENERGY
        return torch.cat((health.unsqueeze(0), points[1:])), (spent + ENERGY_GROWTH * TICKS).clamp_(max=ENERGY)

    def _recover(self, points: Tensor, calm: Tensor, hit: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Points after shield regeneration, and ticks since the last hit."""
        calm = (calm + STEP).masked_fill_(hit, 0)
        grows = (calm >= SHIELD_DELAY) & (points[0] > 0)
        shield = torch.minimum(points[1] + grows * (SHIELD_GROWTH * STEP), tables.full[1])
        return torch.stack((points[0], shield)), calm

    # ---------------------------------------------------------------------------------------------- places

    def _resolve_collisions(self, before: Tensor, pos: Tensor, health: Tensor, tables: Tables) -> Tensor:
        """Positions [2, U, B] after collisions are resolved; no unit leaves the field or passes through the wall.

        Each of two overlapping units is moved away from the other by `PUSH` (reach - d), as far as its neighbors
        permit.
        """
        apart = pos.unsqueeze(2) - pos.unsqueeze(1)
        square = apart[0].square().add_(apart[1].square())
        # reach / d - 1, at least zero; two units at the same position stay there
        overlap = square.mul_(tables.contact).clamp_min_(SAME).rsqrt_().sub_(1).clamp_min_(0)
        moved = torch.add(pos, apart.mul_(overlap).sum(2), alpha=PUSH).clamp_(0, SIZE)
        if self._wall is not None:
            moved = self._wall.stop(before, moved)
        return torch.where(health > 0, moved, tables.park)

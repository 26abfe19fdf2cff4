"""Unit placement at the start of a battle, and units as drawn by the renderer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from coterie.core.device_constants import DeviceConstant
from coterie.envs.worlds.skirmish.combat import Layout
from coterie.envs.worlds.skirmish.render import Fighter
from coterie.envs.worlds.skirmish.rosters import Force
from coterie.envs.worlds.skirmish.terrain import SIZE
from coterie.envs.worlds.skirmish.units import ENERGY_START, STEP

TEAM_START = (9.0, SIZE / 2)
"""Starting position of the first side."""
ENEMY_START = (23.0, SIZE / 2)
"""Starting position of the second side."""
GRID = 1.5
"""Distance between units at the start."""
START_JITTER = 1.0
"""Side of the square within which each unit starts at random."""
_ROUNDING = 1e-3  # ticks


def formation(force: Force, layout: Layout) -> Tensor:
    """Features [F, U, 1] of a new battle with every unit at the center of its square."""
    place = layout.place
    rows = torch.zeros(len(place), force.size, 1)
    sides = ((range(force.n), TEAM_START, 1.0), (range(force.n, force.size), ENEMY_START, -1.0))
    for members, (x, y), ahead in sides:
        tall = int(np.ceil(np.sqrt(2 * len(members))))
        deep = int(np.ceil(len(members) / tall))
        # Melee units are placed in front.
        by_range = sorted(members, key=lambda i: force.units[i].range)
        for k, i in enumerate(by_range):
            row, column = k % tall, k // tall
            in_column = min(tall, len(members) - column * tall)
            rows[0, i] = x + ahead * GRID * ((deep - 1) / 2 - column)
            rows[1, i] = y + GRID * (row - (in_column - 1) / 2)
    rows[2, :, 0] = torch.tensor([unit.health for unit in force.units])
    if layout.shields:
        rows[place["shield"], :, 0] = torch.tensor([unit.shield for unit in force.units])
    if layout.heals:
        rows[place["energy"], list(force.healers)] = ENERGY_START
    rows[place["order"]] = -1  # no orders yet
    return rows


def begun(rows: DeviceConstant, noise: Tensor) -> Tensor:
    """Features [F, U, B] of new battles from a formation [F, U, 1] and uniform noise [B, 2 U]."""
    num_envs = len(noise)
    units = rows.on(noise.device).to(noise.dtype).expand(-1, -1, num_envs).clone()
    units[:2] += (noise.T.reshape(2, -1, num_envs) - 0.5) * START_JITTER
    return units


def fighters(
    force: Force, layout: Layout, units: Tensor, target: Callable[[int, int], int | None]
) -> tuple[Fighter, ...]:
    """All units of a battle with features [F, U]; target: returns the target of a unit under an order, or None."""
    place, values = layout.place, units.T.tolist()
    shown = []
    for i, unit in enumerate(force.units):
        x, y, health = values[i][:3]
        # A unit that attacked in the last step has most of its attack period left.
        idle = not unit.heals and values[i][place["cooldown"]] < unit.period - STEP - _ROUNDING
        shown.append(
            Fighter(
                unit.name,
                force.side(i),
                x,
                y,
                radius=unit.radius,
                health=health / unit.health,
                shield=values[i][place["shield"]] / unit.shield if unit.shield else None,
                target=None if idle else target(i, int(values[i][place["order"]])),
            )
        )
    return tuple(shown)

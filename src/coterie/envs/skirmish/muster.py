"""Everybody on the field: where they stand as a battle begins, and how a picture shows them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from coterie.envs.skirmish.combat import Layout
from coterie.envs.skirmish.force import Force
from coterie.envs.skirmish.render import Fighter
from coterie.envs.skirmish.terrain import SIZE
from coterie.envs.skirmish.units import ENERGY_START, STEP

HOME = (9.0, SIZE / 2)
"""Where the first side begins."""
FOE = (23.0, SIZE / 2)
"""Where the second side begins."""
GRID = 1.5
"""Lengths between units at the start."""
SCATTER = 1.0
"""Side of the square in which each of them begins."""
_ROUNDING = 1e-3  # ticks


def formation(force: Force, layout: Layout) -> Tensor:
    """The rows [F, U, 1] of a new battle, everybody in the middle of its square."""
    place = layout.place
    rows = torch.zeros(len(place), force.size, 1)
    sides = ((range(force.n), HOME, 1.0), (range(force.n, force.size), FOE, -1.0))
    for members, (x, y), ahead in sides:
        tall = int(np.ceil(np.sqrt(2 * len(members))))
        deep = int(np.ceil(len(members) / tall))
        # Those that walk up to their target stand in front.
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
    rows[place["order"]] = -1  # nobody has had any
    return rows


def begun(rows: Tensor, noise: Tensor) -> Tensor:
    """The rows [F, U, B] of new battles, from a formation [F, U, 1] and uniform noise [B, 2 U]."""
    copies = len(noise)
    units = rows.to(noise).expand(-1, -1, copies).clone()
    units[:2] += (noise.T.reshape(2, -1, copies) - 0.5) * SCATTER
    return units


def fighters(
    force: Force, layout: Layout, units: Tensor, target: Callable[[int, int], int | None]
) -> tuple[Fighter, ...]:
    """All units of a battle's rows [F, U]; target: whom the unit of a number goes for with an order, if anybody."""
    place, values = layout.place, units.T.tolist()
    shown = []
    for i, unit in enumerate(force.units):
        x, y, health = values[i][:3]
        # Whoever attacked in the last step is still on most of its period.
        idle = not unit.heals and values[i][place["cooldown"]] < unit.period - STEP - _ROUNDING
        shown.append(
            Fighter(
                unit.name,
                force.side(i),
                x,
                y,
                unit.radius,
                health / unit.health,
                values[i][place["shield"]] / unit.shield if unit.shield else None,
                None if idle else target(i, int(values[i][place["order"]])),
            )
        )
    return tuple(shown)

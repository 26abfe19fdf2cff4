"""Points for damage, kills and victories: the shaped rewards of a battle."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from coterie.envs.worlds.skirmish.units import Force

KILL, WIN, BEST = 10.0, 200.0, 20.0
"""Points per killed enemy and per won battle, and the total to which all points are scaled."""

Number = TypeVar("Number", float, Tensor)


def scale(force: Force, begun: Number) -> Number:
    """Returns the factor on the points if the enemy started with the fraction `begun` of its own, a number or [B]."""
    return BEST / (force.total * begun + KILL * force.m + WIN)

"""Parameters that every particle world has. They are entries of the state only where they vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.particle.physics import DAMPING, StateLayout
from coterie.envs.worlds.world import State

COMMON_PARAMETERS: dict[str, Parameter] = {
    "speed": Parameter(1.0, 0.05, 10.0, "factor on thrust and speed limit of all moving bodies"),
    "damping": Parameter(DAMPING, 0.0, 1.0, "fraction of its velocity that a body loses per step"),
    "spread": Parameter(1.0, 0.0, 3.0, "factor on the initial distance of all bodies from the center"),
}


def scale_positions(
    with_parts: Callable[..., State], layout: StateLayout, state: State, position_parts: tuple[str, ...]
) -> State:
    """Multiplies all positions of an initial state by its entry `spread`, if it has one.

    Args:
        with_parts: replaces parts of a state.
        layout: layout of the flat state.
        state: the initial state.
        position_parts: parts, besides the bodies, that are positions.
    """
    if "spread" not in state:
        return state
    parts = layout.split(state["flat"].T.contiguous())
    scaled: dict[str, Any] = {name: parts[name] * state["spread"] for name in ("moving", "rest", *position_parts)}
    return with_parts(state, **scaled)

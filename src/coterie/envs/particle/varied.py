"""Parameters that every particle world has, as entries of the state where copies differ in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.envs.parameters import Parameter
from coterie.envs.particle.physics import DAMPING, Rows
from coterie.envs.world import State

EVERYWHERE: dict[str, Parameter] = {
    "speed": Parameter(1.0, 0.05, 10.0, "factor on thrust and speed limit of all who move"),
    "damping": Parameter(DAMPING, 0.0, 1.0, "part of its velocity that a body loses in a step"),
    "spread": Parameter(1.0, 0.0, 3.0, "factor on how far from the middle everything begins"),
}


def spread(arranged: Callable[..., State], rows: Rows, state: State, places: tuple[str, ...]) -> State:
    """The first state with everything `state["spread"]` times as far from the middle as it is, if it has that entry.

    arranged: puts parts in the place of a state's own; places: names of parts besides bodies that are places.
    """
    if "spread" not in state:
        return state
    parts = rows.split(state["rows"].T.contiguous())
    moved: dict[str, Any] = {name: parts[name] * state["spread"] for name in ("moving", "rest", *places)}
    return arranged(state, **moved)

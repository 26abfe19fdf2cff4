"""Actions of the particle worlds: effects and names of the choices."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from coterie.envs.worlds.particle.physics import DT, Body, Variant
from coterie.envs.worlds.particle.scenario import Role

Actions = Literal["discrete", "continuous"]

SIGNS = {"mpe2": (-1, 1, -1, 1), "openai": (1, -1, 1, -1)}
"""Directions of moves 1 to 4 by variant: the first two along x, the others along y."""

MOVES = 5
"""Number of moves, of which the first is none."""


def action_tables(
    role: Role, body: Body, variant: Variant, kind: Actions, *, like: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the change of velocity [2, A] and the one-hot symbol [C, A] of every choice, move + 5 * symbol.

    Args:
        role: the role.
        body: the body of each of its agents.
        variant: convention of motion.
        kind: for continuous actions, A is the number of moves, and of symbols.
        like: device and precision.
    """
    continuous, symbols = kind == "continuous", max(role.symbols, 1)
    move = speech = None
    if body.moves:
        signs = SIGNS[variant]
        move = torch.zeros(2, MOVES, dtype=torch.float64)
        move[0, 1:3] = torch.tensor(signs[:2]) * (-1 if role.mirrored else 1)
        move[1, 3:5] = torch.tensor(signs[2:])
        move = (move * (body.thrust * DT / body.mass)).repeat(1, 1 if continuous else symbols).to(like)
    if role.symbols and not continuous:
        speech = torch.eye(role.symbols).repeat_interleave(MOVES if body.moves else 1, dim=1).to(like)
    elif role.symbols:
        speech = torch.eye(role.symbols).to(like)
    return move, speech


def action_names(role: Role, moves: int, variant: Variant, kind: Actions) -> dict[str, Any]:
    """Returns the names of the choices, or of the continuous components, of a role's actions."""
    signs = SIGNS[variant]
    signs = (-signs[0], -signs[1], *signs[2:]) if role.mirrored else signs
    sides = [("left", "right")[signs[0] > 0], ("left", "right")[signs[1] > 0]]
    steps = ["stay", *sides, ("down", "up")[signs[2] > 0], ("down", "up")[signs[3] > 0]][:moves]
    symbols = [f"say {chr(ord('A') + i)}" for i in range(role.symbols)]
    if kind == "continuous":
        return {"number_names": (*steps, *symbols)}
    both = [f"{step}, {symbol}" for symbol in symbols for step in steps]
    return {"choice_names": (tuple(both or steps or symbols or ["stay"]),)}

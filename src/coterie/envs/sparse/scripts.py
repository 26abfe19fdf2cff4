"""Scripted players of the sparse worlds: the shortest way, read off what the agents see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.envs.sparse.chain import Chain, chain
from coterie.types import Action, Row, TeamSpec

Act = Callable[[Row], dict[str, Action]]


def straight_on(team: TeamSpec, env: Any) -> Act:
    """sparse/rooms: goes the shortest way to the goal."""

    def act(row: Row) -> dict[str, Action]:
        rooms, squares = _places(row, env)
        return _action(rooms.toward[squares, rooms.goal])

    return act


def plate_by_plate(team: TeamSpec, env: Any) -> Act:
    """sparse/plates: each agent goes to a plate of the first closed door, and in the end into the last room."""

    def act(row: Row) -> dict[str, Action]:
        rooms, squares = _places(row, env)
        doors = row.obs["agent"][..., -(rooms.rooms - 1) :] > 0.5  # [B, N, doors]
        shut = torch.where(doors.all(-1), rooms.rooms - 1, (~doors).byte().argmax(-1))
        inside = torch.full((1, 2), rooms.square(rooms.rooms - 1, 1, 1), device=squares.device)
        goals = torch.cat((rooms.plates, inside))[shut]  # [B, N, 2]
        return _action(rooms.toward[squares, goals.diagonal(dim1=1, dim2=2)])

    return act


def _places(row: Row, env: Any) -> tuple[Chain, Tensor]:
    """The rooms, and the squares of the agents [B, N]."""
    seen = row.obs["agent"]
    rooms = chain(env.params.rooms, env.params.size, env.params.columns, seen.device)
    column = seen[..., : rooms.width].argmax(-1)
    return rooms, seen[..., rooms.width : rooms.width + rooms.height].argmax(-1) * rooms.width + column


def _action(move: Tensor) -> dict[str, Action]:
    return {"agent": Action(discrete=move.unsqueeze(-1))}

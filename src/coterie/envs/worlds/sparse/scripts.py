"""Scripted policies for the sparse worlds: shortest paths computed from the observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.sparse.chain import Chain, chain

Act = Callable[[Timestep], dict[str, Action]]


def straight_on(team: TeamSpec, env: Any) -> Act:
    """sparse/rooms: follows the shortest path to the goal."""

    def act(timestep: Timestep) -> dict[str, Action]:
        rooms, squares = _places(timestep, env)
        return _action(rooms.toward[squares, rooms.goal])

    return act


def plate_by_plate(team: TeamSpec, env: Any) -> Act:
    """sparse/plates: each agent walks to a plate of the first closed door, and finally into the last room."""

    def act(timestep: Timestep) -> dict[str, Action]:
        rooms, squares = _places(timestep, env)
        doors = timestep.obs["agent"][..., -(rooms.rooms - 1) :] > 0.5  # [B, N, doors]
        shut = torch.where(doors.all(-1), rooms.rooms - 1, (~doors).byte().argmax(-1))
        inside = torch.full((1, 2), rooms.square(rooms.rooms - 1, 1, 1), device=squares.device)
        goals = torch.cat((rooms.plates, inside))[shut]  # [B, N, 2]
        return _action(rooms.toward[squares, goals.diagonal(dim1=1, dim2=2)])

    return act


def _places(timestep: Timestep, env: Any) -> tuple[Chain, Tensor]:
    """Returns the rooms and the squares [B, N] of the agents."""
    obs = timestep.obs["agent"]
    rooms = chain(env.params.rooms, env.params.size, env.params.columns, obs.device)
    column = obs[..., : rooms.width].argmax(-1)
    return rooms, obs[..., rooms.width : rooms.width + rooms.height].argmax(-1) * rooms.width + column


def _action(move: Tensor) -> dict[str, Action]:
    return {"agent": Action(discrete=move.unsqueeze(-1))}

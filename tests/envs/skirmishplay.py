"""Battles put into a known state, orders by name, and whole episodes by any player."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from episodeplay import Player, played

from coterie.envs.make import make
from coterie.envs.skirmish.battle import Skirmish
from coterie.envs.skirmish.force import PARK, SPREAD
from coterie.envs.world import WorldEnv
from coterie.types import Action, Row, Step

ORDERS = {"noop": 0, "stop": 1, "north": 2, "south": 3, "east": 4, "west": 5}
GONE = "gone"


def env_of(name: str, copies: int = 1, seed: int = 0, **params: Any) -> WorldEnv:
    env = make(f"skirmish/{name}", params, copies, seed, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def world_of(env: WorldEnv) -> Skirmish:
    assert isinstance(env.world, Skirmish)
    return env.world


def placed(env: WorldEnv, places: Sequence[tuple[float, float] | str], **rows: Sequence[float]) -> Row:
    """The environment with everybody at those places (`GONE`: fallen), in every copy; returns its row.

    rows: values of other rows, by name, a number a unit.
    """
    env.reset(0)
    world, shown = world_of(env), env.state_dict()
    units = shown["state"]["units"].clone()
    for name, values in rows.items():
        units[:, world.layout.place[name]] = torch.tensor(values)
    for i, place in enumerate(places):
        if place == GONE:
            units[:, world.layout.points, i] = 0
            place = (PARK, PARK - SPREAD * i)
        units[:, :2, i] = torch.tensor(place)
    shown["state"]["units"] = units
    view = world.view(shown["state"])
    assert view.alive is not None
    env.load_state_dict(shown | {"alive": view.alive})
    return Row(view.obs, view.action_mask, view.state, view.alive, view.alive, torch.ones(env.copies, dtype=torch.bool))


def act(*orders: str | int, copies: int = 1) -> dict[str, Action]:
    """The same orders in every copy: a name, or the number of a target."""
    chosen = torch.tensor([ORDERS[order] if isinstance(order, str) else 6 + order for order in orders])
    return {"ally": Action(chosen.expand(copies, -1).unsqueeze(-1).clone())}


def step(env: WorldEnv, *orders: str | int) -> tuple[Step, Row]:
    return env.step(act(*orders, copies=env.copies))


def row_of(env: WorldEnv, name: str) -> list[float]:
    """A row of the first copy, a number a unit."""
    return env.state_dict()["state"]["units"][0, world_of(env).layout.place[name]].tolist()


def episodes(
    name: str, copies: int, player: Player | None = None, **params: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """As `played`."""
    return played(env_of(name, copies, **params), player)

"""Battles in a known state, orders by name, and whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coterie.core.types import Action, Step, Timestep
from coterie.envs.make import make
from coterie.envs.worlds.skirmish.battle import Skirmish
from coterie.envs.worlds.skirmish.units import PARK, SPREAD
from coterie.envs.worlds.world import WorldEnv
from episodeplay import Player, play_episodes

ORDERS = {"noop": 0, "stop": 1, "north": 2, "south": 3, "east": 4, "west": 5}
GONE = "gone"


def env_of(name: str, num_envs: int = 1, seed: int = 0, **params: Any) -> WorldEnv:
    env = make(f"skirmish/{name}", params, num_envs, seed, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def world_of(env: WorldEnv) -> Skirmish:
    assert isinstance(env.world, Skirmish)
    return env.world


def placed(env: WorldEnv, places: Sequence[tuple[float, float] | str], **rows: Sequence[float]) -> Timestep:
    """Places all units (`GONE`: dead) in every environment and returns the timestep.

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
    view = world.observe(shown["state"])
    assert view.alive is not None
    env.load_state_dict(shown | {"alive": view.alive})
    return Timestep(
        view.obs, view.action_mask, view.state, view.alive, view.alive, torch.ones(env.num_envs, dtype=torch.bool)
    )


def act(*orders: str | int, num_envs: int = 1) -> dict[str, Action]:
    """The same orders in every environment: a name, or the index of a target."""
    chosen = torch.tensor([ORDERS[order] if isinstance(order, str) else 6 + order for order in orders])
    return {"ally": Action(chosen.expand(num_envs, -1).unsqueeze(-1).clone())}


def step(env: WorldEnv, *orders: str | int) -> tuple[Step, Timestep]:
    return env.step(act(*orders, num_envs=env.num_envs))


def row_of(env: WorldEnv, name: str) -> list[float]:
    """A feature of the first environment, one number per unit."""
    return env.state_dict()["state"]["units"][0, world_of(env).layout.place[name]].tolist()


def episodes(
    name: str, num_envs: int, player: Player | None = None, **params: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Like `play_episodes`."""
    return play_episodes(env_of(name, num_envs, **params), player)

"""Battles put into a known state, orders by name, and whole episodes by any player."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coterie.envs.make import make
from coterie.envs.scripts import script_of
from coterie.envs.skirmish.battle import Skirmish
from coterie.envs.skirmish.force import PARK, SPREAD
from coterie.envs.world import State, WorldEnv
from coterie.schema import Choice
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


def by_script(name: str) -> Callable[[Skirmish, State], dict[str, Action]]:
    """A player that acts by a script of the maps, which sees no more than the units."""
    made: dict[str, Callable[[Row], dict[str, Action]]] = {}

    def play(world: Skirmish, state: State) -> dict[str, Action]:
        map_name = world.spec.name
        if map_name not in made:
            (team,) = world.spec.default_teams()
            made[map_name], _, _ = script_of(team, Choice(name=f"skirmish/{map_name}", params=world.config), name)
        view = world.view(state)
        assert view.alive is not None
        acted = torch.ones(len(view.alive), dtype=torch.bool)
        return made[map_name](Row(view.obs, view.action_mask, view.state, view.alive, view.alive, acted))

    return play


def at_random(row: Row, generator: torch.Generator) -> dict[str, Action]:
    """Uniform among the open choices, as `algo=random` plays."""
    mask = row.action_mask["ally"].float()
    drawn = torch.multinomial(mask.flatten(0, 1), 1, generator=generator)
    return {"ally": Action(drawn.view(*mask.shape[:2], 1))}


def episodes(
    name: str, copies: int, player: Callable[[Skirmish, State], dict[str, Action]] | None = None, **params: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One episode of every copy: the group's returns [copies] and metrics at the end. player: None plays at random."""
    env = env_of(name, copies, **params)
    row = env.reset(0)
    generator = torch.Generator().manual_seed(1)
    total, over = torch.zeros(copies), torch.zeros(copies, dtype=torch.bool)
    metrics = {key: torch.zeros(copies) for key in env.spec.metrics}
    while not over.all():
        action = at_random(row, generator) if player is None else player(world_of(env), env.state_dict()["state"])
        result, row = env.step(action)
        total += torch.where(over, 0.0, result.group_reward[:, 0])
        ends = (result.episode_terminated | result.episode_truncated) & ~over
        metrics = {key: torch.where(ends, result.metrics[key], value) for key, value in metrics.items()}
        over |= ends
    return total, metrics

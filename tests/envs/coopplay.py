"""Worlds of the cooperative family put into a known state, moves by name, and whole episodes by any player."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coterie.envs.make import make
from coterie.envs.scripts import script_of
from coterie.envs.world import State, WorldEnv
from coterie.schema import Choice
from coterie.types import Action, Row, Step

MOVES = {"stay": 0, "left": 1, "right": 2, "down": 3, "up": 4}


def env_of(name: str, copies: int = 1, seed: int = 0, **params: Any) -> WorldEnv:
    env = make(f"coop/{name}", params, copies, seed, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def placed(env: WorldEnv, **entries: Any) -> Row:
    """The environment with a first episode in that state (of every copy); returns its row."""
    env.reset(0)
    shown = env.state_dict()
    for name, value in entries.items():
        old = shown["state"][name]
        shown["state"][name] = torch.as_tensor(value, dtype=old.dtype).expand_as(old).clone()
    alive = env.world.view(shown["state"]).alive
    env.load_state_dict(shown | ({} if alive is None else {"alive": alive}))
    view = env.world.view(shown["state"])
    lives = torch.ones(env.copies, env.spec.n, dtype=torch.bool) if view.alive is None else view.alive
    return Row(view.obs, view.action_mask, view.state, lives, lives, torch.ones(env.copies, dtype=torch.bool))


def act(*moves: str, copies: int = 1) -> dict[str, Action]:
    """The same moves in every copy."""
    chosen = torch.tensor([MOVES[move] for move in moves])
    return {"agent": Action(chosen.expand(copies, -1).unsqueeze(-1))}


def step(env: WorldEnv, *moves: str) -> tuple[Step, Row]:
    return env.step(act(*moves, copies=env.copies))


def state_of(env: WorldEnv) -> State:
    return env.state_dict()["state"]


def by_script(script: str, name: str) -> Callable[[Any, State], dict[str, Action]]:
    """A player that acts by a script of the world of that name, which sees no more than the agents."""

    def play(world: Any, state: State) -> dict[str, Action]:
        (team,) = world.spec.default_teams()
        act, _, _ = script_of(team, Choice(name=f"coop/{name}", params=world.config), script)
        view = world.view(state)
        lives = torch.ones(len(view.obs["agent"]), world.spec.n, dtype=torch.bool) if view.alive is None else view.alive
        return act(Row(view.obs, view.action_mask, view.state, lives, lives, torch.ones(len(lives), dtype=torch.bool)))

    return play


def at_random(row: Row, generator: torch.Generator) -> dict[str, Action]:
    """Uniform among the open moves, as `algo=random` plays."""
    mask = row.action_mask["agent"].float()
    drawn = torch.multinomial(mask.flatten(0, 1), 1, generator=generator)
    return {"agent": Action(drawn.view(*mask.shape[:2], 1))}


def episodes(
    name: str, copies: int, player: Callable[[Any, State], dict[str, Action]] | None = None, **params: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """One episode of every copy: the group's returns [copies] and the mean metrics. player: None plays at random."""
    env = env_of(name, copies, **params)
    row = env.reset(0)
    generator = torch.Generator().manual_seed(1)
    total, over = torch.zeros(copies), torch.zeros(copies, dtype=torch.bool)
    metrics = {key: torch.zeros(copies) for key in env.spec.metrics}
    while not over.all():
        action = at_random(row, generator) if player is None else player(env.world, state_of(env))
        result, row = env.step(action)
        total += torch.where(over, 0.0, result.group_reward[:, 0] + result.reward.sum(1))
        ends = (result.episode_terminated | result.episode_truncated) & ~over
        metrics = {key: torch.where(ends, result.metrics[key], value) for key, value in metrics.items()}
        over |= ends
    return total, {key: float(value.mean()) for key, value in metrics.items()}

"""Cooperative worlds in a known state, moves by name, and whole episodes."""

from __future__ import annotations

from typing import Any

import torch

from coterie.core.types import Action, Step, Timestep
from coterie.envs.make import make
from coterie.envs.worlds.world import State, WorldEnv
from episodeplay import Player, play_episodes, timestep_of

MOVES = {"stay": 0, "left": 1, "right": 2, "down": 3, "up": 4}


def env_of(name: str, num_envs: int = 1, seed: int = 0, **params: Any) -> WorldEnv:
    env = make(f"coop/{name}", params, num_envs, seed, with_state=True)
    assert isinstance(env, WorldEnv)
    return env


def placed(env: WorldEnv, **entries: Any) -> Timestep:
    """Sets the state of all environments at the start of an episode and returns the timestep."""
    env.reset(0)
    shown = env.state_dict()
    for name, value in entries.items():
        old = shown["state"][name]
        shown["state"][name] = torch.as_tensor(value, dtype=old.dtype).expand_as(old).clone()
    alive = env.world.observe(shown["state"]).alive
    env.load_state_dict(shown | ({} if alive is None else {"alive": alive}))
    return timestep_of(env.world, shown["state"])


def act(*moves: str, num_envs: int = 1) -> dict[str, Action]:
    """The same moves in every environment."""
    chosen = torch.tensor([MOVES[move] for move in moves])
    return {"agent": Action(chosen.expand(num_envs, -1).unsqueeze(-1))}


def step(env: WorldEnv, *moves: str) -> tuple[Step, Timestep]:
    return env.step(act(*moves, num_envs=env.num_envs))


def world_state(env: WorldEnv) -> State:
    return env.state_dict()["state"]


def episodes(
    name: str, num_envs: int, player: Player | None = None, **params: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """Like `play_episodes`, with the mean metrics."""
    total, metrics = play_episodes(env_of(name, num_envs, **params), player)
    return total, {key: float(value.mean()) for key, value in metrics.items()}

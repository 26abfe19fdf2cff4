"""Worlds of the cooperative family put into a known state, moves by name, and whole episodes by any player."""

from __future__ import annotations

from typing import Any

import torch
from episodeplay import Player, played, row_of

from coterie.envs.make import make
from coterie.envs.world import State, WorldEnv
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
    return row_of(env.world, shown["state"])


def act(*moves: str, copies: int = 1) -> dict[str, Action]:
    """The same moves in every copy."""
    chosen = torch.tensor([MOVES[move] for move in moves])
    return {"agent": Action(chosen.expand(copies, -1).unsqueeze(-1))}


def step(env: WorldEnv, *moves: str) -> tuple[Step, Row]:
    return env.step(act(*moves, copies=env.copies))


def state_of(env: WorldEnv) -> State:
    return env.state_dict()["state"]


def episodes(
    name: str, copies: int, player: Player | None = None, **params: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """As `played`, with the mean metrics."""
    total, metrics = played(env_of(name, copies, **params), player)
    return total, {key: float(value.mean()) for key, value in metrics.items()}

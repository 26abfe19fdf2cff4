"""Baseline that steps environments through pipes: worker processes receive pickled actions and return pickled results.

PyMARL's parallel runner (one process per environment) and many research codebases work this way.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np


class Game:
    """One environment with simultaneous actions; `nothing` is the reward of a step that starts an episode."""

    def __init__(self, name: str):
        family, _, rest = name.partition("/")
        self._zoo = family == "pettingzoo"
        if self._zoo:
            self.env: Any = importlib.import_module(rest).parallel_env()
            self.env.reset(seed=0)
            self.agents = list(self.env.agents)
            self.nothing: Any = [0.0] * len(self.agents)
        else:
            if family != "gym":
                importlib.import_module(family)
            self.env = gymnasium.make(rest, disable_env_checker=True)
            spaces = self.env.action_space
            self.nothing = [0.0] * len(spaces) if isinstance(spaces, gymnasium.spaces.Tuple) else 0.0
        self._single = family == "gym"

    def sample(self) -> Any:
        """Random action of every agent in the format of the library."""
        if self._zoo:
            return {agent: self.env.action_space(agent).sample() for agent in self.agents}
        return self.env.action_space.sample()

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Starts an episode and returns the observations [n, D]."""
        return self._seen(self.env.reset(seed=seed)[0])

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool]:
        """Returns observations [n, D], rewards, and True if the episode ended."""
        seen, reward, terminated, truncated, _ = self.env.step(action)
        if self._zoo:
            return self._seen(seen), [reward[agent] for agent in self.agents], not self.env.agents
        return self._seen(seen), reward, bool(terminated or truncated)

    def advance(self, action: Any) -> None:
        """Steps and resets when an episode ended; discards the observations."""
        _, _, terminated, truncated, _ = self.env.step(action)
        if not self.env.agents if self._zoo else terminated or truncated:
            self.env.reset()

    def _seen(self, seen: Any) -> np.ndarray:
        if self._zoo:
            return np.stack([seen[agent] for agent in self.agents])
        return seen if self._single else np.stack(seen)

    def close(self) -> None:
        self.env.close()


class Piped:
    """`num_envs` environments in `processes` processes."""

    def __init__(self, name: str, num_envs: int, processes: int):
        context = get_context("fork")
        self._shares = [len(share) for share in np.array_split(np.arange(num_envs), processes)]
        pairs = [context.Pipe() for _ in self._shares]
        self._lines = [mine for mine, _ in pairs]
        self._processes = [
            context.Process(target=_serve, args=(theirs, name, share), daemon=True)
            for (_, theirs), share in zip(pairs, self._shares, strict=True)
        ]
        for process in self._processes:
            process.start()
        for line in self._lines:
            line.recv()

    def step(self, actions: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps every environment: observations [B, n, D], rewards [B, ..], done [B]."""
        at = 0
        for line, share in zip(self._lines, self._shares, strict=True):
            line.send(actions[at : at + share])
            at += share
        seen, reward, ended = zip(*(result for line in self._lines for result in line.recv()), strict=True)
        return np.stack(seen), np.array(reward), np.array(ended)

    def close(self) -> None:
        for line in self._lines:
            line.send(None)
        for process in self._processes:
            process.join()


def _serve(line: Connection, name: str, num_envs: int) -> None:
    games = [Game(name) for _ in range(num_envs)]
    for k, game in enumerate(games):
        game.reset(k)
    ends = [False] * num_envs
    line.send("ready")
    while (actions := line.recv()) is not None:
        results = []
        for k, (game, action) in enumerate(zip(games, actions, strict=True)):
            results.append((game.reset(), game.nothing, False) if ends[k] else game.step(action))
            ends[k] = results[-1][2]
        line.send(results)

"""Environments with PyMARL's interface, and factories of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.envs.external.multi_agent_export import MultiAgentWorld


def battle(limit: int = 60) -> MultiAgentWorld:
    return MultiAgentWorld("skirmish/3m", episode_limit=limit)


def spread() -> MultiAgentWorld:
    return MultiAgentWorld("particle/simple_spread")


class Patrol:
    """Two agents observe their position and the time; action 1 moves forward, and an agent at position 3 is dead.
    Not a subclass of PyMARL's classes.

    Args:
        seed: Can only be set at construction.
        form: Number of values that `step` returns.
        ends: Length of an episode.
        truncates: Episodes end by truncation.
        own: Individual rewards.
        fault: A violation of the interface.
    """

    seeds: list[int | None] = []  # noqa: RUF012

    def __init__(
        self,
        seed: int | None = None,
        form: int = 3,
        ends: int = 5,
        truncates: bool = False,
        own: bool = False,
        fault: str = "",
    ):
        self.form, self.ends, self.truncates, self.own = form, ends, truncates, own
        self.fault, self.random, self.closed = fault, np.random.default_rng(seed), False
        self.n_agents, self.given = 2, []
        self.force_restarts, self.difficulty = 0, 7
        Patrol.seeds.append(seed)

    def get_env_info(self) -> dict[str, Any]:
        info = {"n_agents": 2, "n_actions": 3, "obs_shape": 2, "state_shape": 3, "episode_limit": 20}
        return {} if self.fault == "nothing" else info | {"map_name": "yard"}

    def reset(self) -> None:
        self.now, self.place = 0, [0, 0]
        self.number = float(self.random.integers(1000))

    def step(self, actions: list[int]) -> tuple[Any, ...]:
        for i, action in enumerate(actions):
            assert type(action) is int
            assert self.get_avail_actions()[i][action], f"agent {i} cannot do {action}"
            self.place[i] += action == 1
        self.given.append(list(actions))
        self.now += 1
        over = self.now >= self.ends or all(place >= 3 for place in self.place)
        reward = [1.0, 2.0] if self.own else 3.0
        info: dict[str, Any] = {"battle_won": over, "moved": sum(actions), "note": "none"}
        if self.form == 5:
            return None, reward, over and not self.truncates, over and self.truncates, info
        if self.truncates and over:
            info["TimeLimit.truncated" if self.fault == "gymnasium" else "episode_limit"] = True
        if self.fault == "infos":
            return reward, over, [info, info]
        return (reward, over, info) if self.form == 3 else (None, None, reward, over)

    def get_obs(self) -> list[np.ndarray]:
        seen = [np.array([place + 1, self.now + 1]) * (place < 3) for place in self.place]
        return seen[:1] if self.fault == "obs" else seen

    def get_obs_agent(self, agent: int) -> np.ndarray:
        return self.get_obs()[agent]

    def get_state(self) -> np.ndarray:
        return np.array([*self.place, self.number])

    def get_avail_actions(self) -> list[list[int]]:
        rows = [[0, 1, 1] if place < 3 else [1, 0, 0] for place in self.place]
        return [row[:2] for row in rows] if self.fault == "mask" else rows

    def save_replay(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

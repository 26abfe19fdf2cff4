"""Cooperation across roles with different spaces: the reward of the scout's choice goes to others."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv


class Relay:
    """One-step episodes with PettingZoo's parallel interface.

    If `scout_0` chooses 1, `carrier_0` earns 2 and `carrier_1` earns 1. `medic_0` and the scout earn nothing.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    possible_agents = ["scout_0", "carrier_0", "carrier_1", "medic_0"]  # noqa: RUF012

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, ({"scout_0": 2, "medic_0": 3}.get(agent, 4),), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete({"scout_0": 2, "medic_0": 4}.get(agent, 3))

    def state(self) -> np.ndarray:
        return np.ones(5, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        return self._all(lambda agent: self._observation(agent)), self._all(lambda agent: {})

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        found = int(actions["scout_0"] == 1)
        earned = {"carrier_0": 2.0 * found, "carrier_1": 1.0 * found}
        self.agents = []
        observations = self._all(self._observation)
        return observations, self._all(lambda a: earned.get(a, 0.0)), self._all(bool), self._all(lambda a: False), {}

    def close(self) -> None:
        pass

    def _observation(self, agent: str) -> np.ndarray:
        shape = self.observation_space(agent).shape
        assert shape is not None
        return np.full(shape, 0.5, np.float32)

    def _all(self, value: Any) -> dict[str, Any]:
        return {agent: value(agent) for agent in self.possible_agents}


class Turns(AECEnv):
    """A scout and a carrier that act in turn, once each; the carrier earns 1 if the scout chose 1."""

    metadata: dict[str, Any] = {"name": "turns", "render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["scout_0", "carrier_0"]

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (2 if agent == "scout_0" else 3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def observe(self, agent: str) -> np.ndarray:
        shape = self.observation_space(agent).shape
        assert shape is not None
        return np.ones(shape, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection, self._choice = "scout_0", 0

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            return self._was_dead_step(action)
        if self.agent_selection == "scout_0":
            self._choice, self.agent_selection = int(action), "carrier_0"
            return None
        self.rewards["carrier_0"] = float(self._choice)
        self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = "scout_0"
        self._accumulate_rewards()
        return None


class Squad:
    """Two agents with PyMARL's interface, each with a reward of its own."""

    def get_env_info(self) -> dict[str, Any]:
        return {"n_agents": 2, "n_actions": 2, "obs_shape": 1, "state_shape": 1, "episode_limit": 3}

    def reset(self) -> tuple[Any, Any]:
        self.now = 0
        return self.get_obs(), self.get_state()

    def step(self, actions: Any) -> tuple[Any, bool, dict[str, Any]]:
        self.now += 1
        return [1.0, 0.0], self.now == 3, {}

    def get_obs(self) -> list[np.ndarray]:
        return [np.ones(1, np.float32)] * 2

    def get_state(self) -> np.ndarray:
        return np.ones(1, np.float32)

    def get_avail_actions(self) -> list[list[int]]:
        return [[1, 1]] * 2

    def close(self) -> None:
        pass

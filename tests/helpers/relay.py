"""Cooperation across roles with different spaces: the reward of the scout's choice goes to others."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


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

"""External environments with parameters, which are part of observations and rewards."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pettingzoo_worlds import Isle

CREATED: list[dict[str, float]] = []
"""Arguments of constructors, one entry per environment created."""


class Slope(gymnasium.Env):
    """Takes parameters by `set_parameters`; observes [tilt, grip, random number], reward tilt, 3 steps."""

    observation_space = spaces.Box(-100, 100, (3,))
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.parameters = {"tilt": 1.0, "grip": 0.5}
        self._next = dict(self.parameters)

    def set_parameters(self, values: dict[str, float]) -> None:
        if values.get("grip", 0) < 0:
            raise ValueError("grip cannot be below 0")
        self._next |= values

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.now, self.age = dict(self._next), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        return self._obs(), self.now["tilt"], False, self.age == 3, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.now["tilt"], self.now["grip"], self.np_random.random()], np.float32)


def slope() -> gymnasium.Env:
    return Slope()


class Ramp(gymnasium.Env):
    """Takes `tilt`, `name` and `size` in its constructor; `size` is that of the observation; 3 steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, tilt: float, name: str, size: int):
        CREATED.append({"tilt": tilt})
        self.tilt, self.word = tilt, name
        self.observation_space = spaces.Box(-100, 100, (size,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        return self._obs(), self.tilt, False, self.age == 3, {}

    def _obs(self) -> np.ndarray:
        obs = np.full(self.observation_space.shape or (), self.tilt, np.float32)
        obs[-1], obs[-2] = self.np_random.random(), len(self.word)
        return obs


def ramp(tilt: float = 1.0, name: str = "hill", size: int = 3) -> gymnasium.Env:
    return Ramp(tilt, name, size)


class Tide(Isle):
    """A PettingZoo environment that takes any parameter and adds `height` to the rewards."""

    height = 0.0

    def set_parameters(self, values: dict[str, float]) -> None:
        self.height = values["height"]

    def step(self, actions: dict[Any, Any]) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: reward + self.height for agent, reward in rewards.items()}, *rest


def tide() -> Tide:
    return Tide()

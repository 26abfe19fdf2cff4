"""An environment with the faults that `coterie diagnose` finds, each switched on by a parameter."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from coterie.envs.contract.vector import VectorEnv
from coterie.envs.make import make as make_env


class SickWorld(gymnasium.Env):
    """Rewards the action that is the sign of the first of three random numbers; the fourth is the time left.

    It is learned within 5,000 steps.
    """

    def __init__(
        self, reward: float, scale: float, sleep: float, length: int, actions: int, alternate: bool, noise: float
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self._reward, self._scale, self._sleep, self._length = reward, scale, sleep, length
        self._alternate, self._noise = alternate, noise

    def set_parameters(self, values: dict[str, float]) -> None:
        self._reward = values["reward"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._time, self._last = 0, -1
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._sleep:
            time.sleep(self._sleep)
        self._time += 1
        right = action != self._last if self._alternate else bool(action) == (self._features[0] > 0)
        self._last = action
        reward = self._reward * float(right) + self._noise * self.np_random.normal()
        return self._observe(), reward, self._time == self._length, False, {}

    def _observe(self) -> np.ndarray:
        self._features = self.np_random.uniform(-1, 1, 4)
        if self._length:  # the time left, on which the return depends
            self._features[3] = 1 - 2 * self._time / self._length
        shown = np.zeros(4) if self._alternate else self._features * self._scale
        return shown.astype(np.float32)


def make(
    reward: float = 1.0,
    scale: float = 1.0,
    sleep: float = 0.0,
    length: int = 10,
    actions: int = 2,
    alternate: bool = False,
    noise: float = 0.0,
) -> gymnasium.Env:
    """Creates the environment.

    Args:
        reward: Reward of a right action.
        scale: Factor of the observations.
        sleep: Seconds per step.
        length: Steps of an episode; 0: it never ends.
        actions: Number of actions.
        alternate: Reward an action that differs from the last one instead, and show nothing.
        noise: Standard deviation of noise on rewards.
    """
    return SickWorld(reward, scale, sleep, length, actions, alternate, noise)


def reference(num_envs: int, seed: int, device: torch.device) -> VectorEnv:
    """Creates particle/simple_reference, which truncates episodes after 25 steps, without declaring that limit."""
    env = make_env("particle/simple_reference", num_envs=num_envs, seed=seed, device=device)
    env.spec = dataclasses.replace(env.spec, episode_limit=None)
    return env

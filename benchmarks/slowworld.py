"""Gymnasium environment with a configurable step time. Importing the module registers it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Slow(gymnasium.Env):
    """A step takes `ms` milliseconds of CPU time or, with `waits`, of sleep (as if waiting for another process)."""

    observation_space = gymnasium.spaces.Box(-1, 1, (64,), np.float32)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self, ms: float = 1.0, waits: bool = False):
        self._seconds, self._waits, self._age = ms / 1000, waits, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._age = 0
        return np.zeros(64, np.float32), {}

    def step(self, action: Any) -> Any:
        self._age += 1
        if self._waits:
            time.sleep(self._seconds)
        else:
            until = time.thread_time() + self._seconds
            while time.thread_time() < until:
                pass
        return np.full(64, self._age / 200, np.float32), 1.0, self._age >= 200, False, {}


gymnasium.register("Slow-v0", Slow)  # pyright: ignore[reportArgumentType]

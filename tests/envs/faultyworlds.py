"""Environments of gymnasium's kind that fail in every way, for the tests of workers. Importing registers them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Counting(gymnasium.Env):
    """Shows its own number, its episode and its age; pays the age; ends after `length` steps, by the task or not.

    Fails in the way `fault` at age 3 of its episode number `episode` and later ones: the first copy of all processes
    that comes to it, which makes the file `once` then; without the name of a file always.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 6, fault: str = "", once: str = "", episode: int = 1):
        self.length, self.fault, self._once, self._from = length, fault, once, episode
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._age = 0
        self._episode += 1
        self._number = float(self.np_random.random())
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._age += 1
        seen = self._fail(self._seen()) if self._age == 3 and self.fault and self._due() else self._seen()
        return seen, float(self._age), self._age == self.length, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._number, self._episode, self._age])

    def _due(self) -> bool:
        if self._episode < self._from or not self._once:
            return self._episode >= self._from
        try:
            Path(self._once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _fail(self, seen: np.ndarray) -> np.ndarray:
        if self.fault == "exits":
            os._exit(7)
        if self.fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hangs":
            time.sleep(600)
        if self.fault == "raises":
            raise ZeroDivisionError("the ball has no weight")
        return {"nan": seen * np.nan, "shape": np.zeros(5)}[self.fault]


gymnasium.register("Counting-v0", Counting)

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

    Fails in the way `fault`, one of FAULTS or "unpaid" (a reward of NaN), at age 3 of its episode number `episode` and
    later ones: the first copy of all processes that comes to it, which makes the file `once` then; without the name of
    a file always.
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
        due = self._age == 3 and self.fault and self._due()
        seen = fail(self.fault, self._seen()) if due and self.fault != "unpaid" else self._seen()
        earned = np.nan if due and self.fault == "unpaid" else float(self._age)
        return seen, earned, self._age == self.length, False, {}

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


class Obedient(gymnasium.Env):
    """Shows what Counting does and pays as that; fails in the way of FAULTS that an action says, from 1 on."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self) -> None:
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._age, self._number = 0, float(self.np_random.random())
        self._episode += 1
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._age += 1
        seen = fail(FAULTS[action - 1], self._seen()) if action else self._seen()
        return seen, float(self._age), False, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._number, self._episode, self._age])


class Wide(gymnasium.Env):
    """Pictures of noise, so that a few copies show more than a message of Ray's holds."""

    observation_space = gymnasium.spaces.Box(0, 255, (100, 100, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), float(action), bool(self.np_random.random() < 0.1), False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (100, 100, 3), np.uint8)


FAULTS = ("exits", "killed", "hangs", "raises", "nan", "shape")


def fail(fault: str, seen: np.ndarray) -> np.ndarray:
    """Fails in the named way, or shows something that fails."""
    if fault == "exits":
        os._exit(7)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        time.sleep(600)
    if fault == "raises":
        raise ZeroDivisionError("the ball has no weight")
    return {"nan": seen * np.nan, "shape": np.zeros(5)}[fault]


gymnasium.register("Counting-v0", Counting)
gymnasium.register("Obedient-v0", Obedient)
gymnasium.register("Wide-v0", Wide)

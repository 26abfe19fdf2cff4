"""Gymnasium environments that fail in every way or wait, for the tests of workers. Importing registers them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Counting(gymnasium.Env):
    """Observes a random number, the episode and its step, which is the reward. Episodes terminate after `length` steps.

    Fails with `fault`, one of FAULTS, "nan_reward", "sys_exit", "interrupt" or "prints", at step 3 from its episode
    number `episode` on. With a file name `once`, only the first environment of all processes fails, and creates the
    file.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 6, fault: str = "", once: str = "", episode: int = 1):
        self.length, self.fault, self._once, self._first_episode = length, fault, once, episode
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._age = 0
        self._episode += 1
        self._id = float(self.np_random.random())
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._age += 1
        fails = self._age == 3 and self.fault and self._fails_now()
        observation = (
            fail(self.fault, self._observation()) if fails and self.fault != "nan_reward" else self._observation()
        )
        reward = np.nan if fails and self.fault == "nan_reward" else float(self._age)
        return observation, reward, self._age == self.length, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._id, self._episode, self._age])

    def _fails_now(self) -> bool:
        if self._episode < self._first_episode or not self._once:
            return self._episode >= self._first_episode
        try:
            Path(self._once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Obedient(gymnasium.Env):
    """Like Counting, but fails with the fault of FAULTS that the action selects, from 1 on."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self) -> None:
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._age, self._id = 0, float(self.np_random.random())
        self._episode += 1
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._age += 1
        observation = fail(FAULTS[action - 1], self._observation()) if action else self._observation()
        return observation, float(self._age), False, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._id, self._episode, self._age])


FAULTS = ("exits", "killed", "hangs", "raises", "nan", "shape")


def fail(fault: str, observation: np.ndarray) -> np.ndarray:
    """Fails, or returns a faulty observation."""
    if fault == "exits":
        os._exit(7)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        time.sleep(600)
    if fault == "sys_exit":
        sys.exit()
    if fault == "interrupt":
        raise KeyboardInterrupt
    if fault == "prints":
        print("printed by Python")
        os.write(1, b"written by a library\n")
        return observation
    if fault == "raises":
        raise ZeroDivisionError("the ball has no weight")
    return {"nan": observation * np.nan, "shape": np.zeros(5)}[fault]


class Patient(gymnasium.Env):
    """Environment whose action is the number of a call. A step returns when the file `folder`/<number + 1> exists,
    which the next call creates. Calls after number `last` do not wait.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(100)

    def __init__(self, folder: str = "", last: int = 99):
        self._folder, self._last = Path(folder), last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        until = time.monotonic() + 60
        while action < self._last and not (self._folder / str(action + 1)).exists():
            if time.monotonic() > until:
                raise TimeoutError(f"call {action + 1} did not come")
            time.sleep(0.002)
        return np.array([float(action)]), 1.0, False, False, {}


gymnasium.register("Counting-v0", Counting)
gymnasium.register("Obedient-v0", Obedient)
gymnasium.register("Patient-v0", Patient)  # pyright: ignore[reportArgumentType]

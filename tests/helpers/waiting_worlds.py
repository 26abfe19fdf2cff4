"""A Gymnasium environment whose steps wait for the trainer. Importing the module registers it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Patient(gymnasium.Env):
    """Environment whose action is the number of a call. A step returns when the file `folder`/<number + 1> exists,
    which the next call creates. Fails after `patience` seconds; calls after number `last` do not wait.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(100)

    def __init__(self, folder: str = "", patience: float = 60.0, last: int = 99):
        self._folder, self._patience, self._last = Path(folder), patience, last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        until = time.monotonic() + self._patience
        while action < self._last and not (self._folder / str(action + 1)).exists():
            if time.monotonic() > until:
                raise TimeoutError(f"call {action + 1} did not come")
            time.sleep(0.002)
        return np.array([float(action)]), 1.0, False, False, {}


gymnasium.register("Patient-v0", Patient)  # pyright: ignore[reportArgumentType]

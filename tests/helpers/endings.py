"""Environments whose functions do not return, or raise what no environment should raise."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from coterie.core import waiting
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract import closing
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.make import make as make_vector_env


def shorten_limits() -> None:
    waiting.NOTE_SECONDS, waiting.UNRESPONSIVE_SECONDS, closing.CLOSE_SECONDS = 0.1, 0.3, 0.5


class Stop(BaseException):
    """An exception that `except Exception` does not catch."""


class Unreadable(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def _ignore_interruptions() -> None:
    while True:
        with suppress(BaseException):
            time.sleep(1000)


def _leave_everything() -> None:
    """Starts a thread and a process that do not end, and leaves a file in a buffer until the exit."""
    file = Path("written").open("w")  # noqa: SIM115
    file.write("complete")
    atexit.register(file.close)
    _start_process()
    threading.Thread(target=time.sleep, args=(1000,), name="monitor").start()


def _start_process() -> None:
    multiprocessing.Process(target=time.sleep, args=(1000,), name="child").start()


def _start_process_and_fail() -> None:
    _start_process()
    raise RuntimeError("the ball has no weight")


def _raise(error: BaseException) -> None:
    raise error


DO: dict[str, Any] = {
    "exits": lambda: sys.exit(0),
    "stops": lambda: _raise(Stop("enough")),
    "is cancelled": lambda: _raise(asyncio.CancelledError()),
    "ends as a generator": lambda: _raise(GeneratorExit()),
    "is unreadable": lambda: _raise(Unreadable()),
    "has an unreadable key": lambda: _raise(KeyError(Unreadable())),
    "has half a character": lambda: _raise(RuntimeError("\ud800")),
    "blocks": lambda: time.sleep(1000),
    "ignores interruptions": _ignore_interruptions,
    "starts a process and fails": _start_process_and_fail,
    "leaves everything": _leave_everything,
}
"""By kind of fault, the function that has it."""


def _is_here(where: str) -> bool:
    return (where == "worker") == (multiprocessing.parent_process() is not None)


class Ending(gymnasium.Env):
    """An environment with a fault.

    Args:
        at: Function that has the fault: init, reset, step, render or close, the last only after a reset.
        kind: Kind of the fault.
        where: `trainer` or `worker`, the process that has it.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)  # so that no reset looks for action masks
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, at: str, kind: str, where: str):
        self._fault, self._time = (at, kind, where), -1
        self._run("init")

    def _run(self, name: str) -> None:
        at, kind, where = self._fault
        if name == at and _is_here(where):
            DO[kind]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._time = 0
        self._run("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        self._run("step")
        return np.zeros(2, np.float32), 1.0, self._time >= 5, False, {}

    def render(self) -> Any:
        self._run("render")
        return np.zeros((8, 8, 3), np.uint8)

    def close(self) -> None:
        if self._time >= 0:
            self._run("close")


def make(at: str = "", kind: str = "", where: str = "trainer") -> Ending:
    env = Ending(at, kind, where)
    env._run("factory")
    return env


class EndingBatch(VectorEnv):
    """A user's own batch of environments with a fault, see `Ending`."""

    def __init__(self, num_envs: int, at: str, kind: str):
        self._env, self._fault = make_vector_env("particle/simple_spread", num_envs=num_envs), (at, kind)
        self.spec, self.num_envs, self.device = self._env.spec, num_envs, torch.device("cpu")
        self._run("init")

    def _run(self, name: str) -> None:
        if name == self._fault[0]:
            DO[self._fault[1]]()

    def reset(self, seed: int | None = None) -> Timestep:
        self._run("reset")
        return self._env.reset(seed)

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        self._run("step")
        return self._env.step(action)

    def state_dict(self) -> dict[str, Any]:
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._env.load_state_dict(state)

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        self._run("render")
        return self._env.render(env_index, size)

    def close(self) -> None:
        self._run("close")


def make_batch(num_envs: int, seed: int, device: Any, at: str = "", kind: str = "") -> EndingBatch:
    env = EndingBatch(num_envs, at, kind)
    env._run("factory")
    return env

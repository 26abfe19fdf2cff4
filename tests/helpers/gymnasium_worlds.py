"""Gymnasium environments with all spaces, for the tests of the adapter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from coterie.core.types import Step, Timestep
from coterie.envs.contract.traces import random_actions
from coterie.envs.contract.vector import VectorEnv


class SampledEnv(gymnasium.Env):
    """Observations are samples of `observation`, rewards the step number; terminates after `ends` steps."""

    def __init__(self, observation: spaces.Space, action: spaces.Space, ends: int = 0):
        self.observation_space, self.action_space = copy.deepcopy(observation), action
        self.ends = ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        return self.observation_space.sample(), self.age, self.age == self.ends, False, {}


PICTURE = spaces.Box(0, 255, (6, 5, 3), np.uint8)
GRAY = spaces.Box(0, 255, (6, 5), np.uint8)
NESTED = spaces.Dict(
    {"eye": PICTURE, "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(3)})}
)


@contextmanager
def registering() -> Iterator[Callable[..., None]]:
    """Provides `gymnasium.register` and undoes it afterwards. Registrations of imported libraries stay, because they
    happen only once per process.
    """
    before: dict[str, Any] = {}

    def register(name: str, *arguments: Any, **named: Any) -> None:
        before.setdefault(name, gymnasium.registry.pop(name, None))
        gymnasium.register(name, *arguments, **named)

    try:
        yield register
    finally:
        for name, spec in before.items():
            del gymnasium.registry[name]
            if spec is not None:
                gymnasium.registry[name] = spec


@contextmanager
def registered() -> Iterator[None]:
    """Registers `Picture-v0` and others temporarily."""
    with registering() as register:

        def add(
            name: str, observation: spaces.Space, action: spaces.Space, limit: int | None = 7, **kwargs: Any
        ) -> None:
            register(
                name,
                SampledEnv,
                max_episode_steps=limit,
                kwargs={"observation": observation, "action": action, **kwargs},
            )

        two = spaces.Discrete(2)
        add("Picture-v0", PICTURE, two)
        add("Gray-v0", GRAY, two)
        add("Nested-v0", NESTED, two)
        add("Discrete-v0", spaces.Discrete(4, start=2), spaces.Discrete(3, start=5))
        add("Multi-v0", spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 4]))
        add("Tuple-v0", spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (3,))]), hybrid())
        add("Wide-v0", spaces.Box(-np.inf, np.inf, (2, 2), np.float64), uneven())
        add("Both-v0", spaces.Box(-1, 1, (1,)), two, ends=7)
        add("Endless-v0", spaces.Box(-1, 1, (1,)), two, limit=None, ends=5)
        add("Text-v0", spaces.Text(3), two)
        add("Unbounded-v0", spaces.Box(-1, 1, (1,)), spaces.Box(-np.inf, np.inf, (1,)))
        register("Gone-v0", "no_such_library.worlds:World")
        yield


def played(env: VectorEnv, steps: int, seed: int = 0) -> Iterator[tuple[Any, Step, Timestep]]:
    """Plays random actions; the environment must have been reset or loaded."""
    generator = torch.Generator().manual_seed(seed)
    timestep = Timestep({}, {}, {}, torch.ones(env.num_envs, 1), torch.ones(env.num_envs, 1), torch.ones(env.num_envs))
    for _ in range(steps):
        action = random_actions(env.spec, timestep, generator)
        step, timestep = env.step(action)
        yield action, step, timestep


def results(env: VectorEnv, steps: int, seed: int = 0) -> list[Step | Timestep]:
    """Steps and timesteps with random actions. The environment must have been reset or loaded."""
    return [part for _, *parts in played(env, steps, seed) for part in parts]


def uneven() -> spaces.Box:
    return spaces.Box(np.array([0, -3.0]), np.array([1, 5.0]), dtype=np.float64)


def hybrid() -> spaces.Space:
    return spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(0, 10, (2,)), spaces.MultiDiscrete([2, 2])])

"""A counter that rewards its walkers for a part of the run only: `env=partial_rewards:once`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.core.types import Action, Step, Timestep
from worlds import Counter


class Once(Counter):
    """A counter whose walkers get rewards of their own from step `begin` to before step `end` only."""

    def __init__(self, num_envs: int, seed: int, device: Any, begin: int, end: int):
        super().__init__(num_envs, seed, device)
        self._begin, self._end = begin, end

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        rewards = self._begin <= self._taken < self._end
        step, timestep = super().step(action)
        return replace(step, reward=step.reward * rewards), timestep


def once(num_envs: int, seed: int, device: Any, begin: int = 12, end: int = 24) -> Once:
    """Creates environments of the counter."""
    return Once(num_envs, seed, device, begin, end)

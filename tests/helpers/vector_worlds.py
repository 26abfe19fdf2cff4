"""Gymnasium vector environments, for the tests of their adapter."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from coterie.envs.contract.vector import VectorEnv
from gymnasium_worlds import GRAY, NESTED, PICTURE, SampledEnv, hybrid, played, uneven

ANY_SPACES = {
    "Picture": (PICTURE, spaces.Discrete(2)),
    "Gray": (GRAY, spaces.Discrete(2)),
    "Nested": (NESTED, spaces.Discrete(3, start=5)),
    "Discrete": (spaces.Discrete(4, start=2), spaces.MultiDiscrete([2, 4])),
    "Multi": (spaces.MultiDiscrete([2, 3]), hybrid()),
    "Bits": (spaces.MultiBinary([2, 2]), uneven()),
    "Tuple": (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (3,))]), hybrid()),
    "Album": (spaces.Tuple([PICTURE, spaces.Box(-1, 1, (2, 2), np.float64)]), spaces.Box(-1, 1, (2,), np.float64)),
}
"""Observation and action spaces by name."""


def length(number: Any, index: Any) -> Any:
    """Length of an episode of a `Diary`."""
    return 2 + (3 * number + index) % 4


class Diary(gymnasium.vector.VectorEnv):
    """Observations are [number of the episode, its age, index of the environment]. Even episodes terminate and odd ones
    are truncated, after `length` steps unless `endless`. Rewards are 100 times the number plus the age.

    Attributes:
        heeds: `reset_mask` is honored.
        final: Format of last observations.
        seen: Actions of all environments.
    """

    def __init__(
        self,
        num_envs: int,
        mode: str = "NextStep",
        heeds: bool = True,
        final: str = "list",
        endless: bool = False,
    ):
        self.num_envs, self.mode, self.heeds, self.final, self.endless = num_envs, mode, heeds, final, endless
        self.metadata = {} if mode == "undeclared" else {"autoreset_mode": AutoresetMode(mode)}
        self.single_observation_space = spaces.Box(0, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.index = np.arange(num_envs)
        self.number, self.age = np.zeros((2, num_envs), np.int64)
        self.over = np.zeros(num_envs, np.bool_)
        self.seen: list[np.ndarray] = []

    def show(self) -> np.ndarray:
        return np.stack([self.number, self.age, self.index], 1).astype(np.float32)

    def begin(self, who: np.ndarray) -> None:
        self.number[who] += 1
        self.age[who], self.over[who] = 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        everyone = np.ones(self.num_envs, np.bool_)
        mask = (options or {}).get("reset_mask", everyone)
        if seed is not None:
            self.number[:] = self.np_random.integers(50)
        self.begin(mask if self.heeds else everyone)
        return self.show(), {}

    def step(self, actions: np.ndarray) -> Any:
        assert self.action_space.contains(actions)
        self.seen.append(actions)
        restarted = self.over.copy() if self.mode == "NextStep" else np.zeros_like(self.over)
        assert restarted.any() or not self.over.any(), "a finished environment was stepped"
        self.age[~restarted] += 1
        ended = (self.age >= length(self.number, self.index)) & ~restarted & (not self.endless)
        reward = np.where(restarted, 0.0, 100 * self.number + self.age)
        terminated, truncated = ended & (self.number % 2 == 0), ended & (self.number % 2 == 1)
        self.over, infos = ended.copy(), {}
        if self.mode == "SameStep" and ended.any():
            last = self.show()
            if self.final == "list":
                infos["final_obs"] = np.array([None] * self.num_envs)
                for index in np.flatnonzero(ended):
                    infos["final_obs"][index] = last[index]
            elif self.final == "batch":
                infos["final_obs"] = last
            restarted = ended
        self.begin(restarted)
        if self.mode == "NextStep":
            self.over = ended.copy()
        return self.show(), reward, terminated, truncated, infos


class Counting(Diary):
    """A `Diary` that truncates episodes itself if it is given a limit."""

    def __init__(self, num_envs: int, max_episode_steps: int = 0, heeds: bool = False):
        super().__init__(num_envs, heeds=heeds, endless=True)
        self.limit = max_episode_steps

    def step(self, actions: np.ndarray) -> Any:
        seen, reward, terminated, _, infos = super().step(actions)
        truncated = (self.age >= self.limit) if self.limit else np.zeros(self.num_envs, np.bool_)
        self.over = truncated
        return seen, reward, terminated, truncated, infos


class Drawn(Diary):
    """A `Diary` that renders each environment in one color."""

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return [np.full((10, 20, 3), 40 * index, np.uint8) for index in range(self.num_envs)]


class Broken(Diary):
    """A `Diary` whose third step returns NaN rewards, a wrong shape, or raises."""

    def __init__(self, num_envs: int, fault: str = "number"):
        super().__init__(num_envs)
        self.fault = fault

    def step(self, actions: np.ndarray) -> Any:
        seen, reward, *others = super().step(actions)
        if len(self.seen) == 3:
            if self.fault == "number":
                reward[:] = np.nan
            elif self.fault == "seen":
                seen = seen[:, :2]
            elif self.fault == "raises":
                raise ZeroDivisionError("the pages have no weight")
            else:
                reward = reward[:1]
        return seen, reward, *others


def single_ones(num_envs: int, env_id: str, mode: str = "NextStep", limit: int = 9) -> SyncVectorEnv:
    """Gymnasium's loop over single environments as a vector environment."""
    makers = [lambda: gymnasium.make(env_id, max_episode_steps=limit)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


def choosing(num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    """A vector environment whose autoreset mode is a parameter."""
    return single_ones(num_envs, "CartPole-v1", autoreset_mode.value)


def any_spaces(num_envs: int, observation: spaces.Space, action: spaces.Space) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: SampledEnv(observation, action, 5)] * num_envs)


def faults(env: VectorEnv, steps: int = 60, limit: int | None = None, first_age: int = 0) -> set[str]:
    """Errors in the timesteps of a `Diary`, whose observations determine all other values."""
    found, timestep = set(), env.reset()
    before = timestep.obs["agent"][:, 0].long()
    closing, episodes = torch.zeros(env.num_envs, dtype=torch.bool), 0
    for _, step, timestep in played(env, steps):
        number, age, index = timestep.obs["agent"][:, 0].long().unbind(-1)
        acted, last = ~closing, length(before[:, 0], index)
        crossed = acted & ((number != before[:, 0]) | (age != before[:, 1] + 1))
        if crossed.any():
            found.add("a transition crosses a reset")
        if (closing & ((age != first_age) | (number == before[:, 0]) | ~timestep.first[:, 0])).any():
            found.add("an episode does not start with its first timestep")
        if (timestep.first[:, 0] & acted).any():
            found.add("an episode starts in the middle")
        if not torch.equal(step.reward[:, 0], torch.where(acted, 100 * number + age, 0).float()):
            found.add("rewards")
        if limit is None:
            ended, odd = acted & (age == last), number % 2 == 1
        else:
            ended, odd = acted & (age >= limit), torch.ones_like(acted)
        if not torch.equal(step.episode_terminated, ended & ~odd):
            found.add("terminated")
        if not torch.equal(step.episode_truncated, ended & odd):
            found.add("truncated")
        if not torch.equal(timestep.acted, ~ended):
            found.add("acted")
        before, closing, episodes = timestep.obs["agent"][:, 0].long(), ended, episodes + int((~timestep.acted).sum())
    assert episodes > 10
    return found

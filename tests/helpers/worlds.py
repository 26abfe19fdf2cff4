"""An environment with known rewards, and optional defects: `env=worlds:counter`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv


class Counter(VectorEnv):
    """Two walkers observe noise. Walker i gets the reward (i + 1) * pay per step, their group 0.5.

    Args:
        num_envs: Number of environments.
        seed: Seed of the observations.
        device: Device of the tensors.
        limit: Steps per episode.
        staggered: True if episodes of environment b have b + 1 steps.
        agents_can_die: True if walker_1 is dead from its 2nd to its 4th step.
        fill: Value of observations and rewards of dead agents and final timesteps.
        pay: Factor of the rewards.
        bonus: Additional reward of action 0.
        flaw: Value that becomes NaN in environment 2 at step `flaw_at`: obs, reward, group or state.
        flaw_at: See `flaw`.
        hang_at: Step that does not return.
        exact: True if the state can be saved.
        recalled: True if walker_1 is truncated instead of terminated, and shows its last observation.
    """

    def __init__(
        self,
        num_envs: int,
        seed: int,
        device: Any,
        limit: int = 5,
        staggered: bool = False,
        agents_can_die: bool = False,
        fill: float | str = 0.0,
        pay: float = 1.0,
        bonus: float = 0.0,
        flaw: str = "",
        flaw_at: int = -1,
        hang_at: int = -1,
        exact: bool = True,
        recalled: bool = False,
    ):
        role = RoleSpec(
            "walker", "walkers", ("walker_0", "walker_1"),
            spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(3),
        )  # fmt: skip
        self.spec = EnvSpec(
            "counter", (role,), {"global": 2}, agents_can_die=agents_can_die, has_group_reward=True, metrics=("age",),
            episode_limit=None if staggered else limit, exact_resume=exact,
        )  # fmt: skip
        self.num_envs, self.device = num_envs, torch.device(device)
        self._limit = torch.arange(num_envs) + 1 if staggered else torch.full((num_envs,), limit)
        self._pay, self._bonus, self._fill = pay, bonus, float(fill)
        self._recalled = recalled
        self._flaw, self._flaw_at, self._hang_at = flaw, flaw_at, hang_at
        self._generator = torch.Generator().manual_seed(seed)
        self._age = torch.zeros(num_envs, dtype=torch.int64)
        self._final = torch.zeros(num_envs, dtype=torch.bool)
        self._alive = torch.ones(num_envs, 2, dtype=torch.bool)
        self._taken = 0
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None = None) -> Timestep:
        self.seeds.append(seed)
        if seed is not None:
            self._generator.manual_seed(seed)
        self._age, self._final = torch.zeros_like(self._age), torch.zeros_like(self._final)
        self._alive = torch.ones_like(self._alive)
        return self._timestep(self._alive, ~self._alive)

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        if self._taken == self._hang_at:
            Path("hangs").touch()
            time.sleep(3600)
        flawed, before, final = self._taken == self._flaw_at, self._alive, self._final
        chosen = action["walker"].discrete
        assert chosen is not None
        pay = torch.tensor([1.0, 2.0]) * self._pay + self._bonus * (chosen[..., 0] == 0)
        reward = torch.where(before & ~final[:, None], pay, self._fill)
        group_reward = torch.where(final[:, None], self._fill, torch.full((self.num_envs, 1), 0.5))
        if flawed and self._flaw == "reward":
            reward[2, 1] = torch.nan
        if flawed and self._flaw == "group":
            group_reward[2, 0] = torch.inf
        self._taken += 1
        self._age = torch.where(final, 0, self._age + 1)
        ended = ~final & (self._age >= self._limit)
        self._final = ended
        self._alive = self._living()
        first = self._alive & (~before | final[:, None])
        died = before & ~self._alive & ~final[:, None] & ~ended[:, None]
        nobody = torch.zeros_like(before)
        metrics = {"age": torch.where(ended, self._age, 0).float()}
        over = ended[:, None] & before
        terminated, truncated = (nobody, died | over) if self._recalled else (died, over)
        step = Step(reward, group_reward, terminated, truncated, nobody[:, 0], ended, metrics)
        return step, self._timestep(first, truncated, flawed)

    def _living(self) -> Tensor:
        alive = torch.ones(self.num_envs, 2, dtype=torch.bool)
        if self.spec.agents_can_die:
            alive[:, 1] = (self._age < 2) | (self._age >= 4)
        return alive

    def _timestep(self, first: Tensor, truncated: Tensor, flawed: bool = False) -> Timestep:
        obs = torch.rand(self.num_envs, 2, 4, generator=self._generator)
        state = torch.stack([self._age.float(), obs[:, 0, 0]], -1)
        obs = torch.where((self._alive | truncated)[..., None], obs, self._fill)
        if flawed and self._flaw == "obs":
            obs[2, 1, 3] = torch.nan
        if flawed and self._flaw == "state":
            state[2, 0] = torch.nan
        return Timestep({"walker": obs}, {}, {"global": state}, self._alive, first, ~self._final)

    def state_dict(self) -> dict[str, Any]:
        state = {"age": self._age, "final": self._final, "alive": self._alive}
        return state | {"generator": self._generator.get_state(), "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._age, self._final, self._alive = state["age"], state["final"], state["alive"]
        self._generator.set_state(state["generator"])
        self._taken = state["taken"]

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)

    def close(self) -> None:
        pass


counter = Counter

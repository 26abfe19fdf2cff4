"""A world whose every number is known, with flaws on demand: `env=worlds:counter`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.envs.vector import VectorEnv
from coterie.types import Action, EnvSpec, RoleSpec, Row, Step


class Counter(VectorEnv):
    """Two walkers see noise; walker i earns (i + 1) x pay a step, their group 0.5, whatever they do but for `bonus`.

    limit: steps of an episode; staggered: copy b's has b + 1; mortal: walker_1 is dead from its 2nd to its 4th step;
    recalled: it is not dead but cut, and shows its last observation; fill: what stands where nobody lives or acts;
    bonus: what action 0 earns besides; flaw: what becomes NaN in copy 2 at the flaw_at-th step: obs, reward, group or
    state; hang_at: the step that does not end; exact: can be saved.
    """

    def __init__(
        self, copies: int, seed: int, device: Any, limit: int = 5, staggered: bool = False, mortal: bool = False,
        fill: float | str = 0.0, pay: float = 1.0, bonus: float = 0.0, flaw: str = "", flaw_at: int = -1,
        hang_at: int = -1, exact: bool = True, recalled: bool = False,
    ):  # fmt: skip
        role = RoleSpec(
            "walker", "walkers", ("walker_0", "walker_1"),
            spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(3),
        )  # fmt: skip
        self.spec = EnvSpec(
            "counter", (role,), {"global": 2}, mortal=mortal, paid_by_group=True, metrics=("age",),
            episode_limit=None if staggered else limit, exact_resume=exact,
        )  # fmt: skip
        self.copies, self.device = copies, torch.device(device)
        self._limit = torch.arange(copies) + 1 if staggered else torch.full((copies,), limit)
        self._pay, self._bonus, self._fill = pay, bonus, float(fill)
        self._recalled = recalled
        self._flaw, self._flaw_at, self._hang_at = flaw, flaw_at, hang_at
        self._generator = torch.Generator().manual_seed(seed)
        self._age = torch.zeros(copies, dtype=torch.int64)
        self._closing = torch.zeros(copies, dtype=torch.bool)
        self._alive = torch.ones(copies, 2, dtype=torch.bool)
        self._taken = 0
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None = None) -> Row:
        self.seeds.append(seed)
        if seed is not None:
            self._generator.manual_seed(seed)
        self._age, self._closing = torch.zeros_like(self._age), torch.zeros_like(self._closing)
        self._alive = torch.ones_like(self._alive)
        return self._row(self._alive, ~self._alive)

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        if self._taken == self._hang_at:
            Path("hangs").touch()
            time.sleep(3600)
        flawed, before, closing = self._taken == self._flaw_at, self._alive, self._closing
        chosen = action["walker"].discrete
        assert chosen is not None
        pay = torch.tensor([1.0, 2.0]) * self._pay + self._bonus * (chosen[..., 0] == 0)
        reward = torch.where(before & ~closing[:, None], pay, self._fill)
        group_reward = torch.where(closing[:, None], self._fill, torch.full((self.copies, 1), 0.5))
        if flawed and self._flaw == "reward":
            reward[2, 1] = torch.nan
        if flawed and self._flaw == "group":
            group_reward[2, 0] = torch.inf
        self._taken += 1
        self._age = torch.where(closing, 0, self._age + 1)
        ended = ~closing & (self._age >= self._limit)
        self._closing = ended
        self._alive = self._living()
        first = self._alive & (~before | closing[:, None])
        died = before & ~self._alive & ~closing[:, None] & ~ended[:, None]
        nobody = torch.zeros_like(before)
        metrics = {"age": torch.where(ended, self._age, 0).float()}
        over = ended[:, None] & before
        dead, cut = (nobody, died | over) if self._recalled else (died, over)
        step = Step(reward, group_reward, dead, cut, nobody[:, 0], ended, metrics)
        return step, self._row(first, cut, flawed)

    def _living(self) -> Tensor:
        alive = torch.ones(self.copies, 2, dtype=torch.bool)
        if self.spec.mortal:
            alive[:, 1] = (self._age < 2) | (self._age >= 4)
        return alive

    def _row(self, first: Tensor, cut: Tensor, flawed: bool = False) -> Row:
        obs = torch.rand(self.copies, 2, 4, generator=self._generator)
        state = torch.stack([self._age.float(), obs[:, 0, 0]], -1)
        obs = torch.where((self._alive | cut)[..., None], obs, self._fill)
        if flawed and self._flaw == "obs":
            obs[2, 1, 3] = torch.nan
        if flawed and self._flaw == "state":
            state[2, 0] = torch.nan
        return Row({"walker": obs}, {}, {"global": state}, self._alive, first, ~self._closing)

    def state_dict(self) -> dict[str, Any]:
        state = {"age": self._age, "closing": self._closing, "alive": self._alive}
        return state | {"generator": self._generator.get_state(), "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._age, self._closing, self._alive = state["age"], state["closing"], state["alive"]
        self._generator.set_state(state["generator"])
        self._taken = state["taken"]

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)

    def close(self) -> None:
        pass


counter = Counter

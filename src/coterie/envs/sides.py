"""A game of two equal sides in which a team plays the first side in some copies and the second in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.envs.vector import VectorEnv
from coterie.types import Action, EnvSpec, Row, Step, Tree, tree_map


class Sides(VectorEnv):
    """The copies of `env` with the two groups' parts exchanged in every other copy.

    Roles of the groups have equal spaces, pair by pair in their order. Whoever acts as the first group plays its side
    in even copies and the second group's in odd ones; what it sees, earns and is told is that side's. A state of a
    group is exchanged with it; a global one stays.
    """

    def __init__(self, env: VectorEnv):
        self._env, self.spec = env, env.spec
        self.copies, self.device = env.copies, env.device
        self._flip = torch.arange(env.copies, device=env.device) % 2 == 1
        self._roles, self._groups, agents = _pairs(env.spec)
        self._agents = torch.tensor(agents, device=env.device)
        self._metrics = _metric_pairs(env.spec)

    def reset(self, seed: int | None = None) -> Row:
        return self._row(self._env.reset(seed))

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        step, row = self._env.step(self._exchanged(action, self._roles))
        return self._step(step), self._row(row)

    def _exchanged(self, by_name: dict[str, Tree], other: dict[str, str]) -> dict[str, Tree]:
        """Entries of a dict with those of their counterparts where sides are exchanged."""
        return {
            name: tree_map(self._pick, by_name[other[name]], x)
            if other.get(name, name) != name and other[name] in by_name
            else x
            for name, x in by_name.items()
        }

    def _pick(self, theirs: Tensor, mine: Tensor) -> Tensor:
        return torch.where(self._flip.view(-1, *[1] * (mine.ndim - 1)), theirs, mine)

    def _by_agent(self, x: Tensor) -> Tensor:
        """[B, N] with the sides' agents exchanged."""
        return self._pick(x[:, self._agents], x)

    def _row(self, row: Row) -> Row:
        return replace(
            row,
            obs=self._exchanged(row.obs, self._roles),
            action_mask=self._exchanged(row.action_mask, self._roles),
            state=self._exchanged(row.state, self._groups),
            alive=self._by_agent(row.alive),
            first=self._by_agent(row.first),
        )

    def _step(self, step: Step) -> Step:
        return replace(
            step,
            reward=self._by_agent(step.reward),
            group_reward=self._pick(step.group_reward.flip(1), step.group_reward),
            terminated=self._by_agent(step.terminated),
            truncated=self._by_agent(step.truncated),
            metrics=self._exchanged(step.metrics, self._metrics),
        )

    def state_dict(self) -> dict[str, Any]:
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._env.load_state_dict(state)

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        return self._env.render(copy, size)

    def close(self) -> None:
        self._env.close()


def _pairs(spec: EnvSpec) -> tuple[dict[str, str], dict[str, str], list[int]]:
    """Every role's counterpart, every group's, and every agent's place."""
    first, second = spec.groups
    mine = [role.name for role in spec.roles if role.group == first]
    theirs = [role.name for role in spec.roles if role.group == second]
    roles = dict(zip(mine + theirs, theirs + mine, strict=True))
    slices = spec.role_slices()
    agents = [i for role in spec.roles for i in range(slices[roles[role.name]].start, slices[roles[role.name]].stop)]
    return roles, {first: second, second: first}, agents


def _metric_pairs(spec: EnvSpec) -> dict[str, str]:
    """Counterparts of metrics that begin with a group's name and exist for both."""
    first, second = spec.groups
    pairs: dict[str, str] = {}
    for name in spec.metrics:
        if name.startswith(f"{first}_") and (other := f"{second}_" + name.removeprefix(f"{first}_")) in spec.metrics:
            pairs |= {name: other, other: name}
    return pairs

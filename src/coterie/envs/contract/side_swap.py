"""A symmetric two-sided game in which a team plays the first side in some environments, the second in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.specs import EnvSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv


class SideSwapEnv(VectorEnv):
    """Swaps the two groups in every other environment of `env`.

    The roles of the two groups have pairwise equal spaces, in their order. The first group's team plays its own side in
    even environments and the second group's side in odd ones, with that side's observations, rewards, metrics and group
    state. A global state is not swapped.

    Args:
        env: An environment with two symmetric groups (`spec.symmetric`).
        first_index: Index of its first environment among those of all ranks.
    """

    def __init__(self, env: VectorEnv, first_index: int = 0):
        self._env, self.spec, self.limits_close = env, env.spec, env.limits_close
        self.num_envs, self.device = env.num_envs, env.device
        self._swapped = torch.arange(first_index, first_index + env.num_envs, device=env.device) % 2 == 1
        self._roles, self._groups, agents = _counterparts(env.spec)
        self._agents = torch.tensor(agents, device=env.device)
        self._metrics = _metric_counterparts(env.spec)

    def reset(self, seed: int | None = None) -> Timestep:
        return self._swap_timestep(self._env.reset(seed))

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        step, timestep = self._env.step(self._swap_entries(action, self._roles))
        return self._swap_step(step), self._swap_timestep(timestep)

    def _swap_entries(self, by_name: dict[str, Tree], counterpart: dict[str, str]) -> dict[str, Tree]:
        """Replaces entries of a dictionary by their counterparts' where sides are swapped."""
        return {
            name: tree_map(self._select, by_name[counterpart[name]], x)
            if counterpart.get(name, name) != name and counterpart[name] in by_name
            else x
            for name, x in by_name.items()
        }

    def _select(self, other: Tensor, own: Tensor) -> Tensor:
        return torch.where(self._swapped.view(-1, *[1] * (own.ndim - 1)), other, own)

    def _swap_agents(self, x: Tensor) -> Tensor:
        """[B, N] with the agents of the two sides swapped."""
        return self._select(x[:, self._agents], x)

    def _swap_timestep(self, timestep: Timestep) -> Timestep:
        return replace(
            timestep,
            obs=self._swap_entries(timestep.obs, self._roles),
            action_mask=self._swap_entries(timestep.action_mask, self._roles),
            state=self._swap_entries(timestep.state, self._groups),
            alive=self._swap_agents(timestep.alive),
            first=self._swap_agents(timestep.first),
        )

    def _swap_step(self, step: Step) -> Step:
        return replace(
            step,
            reward=self._swap_agents(step.reward),
            group_reward=self._select(step.group_reward.flip(1), step.group_reward),
            terminated=self._swap_agents(step.terminated),
            truncated=self._swap_agents(step.truncated),
            metrics=self._swap_entries(step.metrics, self._metrics),
        )

    def state_dict(self) -> dict[str, Any]:
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._env.load_state_dict(state)

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        return self._env.render(env_index, size)

    def close(self) -> None:
        self._env.close()


def _counterparts(spec: EnvSpec) -> tuple[dict[str, str], dict[str, str], list[int]]:
    """The counterpart of every role, every group and every agent (as an index)."""
    first, second = spec.groups
    first_roles = [role.name for role in spec.roles if role.group == first]
    second_roles = [role.name for role in spec.roles if role.group == second]
    roles = dict(zip(first_roles + second_roles, second_roles + first_roles, strict=True))
    slices = spec.role_slices()
    agents = [i for role in spec.roles for i in range(slices[roles[role.name]].start, slices[roles[role.name]].stop)]
    return roles, {first: second, second: first}, agents


def _metric_counterparts(spec: EnvSpec) -> dict[str, str]:
    """Pairs of metrics that begin with a group's name and exist for both groups."""
    first, second = spec.groups
    pairs: dict[str, str] = {}
    for name in spec.metrics:
        if name.startswith(f"{first}_") and (other := f"{second}_" + name.removeprefix(f"{first}_")) in spec.metrics:
            pairs |= {name: other, other: name}
    return pairs

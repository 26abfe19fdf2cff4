"""Worlds and changes of rollouts for checks that compare the bits of updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, Rollout
from coterie.envs.worlds.world import Observation, Outcome, State, World

SPACES: dict[str, Callable[[], spaces.Space]] = {
    "discrete": lambda: spaces.Discrete(3),
    "continuous": lambda: spaces.Box(-1.0, 1.0, (2,)),
    "multi_discrete": lambda: spaces.MultiDiscrete([3, 2]),
    "hybrid": lambda: spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,))]),
}
"""Action space of each kind."""


@final
class ShortEpisodes(World):
    """Episodes of a few steps with observations and rewards that differ everywhere.

    Args:
        kind: Kind of the actions, a key of `SPACES`.
        agents: Number of agents.
        length: Steps per episode.
        truncates: Episodes are truncated at their end instead of terminated.
        masks: A choice is masked in half of the timesteps.
        dying: The first agent dies in the first step, the others in the second one. The episode continues.
    """

    def __init__(
        self,
        kind: str,
        agents: int,
        *,
        length: int = 3,
        truncates: bool = False,
        masks: bool = False,
        dying: bool = False,
    ):
        self._length, self._truncates, self._masks, self._dying = length, truncates, masks, dying
        names = tuple(f"agent_{i}" for i in range(agents))
        role = RoleSpec("agent", "agent", names, spaces.Box(-2.0, 2.0, (3,)), SPACES[kind]())
        self._agents, self._choices = agents, role.action.mask_size
        self.reset_noise_size = agents
        limit = length if truncates else None
        self.spec = EnvSpec("short", (role,), {"global": 3 * agents}, agents_can_die=dying, episode_limit=limit)

    def reset(self, noise: Tensor) -> State:
        return {"x": noise, "age": torch.zeros(len(noise), dtype=torch.int64)}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        own, x, age = action["agent"], state["x"], state["age"] + 1
        reward = x.clone()
        if own.discrete is not None:
            reward = reward + own.discrete.float().mean(-1) * (x - 0.5)
        if own.continuous is not None:
            reward = reward + own.continuous.mean(-1) * (x - 0.5)
        dies = torch.zeros_like(x, dtype=torch.bool)
        if self._dying:
            dies[:, 0], dies[:, 1:] = age == 1, (age == 2)[:, None]
        terminated = None if self._truncates else age >= self._length
        return {"x": (x + 0.37) % 1.0, "age": age}, Outcome(reward, terminated=terminated, agent_terminated=dies)

    def observe(self, state: State) -> Observation:
        x, age = state["x"], state["age"][:, None].expand(state["x"].shape)
        obs = torch.stack([x, (age % 2).float(), 1 - x], -1)
        alive = torch.ones(x.shape, dtype=torch.bool)
        if self._dying:
            alive[:, 0], alive[:, 1:] = state["age"] == 0, (state["age"] < 2)[:, None]
            obs = obs * alive[..., None]
        masks = {}
        if self._masks:
            mask = torch.ones(*x.shape, self._choices, dtype=torch.bool)
            mask[..., 0] = (x > 0.5) | ~alive
            masks["agent"] = mask
        return Observation({"agent": obs}, masks, {"global": obs.flatten(1)}, alive if self._dying else None)

    def render(self, state: State, size: int) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)


Change = Callable[[Rollout], Rollout]


def after_final(rollout: Rollout) -> Tensor:
    """Returns [T + 1, B] bool, True after the first final timestep of each environment."""
    ended = (~rollout.acted).cumsum(0) > 0
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def before_final(rollout: Rollout) -> Tensor:
    """Returns [T + 1, B] bool, True until the first final timestep of each environment, which is included."""
    return ~after_final(rollout)


def unused(rollout: Rollout, places: Tensor) -> Rollout:
    """Returns the rollout as if nobody acted at `places` [T + 1, B]: nothing there is to be learned from."""
    keep = ~places
    steps = keep[:-1]
    return replace(
        rollout,
        acted=rollout.acted & keep,
        reward=rollout.reward * steps[..., None],
        group_reward=rollout.group_reward * steps[..., None],
        terminated=rollout.terminated & steps[..., None],
        truncated=rollout.truncated & steps[..., None],
        episode_terminated=rollout.episode_terminated & steps,
        episode_truncated=rollout.episode_truncated & steps,
    )


def with_reward(rollout: Rollout, places: Tensor, value: float = 9.0) -> Rollout:
    """Returns the rollout with other rewards at `places` [T + 1, B]."""
    return replace(rollout, reward=torch.where(places[:-1, :, None], value, rollout.reward))


def with_obs(rollout: Rollout, places: Tensor) -> Rollout:
    """Returns the rollout with other observations and states at `places` [T + 1, B]."""

    def other(x: Tensor) -> Tensor:
        return torch.where(places.view(*places.shape, *[1] * (x.ndim - 2)), 1.5 - x, x)

    return replace(rollout, obs=tree_map(other, rollout.obs), state=tree_map(other, rollout.state))


def with_action(rollout: Rollout, places: Tensor) -> Rollout:
    """Returns the rollout with other actions at `places` [T, B, N], for a team of one role."""
    action: dict[str, Any] = {}
    for role, own in rollout.action.items():
        discrete, continuous = own.discrete, own.continuous
        if discrete is not None:
            discrete = torch.where(places[..., None], (discrete == 0).long(), discrete)
        if continuous is not None:
            continuous = torch.where(places[..., None], 0.5 - 0.5 * continuous, continuous)
        action[role] = replace(own, discrete=discrete, continuous=continuous)
    return replace(rollout, action=action)


def with_all_choices(rollout: Rollout) -> Rollout:
    """Returns the rollout with all choices available."""
    masks: dict[str, Tree] = {name: torch.ones_like(mask) for name, mask in rollout.action_mask.items()}
    return replace(rollout, action_mask=masks)

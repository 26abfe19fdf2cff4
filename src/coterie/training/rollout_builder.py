"""Rollouts: built from steps of the environments, masked, concatenated, and stored in checkpoints."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.specs import EnvSpec, TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, OtherTeams, Rollout, Step, Timestep
from coterie.kernels import episodes, switch


def lost_steps(steps: list[Step]) -> Tensor | None:
    """Returns where steps were lost because a worker failed, [T, B]; None if none was."""
    if all(step.lost is None for step in steps):
        return None
    none_lost = torch.zeros_like(steps[0].episode_terminated)
    return torch.stack([none_lost if step.lost is None else step.lost for step in steps])


def opponent_labels(extras: dict[str, Tree]) -> dict[str, Tensor]:
    """Returns the numbers of the opponents that acted, by team [T, B], for teams that play as one of several.

    Args:
        extras: Outputs of the policies by team [T, B, ..].
    """
    return {name: own["label"][..., 0] for name, own in extras.items() if "label" in own}


def mask_rewards(reward: Tensor, acted: Tensor, alive: Tensor | None = None) -> Tensor:
    """Zeroes rewards [T, B, ..] where no action was taken [T, B] and, if given, where an agent is dead [T, B, N]."""
    counts = acted.unsqueeze(-1)
    return torch.where(counts if alive is None else counts & alive, reward, 0.0)


def unset_lost(acted: Tensor, lost: Tensor) -> Tensor:
    """Returns `acted` [T + 1, B] with False where the step was lost: these timesteps are the last of their episodes."""
    acted = acted.clone()
    acted[:-1] &= ~lost
    return acted


def truncate_before_lost(outcome: Step, lost: Tensor, alive: Tensor) -> Step:
    """Marks the step before a lost one as truncated, unless an episode ended there or it is in another rollout."""
    before_lost = torch.cat([lost[1:], torch.zeros_like(lost[:1])])
    before_lost &= ~(outcome.episode_terminated | outcome.episode_truncated)
    return replace(
        outcome,
        episode_truncated=outcome.episode_truncated | before_lost,
        truncated=outcome.truncated | (before_lost.unsqueeze(-1) & alive & ~outcome.terminated),
    )


def steps_done(acted: Tensor, before: Tensor) -> Tensor:
    """Returns the steps of its episode before each timestep, [T + 1, B] int64.

    Args:
        acted: [T + 1, B] bool, False at the final timesteps of episodes.
        before: The same for the first timestep [B].
    """
    acted = acted[:-1]
    found = episodes.steps_done(acted, before) if switch.on else None
    if found is not None:
        return found
    count = acted.cumsum(0)
    at_last_end = torch.where(acted, -before, count).cummax(0).values
    return torch.cat([before.unsqueeze(0), count - at_last_end])


def team_rollout(
    team: TeamSpec,
    observed: Timestep,
    outcome: Step,
    *,
    actions: Tree,
    extras: Tree,
    hidden_state: Tree,
) -> Rollout:
    """Selects the team's part of T + 1 timesteps and T steps."""
    agents = slice(team.start, team.stop)
    names = [role.name for role in team.roles]
    return Rollout(
        obs={name: observed.obs[name] for name in names},
        action_mask={name: observed.action_mask[name] for name in names if name in observed.action_mask},
        state=observed.state,
        alive=observed.alive[..., agents],
        first=observed.first[..., agents],
        acted=observed.acted,
        action={name: actions[name] for name in names},
        extras=extras,
        hidden_state=hidden_state,
        reward=outcome.reward[..., agents],
        group_reward=outcome.group_reward[..., list(team.groups)],
        terminated=outcome.terminated[..., agents],
        truncated=outcome.truncated[..., agents],
        episode_terminated=outcome.episode_terminated,
        episode_truncated=outcome.episode_truncated,
    )


def stack_time(trees: list[Tree]) -> Tree:
    """Stacks trees of tensors [B, ..] to a tree of tensors [T, B, ..]. A tensor that never changes is not copied."""

    def stack(*leaves: Tensor) -> Tensor:
        first = leaves[0]
        if all(leaf is first for leaf in leaves):
            return first.clone().expand(len(leaves), *first.shape)
        return torch.stack(leaves)

    return tree_map(stack, trees[0], *trees[1:])


def stack_steps(steps: list[Step], spec: EnvSpec) -> Step:
    """Stacks steps to [T, B, ..], without metrics. Flags that all agents share are stacked once and expanded."""
    reward = torch.stack([step.reward for step in steps])
    episode_terminated = torch.stack([step.episode_terminated for step in steps])
    episode_truncated = torch.stack([step.episode_truncated for step in steps])
    if spec.agents_can_die:
        terminated = torch.stack([step.terminated for step in steps])
        truncated = torch.stack([step.truncated for step in steps])
    else:
        terminated = episode_terminated.unsqueeze(-1).expand(reward.shape)
        truncated = episode_truncated.unsqueeze(-1).expand(reward.shape)
    if spec.agents_can_die or spec.has_group_reward:
        group_reward = torch.stack([step.group_reward for step in steps])
    else:
        group_reward = steps[0].group_reward.clone().expand(len(steps), -1, -1)
    return Step(
        reward=reward,
        group_reward=group_reward,
        terminated=terminated,
        truncated=truncated,
        episode_terminated=episode_terminated,
        episode_truncated=episode_truncated,
        metrics={},
    )


def contiguous(x: Tensor) -> Tensor:
    """Returns x in the memory layout that it has after loading, since vectorized results can depend on the layout."""
    is_plain = x.is_contiguous() and x.storage_offset() == 0
    return x if is_plain else x.clone(memory_format=torch.contiguous_format)


def zero_invisible_obs(obs: dict[str, Tree], visible: Tensor, team: TeamSpec) -> dict[str, Tree]:
    """Returns the team's observations, zeroed where they do not count, so that nothing there can reach a loss."""
    if not team.agents_can_die:
        return obs
    return zero_obs(obs, visible[..., team.start : team.stop], team)


def zero_roles_obs(obs: dict[str, Tree], visible: Tensor, spec: EnvSpec) -> dict[str, Tree]:
    """Returns the observations of all roles, zeroed where `visible` [.., agents] is False."""
    return zero_obs(obs, visible, spec) if spec.agents_can_die else obs


def zero_obs(obs: dict[str, Tree], visible: Tensor, team: TeamSpec | EnvSpec) -> dict[str, Tree]:
    """Zeroes observations by role [.., n, D] where `visible` [.., N] is False."""
    zeroed, at = {}, 0
    for role in team.roles:
        own = visible[..., at : at + role.n]
        at += role.n
        zeroed[role.name] = tree_map(
            lambda x, own=own: torch.where(own.view(*own.shape, *[1] * (x.ndim - own.ndim)), x, 0), obs[role.name]
        )
    return zeroed


# --------------------------------------------------------------------------------- concatenation and checkpoints

_TIMESTEP_FIELDS = tuple(entry.name for entry in fields(Timestep))
"""Fields of a rollout that have T + 1 entries."""


def concatenate_rollouts(rollouts: list[Rollout]) -> Rollout:
    """Concatenates consecutive rollouts. The last timestep of each is the first of the next, and is kept once."""
    if len(rollouts) == 1:
        return rollouts[0]
    parts: dict[str, Any] = {}
    for entry in fields(Rollout):
        values = [getattr(rollout, entry.name) for rollout in rollouts]
        if entry.name == "hidden_state":
            parts[entry.name] = values[0]
            continue
        if entry.name in _TIMESTEP_FIELDS:
            values = [tree_map(lambda x: x[:-1], value) for value in values[:-1]] + [values[-1]]
        parts[entry.name] = tree_map(lambda *x: torch.cat(x), *values)
    return Rollout(**parts)


def rollout_to_dict(rollout: Rollout) -> dict[str, Any]:
    """Returns a rollout as nested dicts of tensors, which checkpoints can store."""
    state = {name: value for name, value in vars(rollout).items() if name != "others"}
    state["action"] = {role: vars(action) for role, action in rollout.action.items()}
    return state if rollout.others is None else state | {"others": rollout.others.to_dict()}


def rollout_from_dict(state: dict[str, Any], device: torch.device) -> Rollout:
    """Returns the rollout that `rollout_to_dict` was given."""
    values = tree_map(lambda x: x.to(device), state)
    if "others" in values:
        values["others"] = OtherTeams.from_dict(values["others"])
    return Rollout(**values | {"action": {role: Action(**action) for role, action in values["action"].items()}})

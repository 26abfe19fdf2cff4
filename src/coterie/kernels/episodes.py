"""Sums of rewards and numbers of steps of the episodes in a rollout, as one call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.kernels import native


class EndedEpisodes(NamedTuple):
    """Sums of episodes over the rewards of agents and of groups, and of their steps: K numbers, float64.

    Attributes:
        sums: Of each environment's unfinished episode [B, K].
        totals: Of the episodes that ended [E, K], by environment and time.
        env: Their environments [E] int64.
        step: The steps that ended them [E] int64.
    """

    sums: Tensor
    totals: Tensor
    env: Tensor
    step: Tensor


def sum_episodes(
    reward: Tensor, group_reward: Tensor, acted: Tensor, ended: Tensor, before: Tensor
) -> EndedEpisodes | None:
    """Continues the sums of episodes over T steps of B environments.

    Args:
        reward: [T, B, N].
        group_reward: [T, B, G].
        acted: Where a step counts [T, B] bool.
        ended: Where an episode ends [T, B] bool.
        before: Sums of the episodes that the rollout continues [B, K] float64.

    Returns:
        None if there is no kernel for the types or the device.
    """
    if native.is_traced(reward) or not native.is_supported(reward, group_reward) or not before.is_cpu:
        return None
    (steps, envs, agents), groups = reward.shape, group_reward.shape[-1]
    flags, columns, num_ended = (steps, envs), agents + groups + 1, int(ended.count_nonzero())
    native.check(
        "sum_episodes",
        ("group_reward", group_reward, reward.dtype, (*flags, groups)),
        ("acted", acted, torch.bool, flags),
        ("ended", ended, torch.bool, flags),
        ("before", before, torch.float64, (envs, columns)),
    )
    out = EndedEpisodes(
        before.new_empty(envs, columns),
        before.new_empty(num_ended, columns),
        *torch.empty(2, num_ended, dtype=torch.int64).unbind(),
    )
    inputs = [x.contiguous() for x in (reward, group_reward, acted, ended, before)]
    sizes = native.integers(steps, envs, agents, groups)
    pointers = native.pointers((inputs[-1], out.sums, out.totals)), native.pointers((out.env, out.step))
    native.call("sum_episodes", reward.dtype, sizes, *inputs[:-1], *pointers)
    return out


def steps_done(acted: Tensor, before: Tensor) -> Tensor | None:
    """Returns what `coterie.training.rollout_builder.steps_done` does, without the last timestep's flag.

    Args:
        acted: [T, B] bool, False at the final timesteps of episodes.
        before: Steps of the episode before the first timestep [B] int64.

    Returns:
        [T + 1, B] int64; None if there is no kernel for the device.
    """
    if native.is_traced(acted) or not (acted.is_cpu and before.is_cpu):
        return None
    native.check(
        "steps_done", ("acted", acted, torch.bool, acted.shape), ("before", before, torch.int64, acted.shape[1:])
    )
    found = before.new_empty(len(acted) + 1, *acted.shape[1:])
    sizes = native.integers(*acted.shape)
    native.call("steps_done", torch.float32, sizes, acted.contiguous(), before.contiguous(), found)
    return found

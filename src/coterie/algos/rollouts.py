"""Functions that updates share: masks and rewards of a rollout, sequences, minibatches, statistics and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import NonFiniteError
from coterie.core.tree import Tree, tree_map
from coterie.core.types import HiddenState, Rollout, Timestep
from coterie.math.statistics import Moments, masked_moments, update_ema_moments

_OF_TIMESTEP = frozenset(field.name for field in fields(Timestep))
"""Fields of a rollout that have T + 1 timesteps."""


def valid_mask(rollout: Rollout) -> Tensor:
    """Returns [T, B, N] bool, True where the agent was alive and acted."""
    return rollout.alive[:-1] & rollout.acted[:-1, :, None]


def agent_rewards(rollout: Rollout, membership: Tensor, has_group_reward: bool, common_reward: bool) -> Tensor:
    """Returns the reward of each agent [T, B, N]: its own plus that of its group.

    Args:
        rollout: Experience of the team.
        membership: [G, N], see `group_membership`.
        has_group_reward: True if the environment has group rewards.
        common_reward: If True, every agent receives the mean over the team.
    """
    reward = rollout.reward
    if has_group_reward:
        reward = reward + rollout.group_reward @ membership
    return reward.mean(-1, keepdim=True).expand_as(reward) if common_reward else reward


def bootstrap_masks(rollout: Rollout, centralized: bool, agents_can_die: bool) -> tuple[Tensor, Tensor]:
    """Returns where to drop the successor's value and where to end the trace of a return.

    An independent learner's return ends with its agent. The return of a centralized learner ends with the episode or
    the last agent of the team, so that rewards after an agent's death still reach its actions.

    Args:
        rollout: Experience of the team.
        centralized: True for a value function of the whole team.
        agents_can_die: True if agents can be absent or end before their episode does.

    Returns:
        terminated, boundary: [T, B, N] bool. `boundary` is also True at truncation.
    """
    if not centralized or not agents_can_die:
        return rollout.terminated, rollout.terminated | rollout.truncated | ~rollout.acted[:-1, :, None]
    all_dead = rollout.terminated.any(-1) & ~rollout.alive[1:].any(-1)
    terminated = rollout.episode_terminated | all_dead
    boundary = terminated | rollout.episode_truncated | ~rollout.acted[:-1]
    shape = rollout.terminated.shape
    return terminated.unsqueeze(-1).expand(shape), boundary.unsqueeze(-1).expand(shape)


def split_into_sequences(tree: Tree, length: int) -> Tree:
    """Splits tensors [T, B, ..] into sequences [length, S, ..], S = T / length x B, ordered by time first."""
    return tree_map(lambda x: x.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2), tree)


def as_sequences(rollout: Rollout, length: int, hidden_state: HiddenState) -> Rollout:
    """Returns the rollout as one of shorter sequences, each with the timestep after it to bootstrap from.

    Args:
        rollout: Experience [T, B, ..].
        length: Timesteps per sequence.
        hidden_state: Hidden state of the policy before each sequence, by name [S, N, ..].

    Returns:
        A rollout [length, S, ..], sequences ordered as by `split_into_sequences`.
    """
    starts = range(0, rollout.rollout_length, length)

    def overlapping(x: Tensor) -> Tensor:
        return torch.cat([x[start : start + length + 1] for start in starts], 1)

    parts = {
        name: tree_map(overlapping, value) if name in _OF_TIMESTEP else split_into_sequences(value, length)
        for name, value in vars(rollout).items()
        if name != "hidden_state"
    }
    return Rollout(**parts, hidden_state=hidden_state)


def select_envs(rollout: Rollout, indices: Tensor) -> Rollout:
    """Returns the rollout of some of its environments or sequences."""

    def select(name: str, value: Tree) -> Tree:
        env_axis = 0 if name == "hidden_state" else 1
        return tree_map(lambda x: x.index_select(env_axis, indices), value)

    return Rollout(**{name: select(name, value) for name, value in vars(rollout).items()})


def minibatch_indices(
    num_samples: int, num_minibatches: int, batch_size: int | None, shuffle: torch.Generator
) -> list[Tensor | None]:
    """Returns the sample indices of each minibatch; None stands for all samples.

    Each minibatch draws `batch_size` samples without replacement. If it is None, minibatches partition the samples.
    """
    if batch_size is not None:
        return [torch.randperm(num_samples, generator=shuffle)[:batch_size] for _ in range(num_minibatches)]
    if num_minibatches == 1:
        return [None]
    return [*_partition(torch.randperm(num_samples, generator=shuffle), num_minibatches)]


def minibatches(
    batch: Any, hidden_states: Tree | None, candidates: Tensor, num_minibatches: int, *, shuffle: torch.Generator
) -> Iterator[tuple[Any, Tree]]:
    """Yields minibatches in a new random order, each with the hidden states before it ({} without).

    Args:
        batch: Tensors [M, ..] of timesteps, or [L, M, ..] of sequences if there are hidden states.
        hidden_states: Tensors [M, ..], the hidden states before each sequence.
        candidates: Indices along M to draw from.
        num_minibatches: Number of parts.
        shuffle: Source of the random order.
    """
    sample_axis = 1 if hidden_states else 0
    order = candidates[torch.randperm(len(candidates), generator=shuffle).to(candidates.device)]
    for chosen in _partition(order, num_minibatches):
        minibatch = tree_map(lambda x, chosen=chosen: x.index_select(sample_axis, chosen), batch)
        yield minibatch, tree_map(lambda x, chosen=chosen: x.index_select(0, chosen), hidden_states or {})


def _partition(order: Tensor, count: int) -> tuple[Tensor, ...]:
    """Splits indices into `count` parts, none of them empty unless there are fewer indices."""
    chunks = order.chunk(count)  # may be fewer than asked for: 16 in 9 parts are 8 of 2
    return chunks if len(chunks) == count or len(order) < count else order.tensor_split(count)


def backward_in_time(
    length: int, num_chunks: int, step: Callable[[slice], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Trains a critic on chunks of time, from the last to the first.

    Args:
        length: Number of timesteps L.
        num_chunks: Number of chunks, at most one per timestep. Surplus timesteps go to the latest chunks.
        step: Trains on a slice of timesteps. Returns the values before the step [timesteps, ..] and a report.

    Returns:
        The values of all timesteps before the step on them [L, ..], and the mean report.
    """
    values, reports = [], []
    for chunk in torch.arange(length).flip(0).tensor_split(min(num_chunks, length)):
        value, report = step(slice(int(chunk[-1]), int(chunk[0]) + 1))
        values.append(value)
        reports.append(report)
    return torch.cat(values[::-1]), torch.stack(reports).mean(0)


def explained_variance(target: Tensor, residual: Tensor, mask: Tensor) -> Tensor:
    """Returns 1 - Var(residual) / Var(target) [] over the entries where `mask` is True; all [.., N]."""
    unexplained, total = masked_moments(residual, mask)[1], masked_moments(target, mask)[1]
    return 1 - unexplained / total.clamp(min=1e-8)


def update_value_moments(moments: Moments, target: Tensor, mask: Tensor, decay: float) -> Moments:
    """Returns the moving moments of each reward signal's returns [.., K] after those where `mask` [..] is True."""
    mean, variance = (torch.stack(x) for x in zip(*(masked_moments(x, mask) for x in target.unbind(-1)), strict=True))
    return update_ema_moments(moments, mean, variance + mean.square(), decay)


def mean_metrics(reports: Tensor, names: tuple[str, ...], team: str) -> dict[str, float]:
    """Returns the mean of each metric over the minibatches [R, names] of an update: its one read by the host.

    Raises:
        NonFiniteError: If a metric is NaN or infinite. Names the metric and the first minibatch.
    """
    metrics = dict(zip(names, reports.mean(0).tolist(), strict=True))
    non_finite = [name for name, value in metrics.items() if not abs(value) < float("inf")]
    if non_finite:
        index = int((~reports.isfinite().all(1)).nonzero()[0])
        raise NonFiniteError(
            f"team {team}: {', '.join(non_finite)} became NaN or infinite in minibatch {index} of the update. "
            "Lower algo.lr or algo.max_grad_norm."
        )
    return metrics

"""Sequences of a rollout: for recurrent networks, minibatches of sequences, and training backward in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.algos.on_policy import own_parts, random_parts
from coterie.core.errors import UserError
from coterie.core.tree import Tree, tree_map
from coterie.core.types import TIME_LEFT, Action, HiddenState, Rollout, Timestep
from coterie.ranks.ranks import ONE, Ranks

_OF_TIMESTEP = frozenset(field.name for field in fields(Timestep))
"""Fields of a rollout that have T + 1 timesteps."""


class UnrolledPolicy(Protocol):
    """A policy whose hidden states can be recomputed."""

    def unroll(
        self, obs: dict[str, Tree], first: Tensor, hidden_state: HiddenState, action: dict[str, Action]
    ) -> HiddenState:
        """Returns the hidden state after sequences.

        Args:
            obs: By role [L, M, n, ..] as networks read them.
            first: [L, M, N] bool.
            hidden_state: Before the first timestep, by name [M, ..].
            action: Actions that were taken, by role [L, M, n, ..], for policies that remember them.
        """
        ...


def sequence_length(length: int | None, rollout_length: int) -> int:
    """Returns the timesteps per training sequence, by default the whole rollout.

    Raises:
        UserError: If the rollout cannot be split into sequences of this length.
    """
    length = length or rollout_length
    if rollout_length % length:
        raise UserError(
            f"algo.sequence_length: {length} does not divide the rollout length of {rollout_length}. Choose a divisor."
        )
    return length


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


def sequence_minibatches(
    sequences: Rollout,
    num_minibatches: int,
    batch_size: int | None,
    shuffle: torch.Generator,
    *,
    num_envs: int,
    ranks: Ranks = ONE,
) -> Iterator[Rollout]:
    """Yields the minibatches of a pass over sequences as `as_sequences` returns them; arguments as below."""
    drawn = minibatch_indices(sequences.num_envs, num_minibatches, batch_size, shuffle, num_envs=num_envs, ranks=ranks)
    for indices in drawn:
        yield sequences if indices is None else select_envs(sequences, indices, ranks)


def minibatch_indices(
    num_samples: int,
    num_minibatches: int,
    batch_size: int | None,
    shuffle: torch.Generator,
    *,
    num_envs: int = 1,
    ranks: Ranks = ONE,
) -> Iterable[Tensor | None]:
    """Returns the sample indices of each minibatch; None stands for all samples.

    Each minibatch draws `batch_size` samples without replacement. If it is None, minibatches partition the samples.
    With several ranks, minibatches are drawn from the samples of all ranks, and each gets its own part of them.

    Args:
        num_samples: Samples of this rank, ordered by time first.
        num_minibatches: Number of minibatches.
        batch_size: Samples per minibatch; None: all, divided by their number.
        shuffle: Source of the random order.
        num_envs: Environments of this rank.
        ranks: Ranks that train together.
    """
    total = num_samples * ranks.size
    if batch_size is not None:
        device = shuffle.device
        orders = (torch.randperm(total, generator=shuffle, device=device) for _ in range(num_minibatches))
        drawn = [order[:batch_size] for order in orders]
    elif num_minibatches > 1:
        drawn = random_parts(torch.arange(total, device=shuffle.device), num_minibatches, shuffle)
    elif ranks.size == 1:
        return [None]
    else:
        drawn = [torch.arange(total, device=shuffle.device)]
    return [*drawn] if ranks.size == 1 else own_parts(drawn, num_envs, ranks, never_empty=True)


def select_envs(rollout: Rollout, indices: Tensor, ranks: Ranks = ONE) -> Rollout:
    """Returns the rollout of some of its environments or sequences."""

    def select(name: str, value: Tree) -> Tree:
        env_axis = 0 if name == "hidden_state" else 1
        return tree_map(lambda x: x.index_select(env_axis, indices), value)

    selected = Rollout(**{name: select(name, value) for name, value in vars(rollout).items()})
    return replace(selected, acted=torch.zeros_like(selected.acted)) if ranks.stands_in else selected


def actor_states(policy: UnrolledPolicy, obs: dict[str, Tree], rollout: Rollout, length: int) -> HiddenState:
    """Returns the actor's hidden state before each sequence [S, N, H], recomputed with its present weights.

    Args:
        policy: The policy.
        obs: Observations of the rollout as networks read them.
        rollout: Experience [T, B, ..].
        length: Timesteps per sequence.
    """
    hidden_state, before = rollout.hidden_state, []
    for start in range(0, rollout.rollout_length, length):
        before.append(hidden_state)
        if start + length < rollout.rollout_length:
            time = slice(start, start + length)
            part, action = tree_map(lambda x, time=time: x[time], (obs, rollout.action))
            hidden_state = policy.unroll(part, rollout.first[time], hidden_state, action)
    return tree_map(lambda *x: torch.cat(x), *before)


def critic_first(rollout: Rollout, centralized: bool) -> Tensor:
    """Returns where the critic's hidden state is reset [T + 1, B, N] bool, or [T + 1, B, 1] for a centralized critic.

    An independent critic resets at the first timestep of its agent, a centralized one at the first timestep of the
    episode, which follows the final timestep of the one before. What precedes the rollout is unknown: its first
    timestep is the first of an episode if all the time up to a known step limit is left. Without such a limit, it
    counts as one if all agents alive have just appeared, which misses starts with nobody alive, and mistakes for starts
    the times at which newcomers replace all others.
    """
    if not centralized:
        return rollout.first
    return torch.cat([_starts(rollout), ~rollout.acted[:-1]]).unsqueeze(-1)


def timestep_critic_first(timestep: Timestep, centralized: bool) -> Tensor:
    """Returns the same as `critic_first` for a single timestep with a leading axis of one: [1, B, N] or [1, B, 1]."""
    return _starts(timestep).unsqueeze(-1) if centralized else timestep.first


def _starts(observed: Timestep | Rollout) -> Tensor:
    """Returns [1, B] bool, True where an episode starts with the first timestep."""
    if (left := observed.state.get(TIME_LEFT)) is not None:
        return left[:1, :, 0] == 1
    first, alive = observed.first[:1], observed.alive[:1]
    return (first == alive).all(-1) & first.any(-1)


def critic_values(
    critic: Callable[..., tuple[Any, HiddenState]],
    inputs: tuple[Tree, Tree],
    first: Tensor,
    hidden_state: HiddenState,
    length: int,
) -> tuple[Any, HiddenState, HiddenState]:
    """Evaluates a recurrent critic over a rollout.

    Args:
        critic: Called as `critic(*inputs, first, hidden_state)`; returns a tree of values and the next hidden state.
        inputs: Observations by role and a second input such as the state, [T + 1, ..] each; that may be None.
        first: [T + 1, B, ..] bool, True where the hidden state is reset.
        hidden_state: Hidden state before the rollout.
        length: Timesteps per sequence.

    Returns:
        Values [T + 1, ..], the hidden state before each sequence, and the hidden state before the last timestep.
    """
    last = len(first) - 1
    values, before = [], []
    for start in range(0, last, length):
        time = slice(start, start + length)
        before.append(hidden_state)
        value, hidden_state = critic(*tree_map(lambda x, time=time: x[time], inputs), first[time], hidden_state)
        values.append(value)
    next_value, _ = critic(*tree_map(lambda x: x[last:], inputs), first[last:], hidden_state)
    values, before = (tree_map(lambda *x: torch.cat(x), *parts) for parts in ([*values, next_value], before))
    return values, before, hidden_state


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
    num_chunks, stop = min(num_chunks, length), length
    for chunk in range(num_chunks):
        start = stop - length // num_chunks - (chunk < length % num_chunks)
        value, report = step(slice(start, stop))
        values.append(value)
        reports.append(report)
        stop = start
    return torch.cat(values[::-1]), torch.stack(reports).mean(0)

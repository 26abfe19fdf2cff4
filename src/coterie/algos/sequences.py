"""Sequences of a rollout: resets of recurrent critics, and the hidden states before each sequence."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor, nn

from coterie.core.tree import Tree, tree_map
from coterie.core.types import HiddenState, Rollout, Timestep
from coterie.policies.stochastic import StochasticPolicy

_OF_TIMESTEP = frozenset(field.name for field in fields(Timestep))
"""Fields of a rollout that have T + 1 timesteps."""


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


def critic_first(rollout: Rollout, centralized: bool) -> Tensor:
    """Returns where the critic's hidden state is reset [T + 1, B, N] bool, or [T + 1, B, 1] for a centralized critic.

    An independent critic resets at the first timestep of its agent, a centralized one at the first timestep of the
    episode, which follows the final timestep of the one before. What precedes the rollout is unknown: its first
    timestep counts as the first of an episode if all agents alive have just appeared.
    """
    if not centralized:
        return rollout.first
    return torch.cat([_all_new(rollout.first[:1], rollout.alive[:1]), ~rollout.acted[:-1]]).unsqueeze(-1)


def timestep_critic_first(timestep: Timestep, centralized: bool) -> Tensor:
    """Returns the same as `critic_first` for a single timestep with a leading axis of one: [1, B, N] or [1, B, 1]."""
    return _all_new(timestep.first, timestep.alive).unsqueeze(-1) if centralized else timestep.first


def _all_new(first: Tensor, alive: Tensor) -> Tensor:
    return (first == alive).all(-1) & first.any(-1)


def actor_states(policy: StochasticPolicy, obs: dict[str, Tree], rollout: Rollout, length: int) -> HiddenState:
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
            part = tree_map(lambda x, time=time: x[time], obs)
            hidden_state = policy.unroll(part, rollout.first[time], hidden_state)
    return tree_map(lambda *x: torch.cat(x), *before)


def critic_values(
    critic: nn.Module, inputs: tuple[Tree, Tree], first: Tensor, hidden_state: HiddenState, length: int
) -> tuple[Tensor, HiddenState, HiddenState]:
    """Evaluates a recurrent critic over a rollout.

    Args:
        critic: Called as `critic(*inputs, first, hidden_state)`.
        inputs: Observations by role and the state, [T + 1, ..] each; the state may be None.
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
    return torch.cat([*values, next_value]), tree_map(lambda *x: torch.cat(x), *before), hidden_state

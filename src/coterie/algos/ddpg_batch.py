"""Data of a gradient step of DDPG."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.tree import Tree, tree_map
from coterie.core.types import HiddenState, Timestep


@dataclass(frozen=True)
class Batch:
    """S sequences of L steps, of which R timesteps are learned from.

    Attributes:
        timesteps: [L + 1, S, ..], observations normalized.
        critic_first: [L + 1, S, N or 1] bool, where the hidden state of a critic is reset; None without one.
        taken: Actions taken, vectors by role [L, S, n, P], with those of other teams that the critics read.
        reward: [L, S, N].
        terminated: [L, S, N] bool, where the successor's value is dropped.
        boundary: [L, S, N] bool, where the trace of a return ends.
        hidden_state: Hidden state of the policy before the first timestep, by name [S, N, H].
        valid: [R, S, N] bool, entries that actors learn from.
        critic_valid: [R, S, N] bool, entries that critics learn from.
        weight: [S], importance weights.
        learned: The R timesteps that are learned from; those before only warm up hidden states.
    """

    timesteps: Timestep
    critic_first: Tensor | None
    taken: dict[str, Tensor]
    reward: Tensor
    terminated: Tensor
    boundary: Tensor
    hidden_state: HiddenState
    valid: Tensor
    critic_valid: Tensor
    weight: Tensor
    learned: slice


def at(time: slice, tree: Tree) -> Tree:
    """Returns the part of tensors [T, ..] at some timesteps."""
    return tree_map(lambda x: x[time], tree)

"""What a window says to an on-policy learner: who is learned from, what is paid, where futures end, and sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.errors import UserError
from coterie.types import TeamSpec, Tree, Window, tree_map


def live(window: Window) -> Tensor:
    """[T, B, N]: the agent was there and acted."""
    return window.alive[:-1] & window.acted[:-1, :, None]


def group_members(team: TeamSpec) -> Tensor:
    """[G, N]: 1 where a group of the team holds an agent."""
    groups = list(dict.fromkeys(role.group for role in team.roles))
    owners = [groups.index(role.group) for role in team.roles for _ in role.agents]
    return torch.nn.functional.one_hot(torch.tensor(owners), len(groups)).T.float()


def paid(window: Window, members: Tensor, by_group: bool, as_team: bool) -> Tensor:
    """What every agent is paid [T, B, N]: its own reward and its group's; as_team: the mean of that over the team.

    members: of `group_members`; by_group: whether the environment pays groups at all.
    """
    reward = window.reward
    if by_group:
        reward = reward + window.group_reward @ members
    return reward.mean(-1, keepdim=True).expand_as(reward) if as_team else reward


def ends(window: Window, as_team: bool, mortal: bool) -> tuple[Tensor, Tensor]:
    """Where the value of the successor is cut off, and where the trace stops, [T, B, N].

    An independent learner's future ends with its agent; a team's (as_team) with the episode or with its last member,
    so that what the others earn later still reaches an agent that died.
    """
    if not as_team or not mortal:
        return window.terminated, window.terminated | window.truncated | ~window.acted[:-1, :, None]
    gone = window.terminated.any(-1) & ~window.alive[1:].any(-1)
    ended = window.episode_terminated | gone
    boundary = ended | window.episode_truncated | ~window.acted[:-1]
    shape = window.terminated.shape
    return ended.unsqueeze(-1).expand(shape), boundary.unsqueeze(-1).expand(shape)


def begins(window: Window, as_team: bool) -> Tensor:
    """Where a critic's memory starts anew: with its agent [T + 1, B, N], or with the copy [T + 1, B, 1] (as_team)."""
    if not as_team:
        return window.first
    return (window.first == window.alive).all(-1, keepdim=True) & window.first.any(-1, keepdim=True)


def sequences(tree: Tree, length: int) -> Tree:
    """Tensors [T, B, ..] cut into sequences [length, S, ..], S = T / length x B, pieces of one time side by side."""
    return tree_map(lambda x: x.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2), tree)


def sequence_length(wanted: int | None, horizon: int) -> int:
    """Rows of a sequence: `wanted`, or the whole window. UserError if windows cannot be cut so."""
    length = wanted or horizon
    if horizon % length:
        raise UserError(f"algo.sequence={length} does not divide the horizon of {horizon} rows: choose a divisor")
    return length


def state_name(team: TeamSpec, critic: str) -> str:
    """The state that a critic reads: the team's own if the environment shows one, else the global one."""
    for name in (*dict.fromkeys(role.group for role in team.roles), "global"):
        if name in team.state_sizes:
            return name
    raise UserError(f"algo.critic={critic} needs an environment state, and there is none here: use algo.critic=joint")

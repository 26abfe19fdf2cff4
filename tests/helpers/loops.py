"""Single timesteps of `Everything`, from which tests compute updates by loops over environments and agents."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.types import Rollout
from coterie.functional.returns import present_agents
from coterie.nets.mixers import TeamQNetwork

SIZES = (3, 3, 4)
"""Choices of the three agents of `Everything`, in its discrete kind."""


def team_ends(rollout: Rollout, t: int, b: int) -> tuple[bool, bool]:
    """Returns whether the return of the team drops the value after step t, and whether its trace ends there."""
    ended = bool((rollout.terminated | rollout.truncated)[t, b].any())
    gone = ended and not bool(rollout.alive[t + 1, b].any())
    terminated = bool(rollout.episode_terminated[t, b]) or (gone and not bool(rollout.truncated[t, b].any()))
    return terminated, terminated or gone or bool(rollout.episode_truncated[t, b]) or not bool(rollout.acted[t, b])


def team_steps(rollout: Rollout) -> list[tuple[int, int]]:
    """Returns timesteps and environments in which agents of the team act."""
    acts = rollout.acted[:-1] & rollout.alive[:-1].any(-1)
    return [(t, b) for t, b in acts.nonzero().tolist()]


def n_step(
    rollout: Rollout, t: int, b: int, *, reward: Sequence[float], next_value: Sequence[float], gamma: float, n: int
) -> float:
    """Returns the team's return of the next n rewards after t; rewards and next values are by timestep."""
    total, discount, last = 0.0, 1.0, t
    for last in range(t, min(t + n, rollout.rollout_length)):
        terminated, boundary = team_ends(rollout, last, b)
        total += discount * reward[last]
        discount *= 0.0 if terminated else gamma
        if boundary:
            break
    return total + discount * next_value[last]


def lambda_returns(
    rollout: Rollout, b: int, *, reward: Sequence[float], next_value: Sequence[float], gamma: float, td_lambda: float
) -> list[float]:
    """Returns the team's lambda-returns by timestep; rewards and next values are by timestep."""
    found, later = [], 0.0
    for t in reversed(range(rollout.rollout_length)):
        terminated, boundary = team_ends(rollout, t, b)
        trace = next_value[t] if boundary or t + 1 == rollout.rollout_length else later
        later = reward[t] + (0.0 if terminated else gamma * ((1 - td_lambda) * next_value[t] + td_lambda * trace))
        found.append(later)
    return found[::-1]


def by_agent(by_role: dict[str, Tensor], t: int, b: int) -> list[Tensor]:
    """Returns what belongs to each agent at timestep t of environment b."""
    return [*by_role["guard"][t, b], *by_role["scout"][t, b]]


def choices_of(rollout: Rollout, t: int, b: int) -> list[int]:
    """Returns the choice of each agent."""
    return [int(x) for x in by_agent({name: x.discrete[..., 0] for name, x in rollout.action.items()}, t, b)]


def joint_action(choices: Sequence[int | None]) -> Tensor:
    """Returns the one-hot choices of the agents [10]; zeros for None."""
    parts = [torch.zeros(size) for size in SIZES]
    for part, choice in zip(parts, choices, strict=True):
        if choice is not None:
            part[choice] = 1.0
    return torch.cat(parts)


def team_q(
    value: TeamQNetwork, q: list[Tensor], choices: Sequence[int], masks: list[Tensor], alive: Tensor, state: Tensor
) -> Tensor:
    """Returns Q_tot of the choices at a single timestep [], from Q-values and masks of each agent.

    Args:
        value: Q-networks with a mixer that reads a state, or none.
        q: Of each agent [A].
        choices: Of each agent.
        masks: Of each agent [A] bool.
        alive: [N] bool; the others count as zeros.
        state: [S].
    """
    assert value.mixer is not None
    taken, best = torch.zeros(1, len(q)), torch.zeros(1, len(q))
    for i in alive.nonzero().flatten().tolist():
        taken[0, i] = q[i][choices[i]]
        best[0, i] = max(float(x) for x, legal in zip(q[i], masks[i], strict=False) if legal)
    joint = joint_action([x if here else None for x, here in zip(choices, alive, strict=True)])
    return value.mixer(taken, best, state.unsqueeze(0), joint.unsqueeze(0), alive=alive.unsqueeze(0))[0]


def greedy(q: list[Tensor], masks: list[Tensor]) -> list[int]:
    """Returns the best legal choice of each agent."""
    return [int(x[: len(mask)].masked_fill(~mask, -torch.inf).argmax()) for x, mask in zip(q, masks, strict=True)]


def next_team_values(
    rollout: Rollout,
    b: int,
    *,
    value: TeamQNetwork,
    q: dict[str, Tensor],
    chosen_by: dict[str, Tensor],
    state: Tensor,
) -> list[float]:
    """Returns Q_tot of the greedy choices at the successor of each step of environment b.

    Args:
        rollout: Experience of the team.
        b: The environment.
        value: Q-networks with a mixer.
        q: Their Q-values by role [T + 1, B, n, A].
        chosen_by: Q-values by role whose greedy choices they are [T + 1, B, n, A].
        state: State that the mixer reads [T + 1, B, S].
    """
    found, present = [], present_agents(rollout)
    for t in range(1, rollout.rollout_length + 1):
        masks = by_agent(rollout.action_mask, t, b)
        choices = greedy(by_agent(chosen_by, t, b), masks)
        found.append(float(team_q(value, by_agent(q, t, b), choices, masks, present[t, b], state[t, b])))
    return found


def team_reward(rollout: Rollout, b: int) -> list[float]:
    """Returns the reward of the team by step: of its agents, and of their group once."""
    return (rollout.reward[:, b].sum(-1) + rollout.group_reward[:, b].sum(-1)).tolist()

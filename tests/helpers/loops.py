"""Single timesteps of `Everything`, from which tests compute updates by loops over environments and agents."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.types import Rollout

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

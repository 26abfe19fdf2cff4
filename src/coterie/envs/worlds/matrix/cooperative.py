"""Matrix games with a common payoff: climbing, penalty, a counterexample to monotonic mixing, coordination."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field

from coterie.envs.worlds.matrix.matrix_game import (
    CooperativeGame,
    MatrixConfig,
    MatrixGame,
    check_size,
    cooperative_game,
)


class ClimbingConfig(MatrixConfig):
    """Settings of matrix/climbing."""


@final
class Climbing(CooperativeGame):
    """The best joint action is next to the worst ones, so averaging over the other agent's choices misses it.

    The maximum payoff is 11. A policy gradient from uniform play climbs to 7, and a least-squares fit of a sum of
    individual values to 5. Source: Claus and Boutilier 1998.
    """

    Config = ClimbingConfig

    def __init__(self, config: ClimbingConfig, with_state: bool = False):
        self.config = config
        table = [[11, -30, 0], [-30, 7, 0], [0, 6, 5]]
        super().__init__(cooperative_game("climbing", table, ("0", "1", "2"), config), with_state)


class PenaltyConfig(MatrixConfig):
    """Settings of matrix/penalty."""

    k: float = Field(-100.0, ge=-(10**6), le=0)
    """Payoff for choosing different ones of the two best joint actions."""


@final
class Penalty(CooperativeGame):
    """Two best joint actions with payoff 10, a safe one with 2, and a penalty k for mixing the best ones.

    With k of -25 or less, independent learners choose the safe one. Source: Claus and Boutilier 1998.
    """

    Config = PenaltyConfig

    def __init__(self, config: PenaltyConfig, with_state: bool = False):
        self.config = config
        table = [[config.k, 0, 10], [0, 2, 0], [10, 0, config.k]]
        super().__init__(cooperative_game("penalty", table, ("0", "1", "2"), config), with_state)


class MonotonicConfig(MatrixConfig):
    """Settings of matrix/monotonic."""

    episode_limit: int = Field(1, ge=1, le=10**9)
    """Rounds per episode."""


@final
class Monotonic(CooperativeGame):
    """A table that no monotonic mixing of individual values represents: 8 between penalties, 0 for safe choices.

    On uniform data, sums and monotonic mixers both prefer a joint action with payoff 0. Source: Son et al. 2019.
    """

    Config = MonotonicConfig

    def __init__(self, config: MonotonicConfig, with_state: bool = False):
        self.config = config
        table = [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]
        super().__init__(cooperative_game("monotonic", table, ("0", "1", "2"), config), with_state)


class CoordinationConfig(MatrixConfig):
    """Settings of matrix/coordination."""

    episode_limit: int = Field(1, ge=1, le=10**9)
    """Rounds per episode."""
    agents: int = Field(2, ge=2, le=1000)
    """Number of agents."""
    actions: int = Field(3, ge=2, le=1000)
    """Number of choices of each agent."""
    graded: bool = False
    """Pay (a + 1) / actions instead of 1 for agreeing on choice a (from 0), so that only the last one is best."""


@final
class Coordination(CooperativeGame):
    """All agents must make the same choice; nothing indicates which one."""

    Config = CoordinationConfig

    def __init__(self, config: CoordinationConfig, with_state: bool = False):
        self.config = config
        super().__init__(_coordination_game(config), with_state)


def _coordination_game(config: CoordinationConfig) -> MatrixGame:
    check_size(config.agents, config.actions)
    table = torch.zeros([config.actions] * config.agents)
    for a in range(config.actions):
        table[(a,) * config.agents] = (a + 1) / config.actions if config.graded else 1.0
    return cooperative_game("coordination", table, tuple(str(a) for a in range(config.actions)), config)

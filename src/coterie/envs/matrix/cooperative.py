"""Matrix games with one payoff for all: climbing, penalty, the counter-example to monotonic mixing, coordination."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field

from coterie.envs.matrix.game import Cooperative, Game, MatrixConfig, check_size, cooperative_game


class ClimbingConfig(MatrixConfig):
    """Settings of matrix/climbing."""


@final
class Climbing(Cooperative):
    """The best joint action stands beside the worst: 11 is missed by who averages over the other's choices.

    A policy gradient from uniform play climbs to 7, least squares of a sum to 5. Source: Claus and Boutilier 1998.
    """

    Config = ClimbingConfig

    def __init__(self, config: ClimbingConfig, with_state: bool = False):
        self.config = config
        table = [[11, -30, 0], [-30, 7, 0], [0, 6, 5]]
        super().__init__(cooperative_game("climbing", table, ("0", "1", "2"), config), with_state)


class PenaltyConfig(MatrixConfig):
    """Settings of matrix/penalty."""

    k: float = Field(-100.0, le=0)
    """What it costs to miss each other between the two best joint actions."""


@final
class Penalty(Cooperative):
    """Two best joint actions, 10 each, a safe one of 2, and a penalty k for choosing different ones of the best.

    With k at most -25, independent learners take the safe 2. Source: Claus and Boutilier 1998.
    """

    Config = PenaltyConfig

    def __init__(self, config: PenaltyConfig, with_state: bool = False):
        self.config = config
        table = [[config.k, 0, 10], [0, 2, 0], [10, 0, config.k]]
        super().__init__(cooperative_game("penalty", table, ("0", "1", "2"), config), with_state)


class MonotonicConfig(MatrixConfig):
    """Settings of matrix/monotonic."""

    episode_limit: int = Field(1, ge=1)
    """Rounds of an episode."""


@final
class Monotonic(Cooperative):
    """The table that no monotonic mixing of single values represents: 8 between penalties, 0 for the safe choices.

    Under uniform data, sums and monotonic mixers both prefer a joint action that pays 0. Source: Son et al. 2019.
    """

    Config = MonotonicConfig

    def __init__(self, config: MonotonicConfig, with_state: bool = False):
        self.config = config
        table = [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]
        super().__init__(cooperative_game("monotonic", table, ("0", "1", "2"), config), with_state)


class CoordinationConfig(MatrixConfig):
    """Settings of matrix/coordination."""

    episode_limit: int = Field(1, ge=1)
    """Rounds of an episode."""
    agents: int = Field(2, ge=2)
    """How many have to agree."""
    actions: int = Field(3, ge=2)
    """Choices of each."""
    graded: bool = False
    """Agreeing on choice a (from 0) pays (a + 1) / actions in place of 1, so that only the last is best."""


@final
class Coordination(Cooperative):
    """All agents have to make the same choice; nothing tells which."""

    Config = CoordinationConfig

    def __init__(self, config: CoordinationConfig, with_state: bool = False):
        self.config = config
        super().__init__(_coordination(config), with_state)


def _coordination(config: CoordinationConfig) -> Game:
    check_size(config.agents, config.actions)
    table = torch.zeros([config.actions] * config.agents)
    for a in range(config.actions):
        table[(a,) * config.agents] = (a + 1) / config.actions if config.graded else 1.0
    return cooperative_game("coordination", table, tuple(str(a) for a in range(config.actions)), config)

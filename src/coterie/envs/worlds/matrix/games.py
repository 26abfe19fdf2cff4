"""Matrix games with a common payoff, and games of two players with payoffs of their own.

Common payoffs: climbing, penalty, a counterexample to monotonic mixing, coordination, and the two-step game, in which
the first agent chooses which matrix game both play.

Payoffs of their own are the literature's numbers, with their equilibria. Those of symmetric games with two choices have
their usual names: `reward` if both make the first choice, `sucker` for making it alone, `temptation` if only the other
makes it, and `punishment` if neither does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from pydantic import BaseModel, ConfigDict, Field

from coterie.envs.worlds.matrix.matrix_game import (
    BimatrixGame,
    CooperativeGame,
    MatrixConfig,
    MatrixGame,
    MixedStrategies,
    bimatrix_game,
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


class TwoStepConfig(BaseModel):
    """Settings of matrix/two_step."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    last_action: bool = False
    """Observe the choices of both agents in the previous step; zeros in the first."""


@final
class TwoStep(CooperativeGame):
    """Choice 0 of agent 0 leads to state 2A, where every payoff is 7; its choice 1 to state 2B, [[0, 1], [1, 8]].

    Agents observe which of the three states they are in. A least-squares fit of a sum of individual values estimates 2B
    at 6.5 and settles for 7; a monotonic mixer represents 8. Source: Rashid et al. 2018, section 5.
    """

    Config = TwoStepConfig

    def __init__(self, config: TwoStepConfig, with_state: bool = False):
        self.config = config
        tables = torch.tensor([[0.0, 0, 0, 0], [7, 7, 7, 7], [0, 1, 1, 8]])
        game = MatrixGame(
            name="two_step",
            choices=("0", "1"),
            players=2,
            payoff=tables[..., None],
            next_stage=torch.tensor([[1, 1, 2, 2], [1, 1, 1, 1], [2, 2, 2, 2]]),
            metric_increment=(tables == 8).float(),
            metric="optimal",
            episode_limit=2,
            terminate_at_limit=True,
            last_action=config.last_action,
            stages=("1", "2A", "2B"),
        )
        super().__init__(game, with_state)


_FIRST, _SECOND = (1.0, 0.0), (0.0, 1.0)


class OneShotConfig(MatrixConfig):
    """Settings of all games of two players."""

    episode_limit: int = Field(1, ge=1, le=10**9)
    """Rounds per episode."""


class PrisonersDilemmaConfig(OneShotConfig):
    """Settings of matrix/prisoners_dilemma."""

    temptation: float = Field(5.0, ge=-(10**6), le=10**6)
    """Payoff for defecting alone."""
    reward: float = Field(3.0, ge=-(10**6), le=10**6)
    """Payoff of each player if both cooperate."""
    punishment: float = Field(1.0, ge=-(10**6), le=10**6)
    """Payoff of each player if both defect."""
    sucker: float = Field(0.0, ge=-(10**6), le=10**6)
    """Payoff for cooperating alone."""


@final
class PrisonersDilemma(BimatrixGame):
    """Defecting is dominant, but both players do better by cooperating. Source: Axelrod 1984."""

    Config = PrisonersDilemmaConfig
    equilibria: tuple[MixedStrategies, ...] = ((_SECOND, _SECOND),)

    def __init__(self, config: PrisonersDilemmaConfig, with_state: bool = False):
        self.config = config
        payoffs = {
            "temptation": config.temptation,
            "reward": config.reward,
            "punishment": config.punishment,
            "sucker": config.sucker,
        }
        if any(high <= low for high, low in pairwise(payoffs.values())):
            given = ", ".join(f"{name}={value:g}" for name, value in payoffs.items())
            raise ValueError(f"env: {given}. Expected {' > '.join(payoffs)}, e.g. 5, 3, 1, 0.")
        own = [[config.reward, config.sucker], [config.temptation, config.punishment]]
        super().__init__(_symmetric_game("prisoners_dilemma", own, ("cooperate", "defect"), config), with_state)


class StagHuntConfig(OneShotConfig):
    """Settings of matrix/stag_hunt."""

    stag: float = Field(4.0, ge=-(10**6), le=10**6)
    """Payoff of each player if both hunt the stag; hunting it alone gives 0."""
    hare: float = Field(3.0, ge=-(10**6), le=10**6)
    """Payoff for hunting the hare, whatever the other player does."""


@final
class StagHunt(BimatrixGame):
    """Hunting the stag together has the highest payoff; hunting the hare is safe. Source: Skyrms 2004."""

    Config = StagHuntConfig

    def __init__(self, config: StagHuntConfig, with_state: bool = False):
        self.config = config
        if not 0 < config.hare < config.stag:
            raise ValueError(f"env: stag={config.stag:g}, hare={config.hare:g}. Expected stag > hare > 0, e.g. 4, 3.")
        mixed = (config.hare / config.stag, 1 - config.hare / config.stag)
        self.equilibria = ((_FIRST, _FIRST), (_SECOND, _SECOND), (mixed, mixed))
        own = [[config.stag, 0], [config.hare, config.hare]]
        super().__init__(_symmetric_game("stag_hunt", own, ("stag", "hare"), config), with_state)


class HawkDoveConfig(OneShotConfig):
    """Settings of matrix/hawk_dove."""

    value: float = Field(2.0, gt=0, le=10**6)
    """Value of the resource; two doves share it."""
    cost: float = Field(4.0, gt=0, le=1000)
    """Cost of losing a fight between two hawks, which each loses with probability 1/2."""


@final
class HawkDove(BimatrixGame):
    """Also called chicken: a dove leaves the resource to a hawk, and two hawks hurt each other.

    Source: Maynard Smith and Price 1973.
    """

    Config = HawkDoveConfig

    def __init__(self, config: HawkDoveConfig, with_state: bool = False):
        self.config = config
        if config.cost <= config.value:
            raise ValueError(f"env: cost={config.cost:g}, value={config.value:g}. Expected cost > value, e.g. 4, 2.")
        hawk = config.value / config.cost
        mixed = (1 - hawk, hawk)
        self.equilibria = ((_SECOND, _FIRST), (_FIRST, _SECOND), (mixed, mixed))
        own = [[config.value / 2, 0], [config.value, (config.value - config.cost) / 2]]
        super().__init__(_symmetric_game("hawk_dove", own, ("dove", "hawk"), config), with_state)


class BattleOfSexesConfig(OneShotConfig):
    """Settings of matrix/battle_of_sexes."""

    favorite: float = Field(2.0, ge=-(10**6), le=10**6)
    """Payoff for meeting at one's favorite place."""
    other: float = Field(1.0, ge=-(10**6), le=10**6)
    """Payoff for meeting at the other player's favorite place; each player alone gets 0."""


@final
class BattleOfSexes(BimatrixGame):
    """Both players want to meet, but prefer different places. Source: Luce and Raiffa 1957, payoffs 2 and 1."""

    Config = BattleOfSexesConfig

    def __init__(self, config: BattleOfSexesConfig, with_state: bool = False):
        self.config = config
        high, low = config.favorite, config.other
        if not 0 < low < high:
            raise ValueError(f"env: favorite={high:g}, other={low:g}. Expected favorite > other > 0, e.g. 2, 1.")
        favorite = high / (high + low)
        mixed = ((favorite, 1 - favorite), (1 - favorite, favorite))
        self.equilibria = ((_FIRST, _FIRST), (_SECOND, _SECOND), mixed)
        payoffs = [[high, 0], [0, low]], [[low, 0], [0, high]]
        super().__init__(bimatrix_game("battle_of_sexes", payoffs, ("boxing", "ballet"), config), with_state)


class MatchingPenniesConfig(OneShotConfig):
    """Settings of matrix/matching_pennies."""


@final
class MatchingPennies(BimatrixGame):
    """Zero-sum: `row` wins if both show the same side, `column` if they do not. The value of the game is 0."""

    Config = MatchingPenniesConfig
    equilibria: tuple[MixedStrategies, ...] = (((0.5, 0.5), (0.5, 0.5)),)

    def __init__(self, config: MatchingPenniesConfig, with_state: bool = False):
        self.config = config
        payoffs = [[1, -1], [-1, 1]], [[-1, 1], [1, -1]]
        super().__init__(bimatrix_game("matching_pennies", payoffs, ("heads", "tails"), config), with_state)


class RockPaperScissorsConfig(OneShotConfig):
    """Settings of matrix/rock_paper_scissors."""


@final
class RockPaperScissors(BimatrixGame):
    """Zero-sum and cyclic: best responses to the opponent's last policy never converge. The value of the game is 0."""

    Config = RockPaperScissorsConfig
    equilibria: tuple[MixedStrategies, ...] = (((1 / 3, 1 / 3, 1 / 3), (1 / 3, 1 / 3, 1 / 3)),)

    def __init__(self, config: RockPaperScissorsConfig, with_state: bool = False):
        self.config = config
        own = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
        choices = ("rock", "paper", "scissors")
        super().__init__(_symmetric_game("rock_paper_scissors", own, choices, config), with_state)


def _symmetric_game(
    name: str, own: Sequence[Sequence[float]], choices: tuple[str, ...], config: MatrixConfig
) -> MatrixGame:
    """Returns a symmetric game; own[i][j] is the payoff for choosing i against j."""
    table = torch.tensor(own, dtype=torch.float32)
    return bimatrix_game(name, (table, table.T), choices, config)

"""Matrix games of two players with payoffs of their own, in the literature's numbers, with their equilibria.

The payoffs of symmetric games with two choices have their usual names: `reward` if both make the first choice, `sucker`
for making it alone, `temptation` if only the other makes it, and `punishment` if neither does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from pydantic import Field

from coterie.envs.worlds.matrix.matrix_game import (
    BimatrixGame,
    MatrixConfig,
    MatrixGame,
    MixedStrategies,
    bimatrix_game,
)

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

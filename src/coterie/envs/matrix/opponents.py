"""Matrix games of two players with payoffs of their own, in the literature's numbers; each with its equilibria.

In the symmetric games of two choices, the payoffs to oneself have their usual names: `reward` both make the first
choice, `sucker` only oneself does, `temptation` only the other does, `punishment` nobody does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from pydantic import Field

from coterie.envs.matrix.game import Bimatrix, Game, MatrixConfig, Mixed, bimatrix_game

_FIRST, _SECOND = (1.0, 0.0), (0.0, 1.0)


class OneShotConfig(MatrixConfig):
    """What the games of two players can be told."""

    episode_limit: int = Field(1, ge=1)
    """Rounds of an episode."""


class PrisonersDilemmaConfig(OneShotConfig):
    """Settings of matrix/prisoners_dilemma."""

    temptation: float = 5.0
    """To who defects alone."""
    reward: float = 3.0
    """To each if both cooperate."""
    punishment: float = 1.0
    """To each if both defect."""
    sucker: float = 0.0
    """To who cooperates alone."""


@final
class PrisonersDilemma(Bimatrix):
    """Each does better by defecting, whatever the other does, and both do worse so. Source: Axelrod 1984."""

    Config = PrisonersDilemmaConfig
    equilibria: tuple[Mixed, ...] = ((_SECOND, _SECOND),)

    def __init__(self, config: PrisonersDilemmaConfig, with_state: bool = False):
        self.config = config
        _falling(config, ("temptation", "reward", "punishment", "sucker"), "5, 3, 1, 0")
        own = [[config.reward, config.sucker], [config.temptation, config.punishment]]
        super().__init__(_symmetric("prisoners_dilemma", own, ("cooperate", "defect"), config), with_state)


class StagHuntConfig(OneShotConfig):
    """Settings of matrix/stag_hunt."""

    stag: float = 4.0
    """To each if both hunt the stag; who hunts it alone gets 0."""
    hare: float = 3.0
    """To who hunts the hare, whatever the other does."""


@final
class StagHunt(Bimatrix):
    """Hunting the stag together pays most, hunting the hare is safe. Source: Skyrms 2004."""

    Config = StagHuntConfig

    def __init__(self, config: StagHuntConfig, with_state: bool = False):
        self.config = config
        if not 0 < config.hare < config.stag:
            raise ValueError(f"stag={config.stag:g}, hare={config.hare:g}: expected stag > hare > 0, e.g. 4, 3")
        mixed = (config.hare / config.stag, 1 - config.hare / config.stag)
        self.equilibria = ((_FIRST, _FIRST), (_SECOND, _SECOND), (mixed, mixed))
        own = [[config.stag, 0], [config.hare, config.hare]]
        super().__init__(_symmetric("stag_hunt", own, ("stag", "hare"), config), with_state)


class HawkDoveConfig(OneShotConfig):
    """Settings of matrix/hawk_dove."""

    value: float = Field(2.0, gt=0)
    """What is fought for; two doves share it."""
    cost: float = Field(4.0, gt=0)
    """What losing a fight of two hawks costs; each loses one in two."""


@final
class HawkDove(Bimatrix):
    """Also called chicken: who yields to a hawk gets nothing, two hawks hurt each other. Source: Maynard Smith and
    Price 1973.
    """

    Config = HawkDoveConfig

    def __init__(self, config: HawkDoveConfig, with_state: bool = False):
        self.config = config
        if config.cost <= config.value:
            raise ValueError(f"cost={config.cost:g}, value={config.value:g}: expected cost > value, e.g. 4, 2")
        hawk = config.value / config.cost
        mixed = (1 - hawk, hawk)
        self.equilibria = ((_SECOND, _FIRST), (_FIRST, _SECOND), (mixed, mixed))
        own = [[config.value / 2, 0], [config.value, (config.value - config.cost) / 2]]
        super().__init__(_symmetric("hawk_dove", own, ("dove", "hawk"), config), with_state)


class BattleOfSexesConfig(OneShotConfig):
    """Settings of matrix/battle_of_sexes."""

    favourite: float = 2.0
    """To who is where it likes to be, with the other."""
    other: float = 1.0
    """To who is where the other likes to be, with it; alone, each gets 0."""


@final
class BattleOfSexes(Bimatrix):
    """Both want to meet, each at a place of its own liking. Source: Luce and Raiffa 1957, payoffs 2 and 1."""

    Config = BattleOfSexesConfig

    def __init__(self, config: BattleOfSexesConfig, with_state: bool = False):
        self.config = config
        high, low = config.favourite, config.other
        if not 0 < low < high:
            raise ValueError(f"favourite={high:g}, other={low:g}: expected favourite > other > 0, e.g. 2, 1")
        likes = high / (high + low)
        self.equilibria = ((_FIRST, _FIRST), (_SECOND, _SECOND), ((likes, 1 - likes), (1 - likes, likes)))
        row, column = [[high, 0], [0, low]], [[low, 0], [0, high]]
        super().__init__(bimatrix_game("battle_of_sexes", row, column, ("boxing", "ballet"), config), with_state)


class MatchingPenniesConfig(OneShotConfig):
    """Settings of matrix/matching_pennies."""


@final
class MatchingPennies(Bimatrix):
    """Zero-sum: `row` wins if both show the same side, `column` if not. The value is 0."""

    Config = MatchingPenniesConfig
    equilibria: tuple[Mixed, ...] = (((0.5, 0.5), (0.5, 0.5)),)

    def __init__(self, config: MatchingPenniesConfig, with_state: bool = False):
        self.config = config
        game = bimatrix_game("matching_pennies", [[1, -1], [-1, 1]], [[-1, 1], [1, -1]], ("heads", "tails"), config)
        super().__init__(game, with_state)


class RockPaperScissorsConfig(OneShotConfig):
    """Settings of matrix/rock_paper_scissors."""


@final
class RockPaperScissors(Bimatrix):
    """Zero-sum with a cycle: who best answers its opponent's last policy goes round for ever. The value is 0."""

    Config = RockPaperScissorsConfig
    equilibria: tuple[Mixed, ...] = (((1 / 3, 1 / 3, 1 / 3), (1 / 3, 1 / 3, 1 / 3)),)

    def __init__(self, config: RockPaperScissorsConfig, with_state: bool = False):
        self.config = config
        own = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
        super().__init__(_symmetric("rock_paper_scissors", own, ("rock", "paper", "scissors"), config), with_state)


def _symmetric(name: str, own: Sequence[Sequence[float]], choices: tuple[str, ...], config: MatrixConfig) -> Game:
    """A game that looks the same to both; own[i][j]: to who chooses i against j."""
    table = torch.tensor(own, dtype=torch.float32)
    return bimatrix_game(name, table, table.T, choices, config)


def _falling(config: MatrixConfig, names: tuple[str, ...], example: str) -> None:
    """ValueError unless the settings of these names fall strictly."""
    values = [getattr(config, name) for name in names]
    if any(high <= low for high, low in pairwise(values)):
        given = ", ".join(f"{name}={value:g}" for name, value in zip(names, values, strict=True))
        raise ValueError(f"{given}: expected {' > '.join(names)}, e.g. {example}")

"""Who played whom, who won, and what that makes of everybody's strength."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.episodes import Finished
from coterie.math.ratings import elo
from coterie.types import EnvSpec, TeamSpec


def outcome(finished: Finished, mine: TeamSpec, theirs: TeamSpec) -> Tensor:
    """What team `mine` made of each episode [E]: 1 for a win, 0.5 for a draw, 0 for a loss.

    Read from the environment's metrics `<group>_won` where it reports them for both, else whoever has the larger
    return has won.
    """
    names = [f"{team.roles[0].group}_won" for team in (mine, theirs)]
    if all(name in finished.metrics for name in names):
        ours, others = (finished.metrics[name].double() for name in names)
    else:
        ours, others = finished.team_return(mine), finished.team_return(theirs)
    return ((ours > others).double() - (ours < others).double() + 1) / 2


def tally(label: Tensor, won: Tensor) -> list[tuple[int, float, int]]:
    """What was won of how many games against each opponent: its number, the sum, the count, from [E] labels and
    outcomes. Read by the host once.
    """
    number, place = label.unique(return_inverse=True)
    games = torch.bincount(place, minlength=len(number))
    sums = torch.zeros_like(games, dtype=won.dtype).index_add_(0, place, won)
    found = torch.stack([number.to(won.dtype), sums, games.to(won.dtype)], 1).tolist()
    return [(int(which), total, int(count)) for which, total, count in found]


def counted(spec: EnvSpec) -> str:
    """How `outcome` tells who has won, in words."""
    won = all(f"{group}_won" in spec.metrics for group in spec.groups)
    return "the environment's metrics" if won else "the larger return"


@dataclass(frozen=True)
class Player:
    """A snapshot on the ladder: its team, its number among the team's, the steps that its run had done."""

    team: str
    number: int
    steps: int


class Ladder:
    """Results of snapshots against each other, and their Elo ratings. The first player's rating is 0."""

    def __init__(self) -> None:
        self.players: list[Player] = []
        self._score = torch.zeros(0, 0, dtype=torch.float64)
        self._rated: tuple[Tensor, Tensor] | None = None  # as long as nothing has changed

    def enter(self, player: Player) -> int:
        """Takes a player in and returns its place."""
        self.players.append(player)
        grown = torch.zeros(len(self.players), len(self.players), dtype=torch.float64)
        grown[:-1, :-1] = self._score
        self._score, self._rated = grown, None
        return len(self.players) - 1

    def place(self, team: str, number: int) -> int:
        """Where a team's snapshot stands."""
        return next(i for i, p in enumerate(self.players) if (p.team, p.number) == (team, number))

    def record(self, player: int, other: int, won: float, games: float) -> None:
        """`player` won so much of so many games against `other`, draws counted half."""
        self._score[player, other] += won
        self._score[other, player] += games - won
        self._rated = None

    def ratings(self) -> tuple[Tensor, Tensor]:
        """Elo ratings [P] and their standard errors [P], relative to the first player."""
        if self._rated is None:
            self._rated = elo(self._score)
        return self._rated

    def state_dict(self) -> dict[str, Any]:
        return {"players": [[p.team, p.number, p.steps] for p in self.players], "score": self._score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.players = [Player(*entry) for entry in state["players"]]
        self._score, self._rated = state["score"].to("cpu", torch.float64), None

"""Results of games between snapshots, and their Elo ratings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.specs import EnvSpec, TeamSpec
from coterie.math.ratings import elo
from coterie.training.episodes import FinishedEpisodes


def win_scores(finished: FinishedEpisodes, team: TeamSpec, opponent: TeamSpec) -> Tensor:
    """Returns a team's score per episode [E]: 1 for a win, 0.5 for a draw, 0 for a loss.

    Uses the environment's metrics `<group>_won` if both teams have one; otherwise the team with the larger return wins.
    """
    names = [f"{spec.roles[0].group}_won" for spec in (team, opponent)]
    if all(name in finished.metrics for name in names):
        own, other = (finished.metrics[name].double() for name in names)
    else:
        own, other = finished.team_return(team), finished.team_return(opponent)
    return ((own > other).double() - (own < other).double() + 1) / 2


def score_by_opponent(label: Tensor, score: Tensor) -> list[tuple[int, float, int]]:
    """Sums scores by opponent.

    Args:
        label: Number of the opponent in each episode, [E].
        score: Score of each episode, [E].

    Returns:
        For each opponent its number, the sum of the scores, and the number of games. One transfer to the host.
    """
    number, index = label.unique(return_inverse=True)
    games = torch.bincount(index, minlength=len(number))
    sums = torch.zeros_like(games, dtype=score.dtype).index_add_(0, index, score)
    found = torch.stack([number.to(score.dtype), sums, games.to(score.dtype)], 1).tolist()
    return [(int(opponent), total, int(count)) for opponent, total, count in found]


def win_criterion(spec: EnvSpec) -> str:
    """Returns a description of how `win_scores` decides who wins."""
    has_metrics = all(f"{group}_won" in spec.metrics for group in spec.groups)
    return "the environment's metrics" if has_metrics else "the larger return"


@dataclass(frozen=True)
class RatedSnapshot:
    """A snapshot on the ladder.

    Attributes:
        team: The team that it is a snapshot of.
        number: Its number among the snapshots of the team.
        steps: Environment steps of the run when it was made.
    """

    team: str
    number: int
    steps: int


class EloLadder:
    """Results of snapshots against each other and their Elo ratings. The rating of the first snapshot is 0."""

    def __init__(self) -> None:
        self.snapshots: list[RatedSnapshot] = []
        self._score = torch.zeros(0, 0, dtype=torch.float64)
        self._ratings: tuple[Tensor, Tensor] | None = None  # cached until a result is added

    def add(self, snapshot: RatedSnapshot) -> int:
        """Adds a snapshot and returns its index."""
        self.snapshots.append(snapshot)
        grown = torch.zeros(len(self.snapshots), len(self.snapshots), dtype=torch.float64)
        grown[:-1, :-1] = self._score
        self._score, self._ratings = grown, None
        return len(self.snapshots) - 1

    def index(self, team: str, number: int) -> int:
        """Returns the index of a team's snapshot."""
        return next(i for i, s in enumerate(self.snapshots) if (s.team, s.number) == (team, number))

    def add_result(self, index: int, opponent: int, *, score: float, games: float) -> None:
        """Adds the score of a snapshot in a number of games against another; draws count 0.5."""
        self._score[index, opponent] += score
        self._score[opponent, index] += games - score
        self._ratings = None

    def ratings(self) -> tuple[Tensor, Tensor]:
        """Returns Elo ratings [P] and their standard errors [P], relative to the first snapshot."""
        if self._ratings is None:
            self._ratings = elo(self._score)
        return self._ratings

    def state_dict(self) -> dict[str, Any]:
        """Returns the snapshots and their scores against each other."""
        return {"snapshots": [[s.team, s.number, s.steps] for s in self.snapshots], "score": self._score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self.snapshots = [RatedSnapshot(*entry) for entry in state["snapshots"]]
        self._score, self._ratings = state["score"].to("cpu", torch.float64), None

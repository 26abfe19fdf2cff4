"""Teams that learn by turns: some learn while the others act as they are, then others do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.curriculum.config import AdvanceConfig
from coterie.curriculum.criterion import Criterion
from coterie.episodes import Finished
from coterie.errors import UserError, nearest
from coterie.guide import Guide, Roster
from coterie.metrics import Metric, declare

declare(Metric("turn/index", "", "the turn that the run is in, counted from 1", None, "last"))


class Turns(Guide):
    """Lets the teams of each turn learn for `every` environment steps or until a metric has passed its threshold, over
    and over, or once until the last turn.
    """

    name = "turns"

    def __init__(
        self,
        roster: Roster,
        order: Sequence[tuple[str, ...]],
        every: int | None,
        until: AdvanceConfig | None,
        repeat: bool,
        total: int,
    ):
        """order: who learns in each turn; every: None for no end by steps; until: None for no end by a metric; total:
        environment steps of the run.
        """
        self._roster, self._order, self._every, self._until = roster, order, every, until
        self._repeat, self._total = repeat, total
        self._start(0, 0)

    def _start(self, turn: int, steps: int) -> None:
        self._turn, self._began, self._episodes = turn, steps, 0
        teams = self._order[turn % len(self._order)]
        self._advance = None if self._until is None else self._until.of(teams[0])
        self._criterion = None if self._advance is None else Criterion(self._advance)
        self._roster.let(teams)

    def _told(self) -> Sequence[str]:
        teams = self._order[self._turn % len(self._order)]
        return [f"turn {self._turn + 1}: {' and '.join(teams)} learn{'s' if len(teams) == 1 else ''}"]

    def begin(self) -> Sequence[str]:
        return self._told()

    def after_window(self, steps: int, finished: Finished) -> Sequence[str]:
        self._episodes += len(finished.length)
        if not self._repeat and self._turn + 1 >= len(self._order):
            return ()
        over = self._every is not None and steps - self._began >= self._every
        if self._criterion is not None and self._advance is not None:
            over = over or (self._criterion.met and self._episodes >= self._advance.episodes)
        if not over:
            return ()
        self._start(self._turn + 1, steps)
        return self._told()

    def hear(self, steps: int, row: Mapping[str, float]) -> Sequence[str]:
        if self._criterion is not None and self._advance is not None:
            metric = self._advance.metric
            value = steps / self._total if metric == "progress" else row.get(metric)
            if value is not None:
                self._criterion.hear(float(value))
        return ()

    def metrics(self) -> dict[str, float]:
        return {"turn/index": self._turn + 1}

    def state_dict(self) -> dict[str, Any]:
        heard = None if self._criterion is None else self._criterion.state_dict()
        return {"turn": self._turn, "began": self._began, "episodes": self._episodes, "criterion": heard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start(state["turn"], state["began"])
        self._episodes = state["episodes"]
        if self._criterion is not None:
            self._criterion.load_state_dict(state["criterion"])


def order_of(given: Sequence[str | tuple[str, ...]], roster: Roster) -> list[tuple[str, ...]]:
    """Who learns in each turn. UserError for a team that is not there or does not learn."""
    turns = [(turn,) if isinstance(turn, str) else turn for turn in given] or [(name,) for name in roster.learners]
    if any(not turn for turn in turns):
        raise UserError("turns.order has a turn in which nobody learns: name a team, or several as [one,other]")
    for name in (name for turn in turns for name in turn):
        if name not in roster.learners:
            raise UserError(
                f"turns.order names '{name}', which is no team that learns: {nearest(name, roster.learners)}"
            )
    return turns

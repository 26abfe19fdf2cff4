"""Teams that learn by turns: some learn while the others act as they are, then others do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.episodes import Finished
from coterie.errors import UserError, nearest
from coterie.guide import Guide, Roster
from coterie.metrics import Metric, declare

declare(Metric("turn/index", "", "the turn that the run is in, counted from 0", None, "last"))


class Turns(Guide):
    """Lets the teams of each turn learn for `every` environment steps, over and over, or once until the last turn."""

    name = "turns"

    def __init__(self, roster: Roster, order: Sequence[tuple[str, ...]], every: int, repeat: bool):
        self._roster, self._order, self._every, self._repeat = roster, order, every, repeat
        self._turn, self._began = 0, 0

    def begin(self) -> Sequence[str]:
        return self._let()

    def after_window(self, steps: int, finished: Finished) -> Sequence[str]:
        over = steps - self._began >= self._every
        if not over or (not self._repeat and self._turn + 1 >= len(self._order)):
            return ()
        self._turn, self._began = self._turn + 1, steps
        return self._let()

    def _let(self) -> Sequence[str]:
        teams = self._order[self._turn % len(self._order)]
        self._roster.let(teams)
        return [f"turn {self._turn}: {' and '.join(teams)} learn{'s' if len(teams) == 1 else ''}"]

    def hear(self, steps: int, row: Mapping[str, float]) -> Sequence[str]:
        return ()

    def metrics(self) -> dict[str, float]:
        return {"turn/index": self._turn}

    def state_dict(self) -> dict[str, Any]:
        return {"turn": self._turn, "began": self._began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._turn, self._began = state["turn"], state["began"]
        self._let()


def order_of(given: Sequence[str | tuple[str, ...]], roster: Roster) -> list[tuple[str, ...]]:
    """Who learns in each turn. UserError for a team that is not there or does not learn."""
    turns = [(turn,) if isinstance(turn, str) else turn for turn in given] or [(name,) for name in roster.learners]
    for name in (name for turn in turns for name in turn):
        if name not in roster.learners:
            raise UserError(
                f"turns.order names '{name}', which is no team that learns: {nearest(name, roster.learners)}"
            )
    return turns

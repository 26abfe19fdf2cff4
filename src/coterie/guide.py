"""What changes a run between windows beside its learners: who learns, against whom, on which lesson."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coterie.algos.algorithm import Algorithm
from coterie.episodes import Finished


class Roster:
    """The teams of a run that can learn, in order, and which of them do at present."""

    def __init__(self, learners: Iterable[str]):
        self.learners = tuple(learners)
        self._learning = set(self.learners)

    @property
    def learning(self) -> tuple[str, ...]:
        """Teams that learn from what is collected now."""
        return tuple(name for name in self.learners if name in self._learning)

    def let(self, teams: Iterable[str]) -> None:
        """From the next window on these teams learn, and no others."""
        self._learning = set(teams)

    @classmethod
    def of(cls, algorithms: Mapping[str, Algorithm]) -> Roster:
        """Who learns nothing asks for no windows; where nobody learns, all take theirs, so that rows are logged."""
        return cls([name for name, a in algorithms.items() if a.capabilities.learns] or algorithms)


class Guide(ABC):
    """Hears how a run goes and changes what surrounds the learners. The trainer calls it between two windows.

    name: of its part of the checkpoint; say: shows the user a line at once, where something takes long.
    """

    name: str
    say: Callable[[str], None] = staticmethod(lambda line: None)

    @abstractmethod
    def begin(self) -> Sequence[str]:
        """Called once before a run's first window, not when it is resumed. Returns lines for the user."""

    @abstractmethod
    def after_window(self, steps: int, finished: Finished) -> Sequence[str]:
        """Hears the run's steps after a window and the episodes that ended within it, perhaps none. Returns lines for
        the user.
        """

    @abstractmethod
    def hear(self, steps: int, row: Mapping[str, float]) -> Sequence[str]:
        """Hears a row as it was logged, of training or of an evaluation. Returns lines for the user."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """What it adds to a row of training."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that going on needs."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called: what it had changed is changed again."""

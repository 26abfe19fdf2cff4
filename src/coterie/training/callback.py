"""Callbacks: change a run between rollouts, such as which teams learn, against whom, and in which lesson."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coterie.algos.algorithm import Algorithm
from coterie.training.episodes import FinishedEpisodes


class ActiveTeams:
    """The teams of a run that can learn, in order, and those that currently do."""

    def __init__(self, learners: Iterable[str]):
        self.learners = tuple(learners)
        self._learning = set(self.learners)

    @classmethod
    def from_algorithms(cls, algorithms: Mapping[str, Algorithm]) -> ActiveTeams:
        """Returns the teams whose algorithms learn; all teams if none does, so that rollouts are still logged."""
        return cls([name for name, a in algorithms.items() if a.capabilities.learns] or algorithms)

    @property
    def learning(self) -> tuple[str, ...]:
        """Teams that learn from the current rollouts."""
        return tuple(name for name in self.learners if name in self._learning)

    def activate(self, teams: Iterable[str]) -> None:
        """Makes these teams, and no others, learn from the next rollout on."""
        self._learning = set(teams)


class TrainerCallback(ABC):
    """Called by the trainer between rollouts. Its state is part of every checkpoint.

    Lines that a method returns are shown to the user.
    """

    name: str
    """Name of the callback's state in checkpoints."""
    notify: Callable[[str], None] = staticmethod(lambda line: None)
    """Shows a line to the user at once, for work that takes long. Set by the trainer."""

    @abstractmethod
    def on_training_start(self) -> Sequence[str]:
        """Called once before the first rollout of a run, not when it is resumed."""

    @abstractmethod
    def on_update(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        """Called after each rollout and its updates, before `metrics`: the log entry describes this work, too.

        Args:
            steps: Environment steps of the run so far.
            finished: Episodes that ended within the rollout, possibly none.
        """

    @abstractmethod
    def on_rollout_end(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        """Called after the log entry, to change what the next rollout is collected with.

        Args:
            steps: Environment steps of the run so far.
            finished: Episodes that ended within the rollout, possibly none.
        """

    @abstractmethod
    def on_metrics(self, steps: int, metrics: Mapping[str, float]) -> Sequence[str]:
        """Called with every set of metrics that is logged, of training or of an evaluation."""

    @abstractmethod
    def metrics(self, steps: int, entry: Mapping[str, float]) -> dict[str, float]:
        """Returns metrics to add to a log entry of training.

        Args:
            steps: Environment steps of the run so far.
            entry: The entry's metrics so far, with those of the callbacks before this one.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns everything needed to resume."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`, including changes made to the run."""

"""Callbacks: functions of users, and parts of the trainer, that a run calls at fixed points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from coterie.algos.algorithm import Algorithm
from coterie.core.errors import UserError, nearest
from coterie.policies.base import Policy
from coterie.training.episodes import FinishedEpisodes


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """State of a run when it calls a callback.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        metrics: Metrics by name. After a rollout: of the episodes that ended in it, if any. After an update or an
            evaluation: those that are logged. Otherwise empty.
        policies: Policies by team. They act in the run: to change them changes the run.
        checkpoint: Folder of the checkpoint, after one was saved; otherwise None.
        stop: Ends the run after the current rollout, with a checkpoint from which it can be resumed.
    """

    steps: int
    updates: int
    metrics: Mapping[str, float]
    policies: Mapping[str, Policy]
    checkpoint: Path | None
    stop: Callable[[], None]


Hook = Callable[[Event], object]
"""A function that is called with the state of the run. Its result is ignored."""


class Callback:
    """Functions to call during a run, each with an `Event`: arguments, or methods of a subclass. Others are skipped.

    An exception in a callback ends the run. Callbacks are not part of checkpoints: pass them again when a run is
    resumed. A callback that only reads does not change results.

    Attributes:
        on_rollout: Called after each rollout and its updates.
        on_update: Called after each update that is logged, see `log.every`.
        on_evaluation: Called after each evaluation, the one before the first step included.
        on_checkpoint: Called after each checkpoint was saved.
        on_end: Called once at the end, also of a run that was stopped, but not after an error.
    """

    on_rollout: Hook | None = None
    on_update: Hook | None = None
    on_evaluation: Hook | None = None
    on_checkpoint: Hook | None = None
    on_end: Hook | None = None

    def __init__(
        self,
        *,
        on_rollout: Hook | None = None,
        on_update: Hook | None = None,
        on_evaluation: Hook | None = None,
        on_checkpoint: Hook | None = None,
        on_end: Hook | None = None,
    ) -> None:
        given = (on_rollout, on_update, on_evaluation, on_checkpoint, on_end)
        for name, hook in zip(_HOOKS, given, strict=True):
            if hook is not None:
                setattr(self, name, hook)


_HOOKS = ("on_rollout", "on_update", "on_evaluation", "on_checkpoint", "on_end")
"""Functions of a callback."""


@final
@dataclass
class HookCaller:
    """Calls the callbacks of a run, in the order in which they were given.

    Attributes:
        callbacks: The callbacks.
        was_stopped: True if a callback has stopped the run.
    """

    callbacks: Sequence[Callback] = ()
    was_stopped: bool = field(default=False, init=False)

    def __call__(self, name: str, **state: Any) -> bool:
        """Calls the function `name` of each callback that has one.

        Args:
            name: Attribute of `Callback`, such as `on_update`.
            **state: Attributes of the event; `metrics` and `checkpoint` may be omitted.

        Returns:
            True if a callback has stopped the run.
        """
        wanted = [hook for hook in (getattr(callback, name) for callback in self.callbacks) if hook is not None]
        if wanted:
            event = Event(**{"metrics": {}, "checkpoint": None, "stop": self._stop} | state)
            for hook in wanted:
                hook(event)
        return self.was_stopped

    def _stop(self) -> None:
        self.was_stopped = True


def require_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Returns the callbacks of a run.

    Raises:
        UserError: If they are not a list of `Callback` objects with functions of the names that are called.
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise UserError(
            f"callbacks: a {type(callbacks).__name__}. Pass a list, [coterie.Callback(on_update=function)]."
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                f"callbacks: {getattr(callback, '__name__', callback)!s} is a {type(callback).__name__}. Wrap its "
                "functions in coterie.Callback, e.g. coterie.Callback(on_update=function)."
            )
        for name in (name for name in dir(callback) if name.startswith("on_") and name not in _HOOKS):
            raise UserError(f"callbacks: {type(callback).__name__}.{name} is never called. {nearest(name, _HOOKS)}")
        for name in _HOOKS:
            hook = getattr(callback, name)
            if hook is not None and not callable(hook):
                raise UserError(f"callbacks: {name}={hook!r} cannot be called. Pass a function of one coterie.Event.")
    return tuple(callbacks)


# --------------------------------------------------------------------------------------------- callbacks of the trainer


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

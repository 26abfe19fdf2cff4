"""Callbacks of users: functions that a run calls at fixed points, to observe it or to stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from coterie.core.errors import UserError, nearest
from coterie.policies.base import Policy


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

"""Hooks: a user's functions that a run calls at fixed points, to observe it or to stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from coterie.core.errors import UserError
from coterie.policies.base import Policy


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """State of a run when it calls a hook.

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


@final
@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Functions to call during a run, each with an `Event`. Those that are None are skipped.

    An exception in a hook ends the run. Hooks are not part of checkpoints: pass them again when a run is resumed. A
    hook that only reads does not change results.

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


@final
@dataclass
class HookCaller:
    """Calls the hooks of a run, in the order in which they were given.

    Attributes:
        hooks: The hooks.
        was_stopped: True if a hook has stopped the run.
    """

    hooks: Sequence[Hooks] = ()
    was_stopped: bool = field(default=False, init=False)

    def __call__(self, name: str, **state: Any) -> bool:
        """Calls the hooks named `name`.

        Args:
            name: Attribute of `Hooks`, such as `on_update`.
            **state: Attributes of the event; `metrics` and `checkpoint` may be omitted.

        Returns:
            True if a hook has stopped the run.
        """
        wanted = [hook for hook in (vars(hooks)[name] for hooks in self.hooks) if hook is not None]
        if wanted:
            event = Event(**{"metrics": {}, "checkpoint": None, "stop": self._stop} | state)
            for hook in wanted:
                hook(event)
        return self.was_stopped

    def _stop(self) -> None:
        self.was_stopped = True


def require_hooks(callbacks: Any) -> tuple[Hooks, ...]:
    """Returns the callbacks of a run.

    Raises:
        UserError: If they are not a list of `Hooks` whose entries are functions.
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise UserError(f"callbacks: a {type(callbacks).__name__}. Pass a list, [coterie.Hooks(on_update=function)].")
    for hooks in callbacks:
        if not isinstance(hooks, Hooks):
            raise UserError(
                f"callbacks: {getattr(hooks, '__name__', hooks)!s} is a {type(hooks).__name__}. Wrap its functions in "
                "coterie.Hooks, e.g. coterie.Hooks(on_update=function)."
            )
        for name, hook in vars(hooks).items():
            if hook is not None and not callable(hook):
                raise UserError(f"callbacks: {name}={hook!r} cannot be called. Pass a function of one coterie.Event.")
    return tuple(callbacks)

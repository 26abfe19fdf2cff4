"""Closing environments: results are kept and the process continues, whatever `close` does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from coterie.core.errors import LimitExceededError, one_line
from coterie.core.waiting import limited, note

CLOSE_SECONDS = 10.0
"""Seconds allowed to close environments that are stepped together in this process."""

_blocked: set[str] = set()
"""Names of environments whose `close` exceeded the limit. It is not called again."""

_reported: set[str] = set()
"""Environments about whose `close` a message was printed."""


def close_limit(what: str) -> AbstractContextManager[None]:
    """Returns a context manager that raises LimitExceededError if closing environments takes too long."""
    return limited(what, CLOSE_SECONDS, "Results are kept, and it is not called again. Fix the environment.")


def close_reported(name: str, close: Callable[[], object], *, is_limited: bool = False) -> None:
    """Calls the `close` of an environment. If it raises or exceeds the limit, one message per environment says so.

    Args:
        name: Name of the environment.
        close: The function.
        is_limited: True if it returns in limited time by itself.
    """
    if name in _blocked:
        return
    what = f"close() of environment '{name}'"
    try:
        with nullcontext() if is_limited else close_limit(what):
            close()
    except LimitExceededError as error:
        _blocked.add(name)
        note(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        report_once(name, f"{what} failed: {one_line(error)}. Results are kept. Fix the environment.")


def report_once(name: str, message: str) -> None:
    """Prints a message about `close`, unless one was printed about this environment."""
    if name not in _reported:
        _reported.add(name)
        note(message)

"""Errors that a user can mend: one line that names the thing, the value, what was expected and the mend."""

from __future__ import annotations

import difflib
import os
import sysconfig
import traceback
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user asked for. The command line prints its message on one line and exits with 2."""


class NonFiniteError(Exception):
    """A NaN or an infinity in a live place: the run stops, the last good checkpoint stays. Exit code 3."""


class WorkersFailedError(Exception):
    """Workers that step environments failed too often: the run stops, the last checkpoint stays. Exit code 3."""


class EnvironmentFailedError(Exception):
    """An outside environment raised in a step or a reset: the run stops, the last checkpoint stays. Exit code 3.

    Its cause is what was raised.
    """

    @classmethod
    def of(cls, name: str, when: str, error: Exception) -> EnvironmentFailedError:
        """What the environment of this name raised; when: `a step` or `reset`."""
        return cls(
            f"{name} failed in {when}: {one_line(error)}; mend the environment "
            "(coterie check-env; COTERIE_DEBUG=1 shows the whole traceback)"
        )


TOLD = (UserError, NonFiniteError, WorkersFailedError, EnvironmentFailedError)
"""What already is one line for the user."""


def one_line(error: BaseException) -> str:
    """`ZeroDivisionError: there is no ball (stocks.py:21)`: type, words, and the last line of the user's own on the way
    to it, or of anybody's if there is none. A UserError's words alone.
    """
    words = " ".join(str(error).split())
    if isinstance(error, UserError):
        return words
    frames = traceback.extract_tb(error.__traceback__)
    at = next((frame for frame in reversed(frames) if _is_users(frame.filename)), frames[-1] if frames else None)
    where = f" ({os.path.basename(at.filename)}:{at.lineno})" if at else ""
    return f"{type(error).__name__}: {words}{where}" if words else f"{type(error).__name__}{where}"


def _is_users(file: str) -> bool:
    """Whether it is neither of Python, nor installed, nor of Coterie."""
    if file.startswith("<") or {"site-packages", "dist-packages"} & set(file.split(os.sep)):
        return False
    return not file.startswith((sysconfig.get_path("stdlib") + os.sep, os.path.dirname(__file__) + os.sep))


def nearest(value: str, choices: Iterable[str], most: int = 3) -> str:
    """The choices most like `value` as the end of a sentence: `did you mean 'a' or 'b'?`, else all choices."""
    choices = sorted(set(choices))
    close = difflib.get_close_matches(value, choices, n=most, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "choose from " + ", ".join(choices) if choices else "there is nothing to choose from"

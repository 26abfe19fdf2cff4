"""Errors with one-line messages that name the setting, the problem, and how to fix it."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence

from coterie.core.text import printable, shorten, shorten_middle

_LINE_BREAK = re.compile(r"\s*[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]\s*")
"""Tabs and line breaks. Other spaces are kept, because paths in messages may contain several."""


_LONGEST_MESSAGE = 900
"""Characters of a message, which may quote paths and values of any length."""


class ReportedError(Exception):
    """An error whose message is one line for the user, without control characters from the values that it quotes.

    Of a long message the middle is left out.

    Attributes:
        is_reported: True if the message has been shown already.
    """

    is_reported: bool = False

    def __init__(self, message: str):
        super().__init__(shorten_middle(printable(_LINE_BREAK.sub(" ", message.strip())), _LONGEST_MESSAGE))


class UserError(ReportedError):
    """A mistake in the user's input. The command line prints its message on one line and exits with code 2."""

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython and notebooks show: the message without a traceback."""
        return [f"{type(self).__name__}: {self}"]


class ContractError(UserError):
    """An environment returned in the first steps of a run what its interface does not allow. The run leaves nothing."""


class NonFiniteError(ReportedError):
    """A NaN or infinite value: the run stops and keeps the last good checkpoint. Exit code 3."""


class WorkersFailedError(ReportedError):
    """Environment workers failed too often: the run stops and keeps the last checkpoint. Exit code 3."""


class EnvironmentFailedError(ReportedError):
    """An external environment raised while it was made or in `step` or `reset`: the run stops and keeps the last
    checkpoint. Exit code 3.

    Its cause is the original exception.
    """

    @classmethod
    def of(cls, name: str, when: str, error: BaseException, place: str = "") -> EnvironmentFailedError:
        """Returns the error for an exception in `when`: `a step`, `reset` or `its factory`.

        Args:
            name: Name of the environment.
            when: What it did.
            error: The exception.
            place: File and line to show if the traceback has none of the user's own code.
        """
        at = f" ({place})" if place and _users_frame(traceback.extract_tb(error.__traceback__)) is None else ""
        return cls(
            f"{name}{at} failed in {when}: {one_line(error)}. Fix the environment "
            "(see coterie check-env; --traceback shows the whole traceback)."
        )


class LimitExceededError(EnvironmentFailedError):
    """A call of an environment did not return in time. Its cause is the exception that ended the call."""


class UserCodeError(ReportedError):
    """A user's own algorithm or network raised: the run stops and keeps the last checkpoint. Exit code 3.

    Its cause is the original exception.
    """

    @classmethod
    def of(cls, name: str, when: str, error: BaseException) -> UserCodeError:
        """Returns the error for an exception in `when`: `forward`, `update`, ..."""
        return cls(f"{name} failed in {when}: {one_line(error)}. Fix it (--traceback shows the whole traceback).")


def message_of(error: BaseException) -> str:
    """Returns the message of an exception on one printable line, or a remark if its `__str__` or `__repr__` raises."""
    try:
        return printable(" ".join(str(error).split()))
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return f"its message cannot be shown, because reading it raises {type(failure).__name__}"


def one_line(error: BaseException) -> str:
    """Formats an exception as `ZeroDivisionError: there is no ball (stocks.py:21)`.

    The location is the last line of the user's own code in the traceback, or the last line of any code. The message of
    a SyntaxError contains its own. A ReportedError is formatted as its message alone.
    """
    words = message_of(error)
    if isinstance(error, ReportedError):
        return words
    frames = traceback.extract_tb(error.__traceback__)
    at = _users_frame(frames) or (frames[-1] if frames else None)
    where = f" ({os.path.basename(at.filename)}:{at.lineno})" if at and not isinstance(error, SyntaxError) else ""
    return f"{type(error).__name__}: {words}{where}" if words else f"{type(error).__name__}{where}"


@contextlib.contextmanager
def as_user_error(place: str, *expected: type[BaseException]) -> Iterator[None]:
    """Turns exceptions into a UserError that names the place, with the line of code unless they are `expected`."""
    try:
        yield
    except expected as error:
        raise UserError(f"{place}: {message_of(error) or type(error).__name__}") from error
    except ReportedError:
        raise
    except Exception as error:
        raise UserError(f"{place}: {one_line(error)}") from error


def of_system(error: OSError) -> str:
    """Formats an error of the operating system with its path: `x/y: File name too long. ...`."""
    if error.filename is None or error.strerror is None:
        return f"{one_line(error)}. --traceback shows the whole traceback."
    path = "a file" if isinstance(error.filename, int) else shorten(printable(os.fsdecode(error.filename)), 200)
    return f"{path}: {error.strerror}. Choose another path, or check its permissions (--traceback shows the traceback)."


def _users_frame(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """Returns the last frame of the user's own code."""
    return next((frame for frame in reversed(frames) if _is_users(frame.filename)), None)


def _is_users(file: str) -> bool:
    """True if the file is neither part of Python, nor installed, nor part of Coterie."""
    if file.startswith("<") or {"site-packages", "dist-packages"} & set(file.split(os.sep)):
        return False
    return not file.startswith(
        (sysconfig.get_path("stdlib") + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
    )


def nearest(value: str, choices: Iterable[str], most: int = 3) -> str:
    """Returns the choices closest to `value` as a sentence, `Did you mean 'a' or 'b'?`, else the choices."""
    choices = sorted(set(choices))
    close = difflib.get_close_matches(value, choices, n=most, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return f"Choose from {listed(choices, 600)}." if choices else "There is nothing to choose from."


def listed(names: Sequence[str], limit: int = 200) -> str:
    """Returns names separated by commas: the first ones up to `limit` characters and the number of the others."""
    lengths = itertools.accumulate(len(name) + 2 for name in names)
    shown = max(1, sum(length <= limit for length in lengths))
    others = len(names) - shown
    return ", ".join(shorten(name, limit) for name in names[:shown]) + (f" and {others} others" if others else "")

"""Errors that a user can mend: one line that names the thing, the value, what was expected and the mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user asked for. The command line prints its message on one line and exits with 2."""


class NonFiniteError(Exception):
    """A NaN or an infinity in a live place: the run stops, the last good checkpoint stays. Exit code 3."""


class WorkersFailedError(Exception):
    """Workers that step environments failed too often: the run stops, the last checkpoint stays. Exit code 3."""


def nearest(value: str, choices: Iterable[str], most: int = 3) -> str:
    """The choices most like `value` as the end of a sentence: `did you mean 'a' or 'b'?`, else all choices."""
    choices = sorted(set(choices))
    close = difflib.get_close_matches(value, choices, n=most, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "choose from " + ", ".join(choices) if choices else "there is nothing to choose from"

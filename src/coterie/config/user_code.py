"""Exceptions of code outside Coterie that settings name, as one line with the user's file and line."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from coterie.core.errors import ReportedError, UserCodeError

_files: dict[str, str] = {}
"""Description of the object that was imported from each file, such as `algorithm 'package.module:Class'`."""

_place: list[str] = []
"""Current folder of a command, until modules are searched in it."""


def search_current_folder() -> None:
    """Lets `add_current_folder` add the current folder to the search path of modules."""
    _place[:] = [os.getcwd()]


def add_current_folder() -> None:
    """Adds the current folder to the search path of modules, if this process runs a command."""
    while _place:
        folder = _place.pop()
        if folder not in sys.path:
            sys.path.append(folder)


def remember(target: Any, what: str) -> None:
    """Remembers the file of an object that a setting names, for `reported`.

    Args:
        target: Function or class of the user.
        what: Its description for error messages.
    """
    module = getattr(target, "__module__", None) or ""
    if module.partition(".")[0] != "coterie":
        with contextlib.suppress(OSError, TypeError):
            _files[os.path.abspath(inspect.getfile(getattr(target, "func", target)))] = what


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turns exceptions that pass through remembered files into a UserCodeError; others pass unchanged."""
    try:
        yield
    except ReportedError:
        raise
    except Exception as error:
        for frame in traceback.extract_tb(error.__traceback__):
            what = _files.get(os.path.abspath(frame.filename))
            if what is not None:
                raise UserCodeError.of(what, frame.name, error) from error
        raise

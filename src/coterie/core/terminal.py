"""Lines on the terminal, and JSON on standard output with nothing else there.

Names and values in lines come from files, so control characters are shown as escapes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

from coterie.core.text import printable


def print_line(text: str = "", stream: TextIO | None = None) -> None:
    """Prints one line, on stdout by default."""
    print(printable(text), file=stream or sys.stdout, flush=True)


def print_progress(text: str) -> None:
    """Prints text on stderr that the next output overwrites; nothing if stderr is no terminal."""
    if sys.stderr.isatty():
        print(printable(text), end="\r", file=sys.stderr, flush=True)


def print_message(text: str) -> None:
    """Prints a message to the user on stderr, or in a notebook on stdout."""
    print_line(f"coterie: {text}", message_stream())


def message_stream() -> TextIO:
    """Returns the stream of messages: stderr, which notebooks show as errors, so there it is stdout."""
    return sys.stdout if in_notebook() else sys.stderr


def in_notebook() -> bool:
    """True if the process is the kernel of a notebook, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def print_traceback() -> None:
    """Prints the exception that is being handled with its traceback on stderr."""
    for line in traceback.format_exc().rstrip("\n").split("\n"):
        print_line(line, sys.stderr)


_stdout: list[tuple[TextIO, int | None]] = []
"""While other output goes to stderr: the stream for JSON, and its file descriptor, if it is that of the process."""


@contextlib.contextmanager
def reserved_stdout() -> Iterator[None]:
    """Sends what environments, libraries and their processes print to stderr. `print_json` still prints to stdout."""
    stream = sys.stdout
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, sys, "stdout", stream)
        stack.enter_context(_redirected(stream))
        sys.stdout = sys.stderr
        yield


def print_json(value: Any) -> None:
    """Prints a value as one line of JSON."""
    text = json.dumps(value) + "\n"
    stream, descriptor = _stdout[-1] if _stdout else (sys.stdout, None)
    if descriptor is None:
        stream.write(text)
        stream.flush()
        return
    rest = text.encode()
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextlib.contextmanager
def _redirected(stream: TextIO) -> Iterator[None]:
    """Replaces file descriptor 1 by that of stderr, also for child processes and for libraries in other languages."""
    stream.flush()
    try:
        saved = os.dup(1)
    except OSError:  # the process was started without it
        saved = None
    _stdout.append((stream, saved if _descriptor(stream) == 1 else None))
    try:
        if saved is not None:
            os.dup2(2, 1)
        yield
    finally:
        _stdout.pop()
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # replaced by an object in memory
        return None

"""JSON on standard output, and nothing else there."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

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

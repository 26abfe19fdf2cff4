"""Lines on the terminal. Names and values in them come from files, so control characters are shown as escapes."""

from __future__ import annotations

import sys
import traceback
from typing import TextIO

from coterie.core.text import printable


def print_line(text: str = "", stream: TextIO | None = None) -> None:
    """Prints one line, on stdout by default."""
    print(printable(text), file=stream or sys.stdout, flush=True)


def print_progress(text: str) -> None:
    """Prints text on stderr that the next output overwrites; nothing if stderr is no terminal."""
    if sys.stderr.isatty():
        print(printable(text), end="\r", file=sys.stderr, flush=True)


def print_message(text: str) -> None:
    """Prints a message to the user on stderr."""
    print_line(f"coterie: {text}", sys.stderr)


def print_traceback() -> None:
    """Prints the exception that is being handled with its traceback on stderr."""
    for line in traceback.format_exc().rstrip("\n").split("\n"):
        print_line(line, sys.stderr)

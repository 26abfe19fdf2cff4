"""Text from outside, and command lines in messages, quoted for a shell.

Text of files, of the command line, and of names in them may be damaged, or made to deceive.
"""

from __future__ import annotations

import shlex
import unicodedata
from pathlib import Path

_MAX_DIGITS = 19
"""Digits of the largest 64-bit integer."""


def printable(text: str) -> str:
    r"""Returns the text with visible escapes, such as `\x1b`, for all characters that are not printable.

    Terminals would obey control characters, and show text with bidirectional overrides in another order.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def csv_text(text: str) -> str:
    """Returns a name as the text of a CSV cell.

    Spreadsheets run a cell that begins with `=`, `+`, `-` or `@` as a formula. An apostrophe in front keeps it text.
    """
    return f"'{text}" if text.lstrip()[:1] in tuple("=+-@") or text[:1] in tuple("\t\r\n") else text


def shorten(text: str, limit: int = 80) -> str:
    """Returns the text, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shorten_middle(text: str, limit: int) -> str:
    """Returns the text, cut to `limit` characters: three quarters of its start, the rest of its end."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail - 5]} ... {text[-tail:]}"


def find_control_character(text: str) -> str | None:
    """Returns the first control character or lone surrogate except tabs and line breaks; None without."""
    return next((c for c in text if unicodedata.category(c) in {"Cc", "Cs"} and c not in "\t\n"), None)


def parse_integer(text: str) -> int:
    """Returns the integer that decimal digits with a sign and underscores denote.

    Raises:
        ValueError: If it needs more than 64 bits, or the text is not an integer.
    """
    digits = text.strip().lstrip("+-").replace("_", "").lstrip("0")
    value = int(text.replace("_", "")) if len(digits) <= _MAX_DIGITS else None
    if value is None or not -(2**63) <= value < 2**63:
        raise ValueError(f"the integer {shorten(text, 30)} has more than 64 bits")
    return value


def shell_word(word: str | Path) -> str:
    """Returns a word quoted for a shell. A path that begins with a dash gets `./` in front, else it is an option."""
    text = str(word)
    return shlex.quote(f"./{text}" if isinstance(word, Path) and text.startswith("-") else text)


def coterie_command(*words: str | Path) -> str:
    """Returns the command line of `coterie` with these words, as the user can paste it into a shell."""
    return " ".join(["coterie", *(shell_word(word) for word in words)])

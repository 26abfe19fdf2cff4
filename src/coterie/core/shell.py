"""Command lines in messages, quoted for a shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def shell_word(word: str | Path) -> str:
    """Returns a word quoted for a shell. A path that begins with a dash gets `./` in front, else it is an option."""
    text = str(word)
    return shlex.quote(f"./{text}" if isinstance(word, Path) and text.startswith("-") else text)


def coterie_command(*words: str | Path) -> str:
    """Returns the command line of `coterie` with these words, as the user can paste it into a shell."""
    return " ".join(["coterie", *(shell_word(word) for word in words)])

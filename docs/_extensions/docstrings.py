"""Sphinx extension that lets docstrings contain mathematics without reStructuredText markup.

Docstrings write an equation as an indented block after a blank line, which becomes a literal block. Elsewhere, `|x|`,
`a * b` and `u_` are text, not markup.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_MARKED = re.compile(r"^\s*([-*+] |\d+\. |\.\. |:)|::$")
_SECTION = re.compile(r"^\s*[A-Z][A-Za-z ]+:$")


def mark_equations(lines: list[str]) -> list[str]:
    """The docstring with `::` before each indented block that follows a blank line."""
    result: list[str] = []
    indent, marked = 0, False
    for number, line in enumerate(lines):
        if not line.strip():
            result.append(line)
            continue
        depth = len(line) - len(line.lstrip())
        after_blank = number > 0 and not lines[number - 1].strip()
        if after_blank and depth >= indent + 4 and not marked:
            result += [" " * indent + "::", ""]
            marked = True
        elif depth <= indent:
            marked = bool(_MARKED.search(line))
            indent = depth
        if _SECTION.match(line):
            indent, marked = depth + 4, False
        result.append(line)
    return result


def escape_markup(lines: list[str]) -> list[str]:
    """The docstring with bars, asterisks and trailing underscores escaped outside of code and literal blocks."""
    result: list[str] = []
    literal = -1  # indentation of the line that a literal block belongs to
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line.strip() and depth <= literal:
            literal = -1
        result.append(line if literal >= 0 else _escaped(line))
        if line.rstrip().endswith("::"):
            literal = depth
    return result


def _escaped(line: str) -> str:
    start, text = re.match(r"(\s*(?:[*] )?)(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<!\\)([|*])|(?<=\w)(_)(?!\w)", r"\\\1\2", part) for part in parts[::2]]
    return start + "".join(parts)


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replaces the lines of a docstring in place."""
    lines[:] = escape_markup(mark_equations(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}

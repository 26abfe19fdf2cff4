"""Tables and reports on stdout."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.terminal import print_line
from coterie.core.text import printable

_WIDE = 200
"""Columns of a table without a terminal."""

_GLUE = "\x1f"
"""Stands for a space where a line must not be broken."""


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None, width: int | None = None
) -> None:
    """Prints a table whose first column and whose words are never folded.

    If not even the longest words of the columns fit, each row is a paragraph: its first cell, then `heading value`.

    Args:
        columns: Headings.
        rows: Cells: text, numbers, booleans, None, lists or mappings.
        title: Line above the table.
        width: Columns of the table. Default: those of the terminal, without one 200 or more.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, texts = [printable(column) for column in columns], [[printable(cell(x)) for x in row] for row in rows]
    # Files and pipes may have long lines. A terminal folds cells to its width.
    wide = width is None and not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=width or (_WIDE if wide else None))
    widths = _column_widths(headings, texts, None if wide else console.width)
    if widths is None:
        _print_paragraphs(headings, texts, title, console.width)
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        title=None if title is None else Text(printable(title)),
        title_justify="left",
        pad_edge=False,
    )
    for number, (heading, size) in enumerate(zip(headings, widths, strict=True)):
        table.add_column(Text(heading), overflow="fold", no_wrap=number == 0, width=size)
    for row in texts:
        table.add_row(*map(Text, row))
    if wide:
        console.width = max(_WIDE, _total(widths))
    console.print(table)


def _column_widths(headings: Sequence[str], rows: Sequence[Sequence[str]], available: int | None) -> list[int] | None:
    """Returns the widths of columns for a table of the available width: the widest ones shrink to their longest words.

    None if they do not fit. Without a limit, tables have the default width unless their longest words need more.
    """
    from rich.cells import cell_len

    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(cell_len, column), default=0) for column in columns]
    words = [max(cell_len(word) for text in column for word in text.split() or [""]) for column in columns]
    least = [widths[0], *words[1:]]
    limit = max(_WIDE, _total(least)) if available is None else available
    if _total(least) > limit:
        return None
    while _total(widths) > limit:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    """Returns the width of a table: a space on each side of a column, and one between columns."""
    return sum(widths) + 3 * len(widths) - 1


def _print_paragraphs(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, width: int) -> None:
    """Prints a row as its first cell on a line and the others, with their headings, on the following ones."""
    if title is not None:
        for line in [*textwrap.wrap(printable(title), width), ""]:
            print_line(line)
    for first, *others in rows:
        pairs = [f"{name} {text}".strip().replace(" ", _GLUE) for name, text in zip(headings[1:], others, strict=True)]
        lines = textwrap.wrap(
            "; ".join(pairs),
            width=width,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in (first, *lines):
            print_line(line.replace(_GLUE, " "))
    print_line()


def print_definition(term: str, value: Any, indent: int) -> None:
    """Prints a term and its value on lines that fit the terminal. Names are never broken.

    Args:
        term: Text at the start of the first line.
        value: Value as in a table.
        indent: Columns before the following lines, also of the value if the term is shorter.
    """
    width = max(40, shutil.get_terminal_size((80, 24)).columns)
    words = textwrap.wrap(
        f"{term:<{indent}}{cell(value)}",
        width=width,
        subsequent_indent=" " * min(indent, width // 2),
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    for line in words:
        print_line(line)


def cell(value: Any) -> str:
    """Formats a value: yes and no, `-` for None, four significant digits for floats, thousands separators."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(item)}" for key, item in value.items())
    return str(value)


def print_report(report: Mapping[str, Any]) -> None:
    """Prints a report: plain values as lines, dicts as tables. Empty lists and dicts are left out."""
    width = max([12, *map(len, report)])
    for key, value in report.items():
        if not isinstance(value, Mapping) and value != []:
            print_line(f"{key:<{width}} {cell(value)}")
    for key, value in report.items():
        if not isinstance(value, Mapping) or not value:
            continue
        if all(isinstance(inner, Mapping) for inner in value.values()):
            columns = list(dict.fromkeys(column for inner in value.values() for column in inner))
            print_table([key, *columns], [[name, *(inner.get(c) for c in columns)] for name, inner in value.items()])
        else:
            print_table([key, ""], list(value.items()))

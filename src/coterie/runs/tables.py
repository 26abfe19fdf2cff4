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


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None, width: int | None = None
) -> None:
    """Prints a table whose first column is never folded.

    Args:
        columns: Headings.
        rows: Cells: text, numbers, booleans, None, lists or mappings.
        title: Line above the table.
        width: Columns of the table. Default: those of the terminal, 200 without one.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        title=None if title is None else Text(printable(title)),
        title_justify="left",
        pad_edge=False,
    )
    for number, column in enumerate(columns):
        table.add_column(Text(printable(column)), overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(printable(cell(value))) for value in row))
    # Files and pipes may have long lines. A terminal folds cells to its width.
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    Console(width=width or (200 if wide else None)).print(table)


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

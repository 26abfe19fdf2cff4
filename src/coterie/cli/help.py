"""Help texts of commands. At 80 columns, descriptions get most of the width."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

_NAME_COLUMNS = 22
"""Width of the column of options. The description of a longer one begins on the next line."""


class HelpCommand(TyperCommand):
    """A command whose help has the values of options next to their names."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _print_help(self, ctx)


class HelpGroup(TyperGroup):
    """A group of commands whose help lists them by panel, with the first sentence of their descriptions."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _print_help(self, ctx)


def _print_help(command: Any, ctx: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    width = max(40, console.width)
    paragraphs = [" ".join(text.split()) for text in inspect.cleandoc(command.help or "").split("\n\n")]
    examples = [text for text in paragraphs if text.startswith(("coterie ", "Example: coterie "))]
    console.print(Text(f"Usage: {_usage(command, ctx)}\n", style="bold"))
    for text in paragraphs:
        if text not in examples and text != "Examples:":
            console.print(Text(textwrap.fill(text, width) + "\n"))
    if examples:
        console.print(Text("Example" + "s" * (len(examples) > 1), style="bold"))
    for text in examples:
        words = textwrap.wrap(text.removeprefix("Example: "), width - 8, break_on_hyphens=False)
        console.print(Text("  " + " \\\n      ".join(words), style="cyan"))  # lines as a shell accepts them
    if examples:
        console.print()
    children = {name: command.get_command(ctx, name) for name in getattr(command, "commands", {})}
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, child in children.items():
        panel = getattr(child, "rich_help_panel", None)
        panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append((name, first_sentence(child)))
    for title, rows in panels.items():
        _print_rows(console, title, rows, column=max(map(len, children)), width=width)
    parameters = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        rows = [_record(param, ctx) for param in parameters if param.param_type_name == kind]
        column = min(_NAME_COLUMNS, max((len(name) for name, _ in rows), default=0))
        _print_rows(console, title, rows, column=column, width=width)
    if command.epilog:
        console.print(command.epilog)


def _usage(command: Any, ctx: Any) -> str:
    """Returns the usage, with arguments as they are declared: Typer puts brackets around them again."""
    if getattr(command, "commands", None):
        return f"{ctx.command_path} [OPTIONS] COMMAND [ARGS]..."
    arguments = [_record(param, ctx)[0] for param in command.get_params(ctx) if param.param_type_name == "argument"]
    return " ".join([ctx.command_path, "[OPTIONS]", *arguments])


def first_sentence(command: Any) -> str:
    """Returns the first sentence of a command's description."""
    words = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    return words.partition(". ")[0].removesuffix(".") + "."


def _record(param: Any, ctx: Any) -> tuple[str, str]:
    """Returns the names and the value of a parameter, and its meaning with its default."""
    text = param.help or ""
    if param.param_type_name == "argument":
        return (param.metavar or param.name.upper()).strip("{}"), text
    names = ", ".join(sorted((*param.opts, *param.secondary_opts), key=len, reverse=True))
    if getattr(param, "is_flag", False):
        return names, text
    value = param.metavar or _value(param, ctx)
    default = param.get_default(ctx, call=False)
    shown = f" Default: {default}." if param.show_default and default is not None else ""
    return f"{names} {value}", text + shown


def _value(param: Any, ctx: Any) -> str:
    """Returns the word for the value of an option, whose type has other names in older versions of Typer."""
    describe = getattr(param, "display_type", None) or param.make_metavar
    kind = str(describe(ctx)).strip("<>[]")
    name = kind.lower().removesuffix(" range")
    numbers = dict.fromkeys(("int", "integer", "float"), "N")
    return {**numbers, "path": "FILE", "file": "FILE", "str": "TEXT", "text": "TEXT"}.get(name, kind)


def _print_rows(console: Any, title: str, rows: Sequence[tuple[str, str]], *, column: int, width: int) -> None:
    """Prints a heading and rows of two columns; nothing without rows. A longer name has a line of its own."""
    from rich.text import Text

    if not rows:
        return
    console.print(Text(title, style="bold"))
    indent = column + 4
    for name, text in rows:
        lines = textwrap.wrap(text, width - indent, break_on_hyphens=False)
        label = f"  {name}"
        if len(name) > column:
            console.print(Text(label, style="cyan"))
            label = ""
        for line in lines or [""]:
            console.print(Text.assemble((f"{label:<{indent}}", "cyan"), line))
            label = ""
    console.print()

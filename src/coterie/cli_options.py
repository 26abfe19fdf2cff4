"""What commands of `coterie` have in common: their options, and what is named by a run or by settings."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coterie.errors import UserError

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", show_default=False, help="Settings, e.g. algo=ippo steps=2e6 algo.lr=5e-4."
    ),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, or one of its checkpoints.", show_default=False)
]
RunOrOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] [KEY=VALUE]...", show_default=False, help="A run's folder; or settings, with --algo and --env."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, and nothing else there.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", show_default=False, help="YAML settings under those given here."),
]
AlgoName = Annotated[
    str | None, typer.Option("--algo", metavar="NAME", show_default=False, help="Without a run: who acts.")
]
EnvName = Annotated[str | None, typer.Option("--env", metavar="NAME", show_default=False, help="Without a run: where.")]
Mode = Annotated[
    Literal["auto", "greedy", "sample"],
    typer.Option(help="How actions are picked; auto: as the algorithm was published."),
]
Checkpoint = Annotated[str, typer.Option(metavar="best|last|STEPS", help="Which of the run's checkpoints.")]
Seed = Annotated[
    int | None, typer.Option(min=0, show_default=False, help="Seed of the episodes; the run's own if not given.")
]


def run_or_settings(
    command: str, what: list[str] | None, algo: str | None, env: str | None
) -> tuple[Path | None, list[str]]:
    """The run's folder, or the settings of a baseline. UserError for neither and for both."""
    named = [f"{key}={value}" for key, value in (("algo", algo), ("env", env)) if value is not None]
    words = list(what or [])
    run = words[0] if words and ("=" not in words[0] or Path(words[0]).exists()) else None
    if run is None:
        if not named and not words:
            raise UserError(f"`coterie {command}` needs a run, or --algo and --env: e.g. coterie {command} RUN")
        return None, named + words
    if named or words[1:]:
        extra = [f"--{word.replace('=', ' ', 1)}" for word in named] + words[1:]
        raise UserError(f"a run brings its own settings: leave out {' '.join(extra)}, or leave out '{run}'")
    return Path(run), []


def print_report(report: dict[str, Any], json: bool) -> int:
    """Prints a report as a table, or as JSON."""
    if json:
        print(jsonlib.dumps(report))
    else:
        from coterie import tables

        tables.print_report(report)
    return 0

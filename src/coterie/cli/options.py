"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coterie.core.errors import UserError
from coterie.core.json_output import print_json

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", show_default=False, help="Settings, e.g. algo=ippo steps=2e6 algo.lr=5e-4."
    ),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, or of one of its checkpoints.", show_default=False)
]
RunOrOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] [KEY=VALUE]...", show_default=False, help="Folder of a run, or settings of a baseline."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON to stdout.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", show_default=False, help="YAML file of settings, which arguments override."
    ),
]
AlgoName = Annotated[
    str | None, typer.Option("--algo", metavar="NAME", show_default=False, help="Without a run: the algorithm.")
]
EnvName = Annotated[
    str | None, typer.Option("--env", metavar="NAME", show_default=False, help="Without a run: the environment.")
]
Mode = Annotated[
    Literal["auto", "greedy", "sample"],
    typer.Option(help="Action selection. auto: the mode in which the algorithm was published."),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        metavar="auto|best|last|STEPS",
        help="Checkpoint of the run. auto: the best, or an intact one. STEPS: the nearest at or below.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code that a run names, even if it was created by someone else."),
]
Seed = Annotated[int | None, typer.Option(min=0, show_default=False, help="Seed of the episodes. Default: the run's.")]


def run_or_settings(
    command: str, what: list[str] | None, algo: str | None, env: str | None
) -> tuple[Path | None, list[str]]:
    """Returns the run's folder, or the settings of a baseline. Raises UserError if neither or both are given."""
    options = [f"{key}={value}" for key, value in (("algo", algo), ("env", env)) if value is not None]
    words = list(what or [])
    run = words[0] if words and ("=" not in words[0] or Path(words[0]).exists()) else None
    if run is None:
        if not options and not words:
            raise UserError(f"coterie {command}: no run given. Name a run, or use --algo and --env.")
        return None, options + words
    if options or words[1:]:
        extra = [f"--{word.replace('=', ' ', 1)}" for word in options] + words[1:]
        raise UserError(
            f"{' '.join(extra)}: cannot be combined with a run, which has its own settings. Remove it, or remove {run}."
        )
    return Path(run), []


def print_report(report: dict[str, Any], json: bool) -> int:
    """Prints a report as a table or as JSON."""
    if json:
        print_json(report)
    else:
        from coterie.runs import tables

        tables.print_report(report)
    return 0

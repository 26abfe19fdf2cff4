"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coterie.core.errors import UserError
from coterie.core.terminal import print_json

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", show_default=False, help="Settings, e.g. algo=ippo steps=2e6."),
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
    typer.Option("--config", metavar="FILE", show_default=False, help="YAML file; arguments override it."),
]
AlgoName = Annotated[
    str | None, typer.Option("--algo", metavar="NAME", show_default=False, help="The same as algo=NAME.")
]
EnvName = Annotated[str | None, typer.Option("--env", metavar="NAME", show_default=False, help="The same as env=NAME.")]
Mode = Annotated[
    Literal["auto", "greedy", "sample"],
    typer.Option(help="Action selection. auto: the mode in which the algorithm was published."),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        metavar="auto|best|best:TEAM|last|STEPS",
        help="Checkpoint of the run. auto: the best, or the last if none is marked. best:TEAM: the best of one of "
        "several teams. STEPS: the nearest at or below.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import code that a run of someone else names."),
]
Seed = Annotated[int | None, typer.Option(min=0, show_default=False, help="Seed of the episodes. Default: the run's.")]


def with_names(words: list[str] | None, *, algo: str | None = None, env: str | None = None) -> list[str]:
    """Returns settings with those of the options --algo and --env, which mean the same as algo= and env=."""
    return [f"{key}={value}" for key, value in (("algo", algo), ("env", env)) if value is not None] + list(words or [])


def require_environment(settings: list[str]) -> None:
    """Raises UserError for settings that are not of an environment, or if they do not name one."""
    for text in settings:
        if not text.startswith(("env.", "env=")):
            raise UserError(f"{text}: not a setting of the environment. Write env=NAME or env.KEY=VALUE.")
    if not any(text.startswith(("env=", "env.name=")) for text in settings):
        raise UserError(f"{settings[0] if settings else 'env'}: no environment given. Add env=NAME or --env NAME.")


def run_or_settings(
    command: str, what: list[str] | None, algo: str | None, env: str | None, *, with_overrides: bool = False
) -> tuple[Path | None, list[str]]:
    """Returns the run's folder and settings next to it, or no folder and the settings of a baseline.

    Args:
        command: Name of the command.
        what: Words of the command line.
        algo: Value of --algo.
        env: Value of --env.
        with_overrides: True if a run may have settings next to it.

    Raises:
        UserError: If neither a run nor settings are given, or both and that is not possible.
    """
    options = with_names(None, algo=algo, env=env)
    words = list(what or [])
    run = next((word for word in words if "=" not in word or Path(word).exists()), None)
    if run is not None:
        words = [run, *(word for word in words if word != run)]
    if run is not None and with_overrides and algo is None:
        return Path(run), options + words[1:]
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

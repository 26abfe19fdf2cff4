"""`coterie league` and `coterie exploit`: the strength of runs against each other and against a best response."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import Checkpoint, EnvName, Json, Mode, Overrides, RunPath, Trust, print_report, with_names
from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.core.terminal import print_json, print_line, print_message

if TYPE_CHECKING:
    from coterie.commands.league import LeagueResult


def league(
    members: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]RUN...",
            show_default=False,
            help="Run folders, `random`, `scripted` or `scripted:NAME`, optionally with a name. Without a run: also "
            "settings of the environment.",
        ),
    ] = None,
    env: EnvName = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Plot of the matrix, .png or .svg, with its values in a .json next to it. Default: league.png.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="Number of episodes per pair.")] = 200,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "auto",
    trust: Trust = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes, equal for all pairs.")] = 0,
    json: Json = False,
) -> int:
    """Play runs against each other in all pairs. Prints the cross-play matrix, and Elo ratings of symmetric games.

    Rows are the first team of the environment, columns the second. In symmetric games each pair plays on both sides.

    Examples:

    coterie league runs/a runs/b random

    coterie league old=runs/a new=runs/b scripted --episodes 1000 --out matrix.png
    """
    from coterie.commands import league as command
    from coterie.runs.progress import PeriodicProgress

    target = out or Path("league.png")
    if target.suffix not in (".png", ".svg"):
        raise UserError(f"--out {target}: unsupported file type. Expected .png or .svg.")
    named = [word for word in members or [] if not word.startswith(("env.", "env="))]
    settings = with_names([word for word in members or [] if word.startswith(("env.", "env="))], env=env)

    def progress(pair: str) -> PeriodicProgress:
        return PeriodicProgress(print_message, pair)

    options = command.LeagueOptions(episodes=episodes, mode=mode, checkpoint=checkpoint, seed=seed)
    result = command.league(named, settings, options, progress)
    report = _save(result, target)
    if json:
        print_json(report)
    else:
        _print(result)
    return 0


def _save(result: LeagueResult, target: Path) -> dict[str, Any]:
    """Writes the plot and its values next to it; returns the values."""
    from coterie.commands.league import draw

    target.parent.mkdir(parents=True, exist_ok=True)
    draw(result).savefig(target, dpi=150)
    values = target.with_suffix(".json")
    report = result.report() | {"plot": str(target)}
    write_text(values, jsonlib.dumps(report) + "\n")
    print_line(f"wrote {target} and {values}", sys.stderr)
    return report


def _print(result: LeagueResult) -> None:
    """Prints the tables of a league."""
    from coterie.commands.league import tables
    from coterie.runs.tables import print_table

    for title, columns, rows in tables(result):
        print_line()
        print_line(title)
        print_table(columns, rows)


def exploit(
    run: RunPath,
    overrides: Overrides = None,
    team: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="Team to exploit. Default: the second.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS",
            show_default=False,
            help="Environment steps to train the best response. Default: a fifth of the run's.",
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, max=10**7, help="Number of episodes to measure the gap.")] = 400,
    checkpoint: Checkpoint = "auto",
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Train a best response to one team of a run. Its gain over the run's own opponent team is measured.

    The best response uses the algorithm and settings of the run unless overridden, and trains against the frozen team.

    A large gap proves that the team is exploitable. A small gap does not prove that it is not.

    Examples:

    coterie exploit runs/selfplay --steps 500k

    coterie exploit runs/tag --team agent algo=mappo algo.lr=5e-4
    """
    from coterie.commands.best_response import exploit as respond
    from coterie.config.schema import parse_count

    budget = None if steps is None else parse_count(steps)
    if budget is not None and (not isinstance(budget, int) or budget < 1):
        raise UserError(f"--steps {steps}: not a number of environment steps. Write e.g. 500k.")
    result = respond(run, list(overrides or []), team=team, steps=budget, episodes=episodes, checkpoint=checkpoint)
    if json:
        print_json(result.report())
        return 0
    print_report(
        {
            "exploited team": f"{result.team}, by {result.response} in {result.steps:,} steps",
            "team return of the best response": (
                f"{_with_interval(result.response_return, result.response_error)}, win rate {result.response_won:.2f}"
            ),
            "team return of the own opponent": (
                f"{_with_interval(result.own_return, result.own_error)}, win rate {result.own_won:.2f}"
            ),
            "gap": _with_interval(result.gap, result.error),
            "run": result.run,
        },
        json=False,
    )
    return 0


def _with_interval(mean: float, error: float) -> str:
    """Formats a mean with its standard error and 95% interval."""
    from coterie.functional.intervals import interval_95

    low, high = interval_95(mean, error)
    return f"{mean:.4g} ± {error:.2g} (95%: {low:.4g} to {high:.4g})"

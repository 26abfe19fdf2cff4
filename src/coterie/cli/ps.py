"""`coterie ps`: state, speed and remaining time of runs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from coterie.cli.options import Json
from coterie.core.terminal import print_json


def ps(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            show_default=False,
            help="Folders of runs, or that contain runs, or patterns. Default: runs.",
        ),
    ] = None,
    state: Annotated[
        Literal["training", "finished", "stopped"] | None,
        typer.Option(show_default=False, help="Only runs in this state."),
    ] = None,
    json: Json = False,
) -> int:
    """List runs with their state, progress and latest return. Also speed and remaining time.

    Examples:

    coterie ps

    coterie ps 'runs/**' --state training
    """
    from coterie.runs.activity import status
    from coterie.runs.folder import find_runs
    from coterie.runs.progress import duration, number
    from coterie.runs.tables import print_table

    found = [status(path) for path in find_runs(runs or ["runs"])[1]]
    found = [run for run in found if state is None or run.state == state]
    if json:
        print_json([run.report() for run in found])
        return 0
    rows = [
        [
            run.run,
            f"{run.algo} on {run.env}" if run.env else run.note,
            run.seed,
            run.state,
            f"{run.steps:,} / {run.total:,}",
            f"{min(1.0, run.steps / run.total):.0%}" if run.total else None,
            None if run.steps_per_s is None else f"{run.steps_per_s:,.0f}",
            None if run.seconds_left is None or run.state == "finished" else duration(run.seconds_left),
            None if run.wall_s is None else duration(run.wall_s),
            ", ".join(f"{team} {number(value)}".strip() for team, value in run.returns.items()) or None,
        ]
        for run in found
    ]
    states = [run.state for run in found]
    title = ", ".join(f"{states.count(name)} {name}" for name in dict.fromkeys(states)) or "no runs"
    columns = ["run", "training", "seed", "state", "steps", "done", "steps/s", "left", "time", "team return"]
    print_table(columns, rows, title=title)
    return 0

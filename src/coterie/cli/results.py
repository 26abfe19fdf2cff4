"""The last output of the commands `train` and `resume`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coterie.assembly.rank_processes import reports_results
from coterie.assembly.result import RunResult
from coterie.config.sources import from_run
from coterie.core.terminal import print_json, print_line
from coterie.runs.progress import number


def finish(result: RunResult, json: bool) -> int:
    """Prints the report of a run as JSON if requested, or its folder and returns if its progress was not displayed.

    Returns:
        The exit code.
    """
    if not reports_results():
        return int(result.exit_code)
    if json:
        print_json(result.report())
    elif _was_silent(result.run):
        for line in brief(result):
            print_line(line)
    return int(result.exit_code)


def brief(result: RunResult) -> Iterator[str]:
    """Returns lines with the folder of a run, its steps, and the final and highest return of every team.

    They end with the comparison of the last returns with those of the random policy if something looks wrong.
    """
    yield f"{result.run}: {result.summary.steps:,} steps"
    for team in result.summary.teams:
        random = "" if team.random is None else f", random policy {number(team.random)}"
        name = f"{team.team}: " if team.team else ""
        yield f"{name}team return in {team.area} {number(team.now)}, highest {number(team.best)}{random}"
    if result.summary.needs_diagnosis:
        yield from result.summary.comparisons


def _was_silent(run: Path) -> bool:
    """True if the run's configuration says `progress=off`."""
    settings = {setting.key: setting.value for setting in from_run(run / "config.yaml")}
    return settings.get("progress") in {"off", False}  # YAML 1.1 reads off as False

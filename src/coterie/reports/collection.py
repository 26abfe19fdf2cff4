"""Collection of runs: finds them below folders, by patterns and in files of marl-eval, and reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import UserError
from coterie.core.files import read_text
from coterie.core.metrics import by_team
from coterie.core.text import coterie_command
from coterie.reports.fresh_evaluations import read_fresh
from coterie.reports.marl_eval import read_file
from coterie.reports.records import CollectedRun, EvaluationSeries, FreshEvaluation
from coterie.runs.activity import activity
from coterie.runs.curves import RETURNS, Run
from coterie.runs.evaluations import measurement
from coterie.runs.folder import RunFolder, find_runs

RETURN = RETURNS[0]
"""Metric that is compared by default."""

_LISTED = 3
"""Runs that a message names."""


@dataclass(frozen=True)
class Collection:
    """Runs to compare.

    Attributes:
        runs: The runs, in the order of the arguments.
        unfinished: Runs that were left out because they have not done all their steps.
        notes: Sentences on what was left out, for the user.
    """

    runs: tuple[CollectedRun, ...]
    unfinished: tuple[CollectedRun, ...] = ()
    notes: tuple[str, ...] = ()


def collect(
    paths: Sequence[str | Path], *, unfinished: bool = False, on_progress: Callable[[int, int], None] | None = None
) -> Collection:
    """Reads all runs of the paths.

    Args:
        paths: Folders of runs, folders that contain runs, patterns such as `runs/**`, and JSON files of marl-eval.
        unfinished: True to include runs that have not done all their steps.
        on_progress: Called after each folder with the number of folders read and their total.

    Raises:
        UserError: If a path is not a run and contains none, if a run cannot be read, or if no run is left.
    """
    if not paths:
        raise UserError("no runs given. Name folders of runs, or folders that contain runs, such as runs.")
    files, folders = find_runs(paths)
    found: list[CollectedRun] = []
    for number, folder in enumerate(folders, start=1):
        found.append(read_run(folder))
        if on_progress is not None:
            on_progress(number, len(folders))
    for file in files:
        found += read_file(file)
    missing = tuple(run for run in found if run.state != "finished")
    if unfinished or not missing:
        return Collection(tuple(found))
    if len(missing) == len(found):
        raise UserError(f"{_unfinished(missing)}. There is no other run. Add --unfinished to compare them as they are.")
    note = f"{_unfinished(missing)}. Left out; add --unfinished to include them as they are."
    return Collection(tuple(run for run in found if run.state == "finished"), missing, (note,))


def _unfinished(runs: Sequence[CollectedRun]) -> str:
    """Returns which runs are not finished, and how to continue them."""
    words = "1 run has" if len(runs) == 1 else f"{len(runs)} runs have"
    listed = [f"{run.name} at {run.steps:,} of {run.total:,} steps" for run in runs[:_LISTED]]
    more = [f"{len(runs) - _LISTED} more"] if len(runs) > _LISTED else []
    stopped = next((run for run in runs if run.state == "stopped"), None)
    resume = "" if stopped is None else f". Continue with: {coterie_command('resume', Path(stopped.name))}"
    return f"{words} not finished ({', '.join([*listed, *more])}){resume}"


def read_run(path: Path) -> CollectedRun:
    """Reads one run of Coterie.

    Raises:
        UserError: If it cannot be read.
    """
    folder = RunFolder.open(path)
    log, manifest = Run.load(path), folder.read_manifest()
    total = _integer(log.all_settings.get("steps"))
    now = activity(folder, total)
    state = "finished" if now.is_complete else now.state  # trained in this process, which still exists
    metrics = metric_names(log.rows)
    teams = _learning_teams(metrics)
    return CollectedRun(
        name=str(path),
        origin="coterie",
        log=log,
        state=state,
        steps=now.steps,
        total=total,
        teams=teams,
        scale="team",
        metrics=metrics,
        agents=_agents(manifest, teams),
        manifest=manifest,
        fresh=_current(folder),
    )


def _current(folder: RunFolder) -> tuple[FreshEvaluation, ...]:
    """Returns the fresh evaluations of a run without those of checkpoints that are no longer the last or the best."""
    now = {"final": _pointer(folder, "last"), "best": _pointer(folder, "best")}
    return tuple(fresh for fresh in read_fresh(folder.path) if now[fresh.policies] in (None, fresh.steps))


def _pointer(folder: RunFolder, name: str) -> int | None:
    """Returns the steps of the last or the best checkpoint; None if it is unknown."""
    try:
        return int(read_text(folder.checkpoints_path / name))
    except (OSError, ValueError):
        return None


def _integer(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def metric_names(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns the names of all metrics in a log, in the order of their first entry."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(rows)))


def _learning_teams(metrics: Sequence[str]) -> tuple[str, ...]:
    """Returns the teams with losses in the log; all of them if none has any."""
    names = dict.fromkeys(metrics, 0.0)
    teams = list(dict.fromkeys(team for name in RETURNS for team in by_team(names, name)))
    if teams == [""] or not teams:
        return ("",)
    learning = [team for team in teams if any(name.startswith(f"loss/{team}/") for name in metrics)]
    return tuple(learning or teams)


def _agents(manifest: Mapping[str, Any], teams: Sequence[str]) -> dict[str, int]:
    """Returns the number of agents by team, as the manifest lists them."""
    counts: dict[str, int] = {}
    listed = manifest.get("teams")
    for name, team in listed.items() if isinstance(listed, Mapping) else ():
        roles = team.get("roles") if isinstance(team, Mapping) else None
        if isinstance(roles, Mapping):
            counts[name] = sum(len(role.get("agents", ())) for role in roles.values() if isinstance(role, Mapping))
    if tuple(teams) == ("",) and len(counts) == 1:
        return {"": next(iter(counts.values()))}
    return counts


# -------------------------------------------------------------------------------------------------------------- series


def series_of(run: CollectedRun, metric: str = RETURN, team: str = "") -> EvaluationSeries | None:
    """Returns the values of a metric of one team, with errors and episodes where they are logged; None without values.

    Values that are not finite are left out; `not_finite` contains their steps.

    Args:
        run: The run.
        metric: Metric without the team's name, such as `eval/return_mean` or `eval/metric/won`.
        team: Team; "" for the only one and for metrics of the environment.
    """
    area, _, rest = metric.partition("/")
    name = f"{area}/{team}/{rest}" if team else metric
    points: dict[int, tuple[float, ...]] = {}
    not_finite: set[int] = set()
    for row in run.log.rows:
        value = row.get(name)
        if value is None:
            continue
        if not math.isfinite(value):
            not_finite.add(row["steps"])
            continue
        measured = measurement(row, name) if "eval/episodes" in row else None
        error, episodes = (math.nan, math.nan) if measured is None else (measured.error, measured.episodes)
        points[row["steps"]] = (row["steps"], row.get("time/wall_s", math.nan), value, error, episodes)
    if not points:
        return None
    steps, seconds, mean, error, episodes = np.array([points[step] for step in sorted(points)], dtype=np.float64).T
    left_out = tuple(sorted(not_finite - set(points)))
    return EvaluationSeries(steps, seconds, mean, error, episodes, left_out)

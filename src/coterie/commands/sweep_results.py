"""Results of a sweep: a table of its runs, and one of its configurations over their seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.json_output import print_json
from coterie.runs.tables import print_table

Outcome = Mapping[str, Any]
"""Result of a job: job, configuration, seed, state, exit_code, and the report of its run or an error."""


def print_results(outcomes: Sequence[Outcome], json: bool) -> None:
    """Prints the tables, or one JSON object per job."""
    if json:
        for outcome in outcomes:
            print_json(dict(outcome))
        return
    succeeded = sum(outcome["exit_code"] == 0 for outcome in outcomes)
    columns, rows = _runs(outcomes)
    print_table(columns, rows, title=f"{succeeded} of {len(outcomes)} runs succeeded")
    columns, rows = _configurations(outcomes)
    print_table(columns, rows, title="Returns at the end: mean and standard error over seeds")


def _runs(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[Any]]]:
    columns_by_team = [(team, name) for team in _teams(outcomes) for name in ("random", "now", "best")]
    columns = ["job", "state", "exit", "wall, s", *(f"{team}: {name}" for team, name in columns_by_team), "run"]
    rows = [
        [
            outcome["job"],
            outcome["state"],
            outcome["exit_code"],
            outcome.get("wall_s"),
            *(outcome.get("teams", {}).get(team, {}).get(name) for team, name in columns_by_team),
            outcome.get("run") or outcome.get("error"),
        ]
        for outcome in outcomes
    ]
    return columns, rows


def _configurations(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[Any]]]:
    """Returns one row per configuration, with the final and the best returns of its successful runs."""
    kinds = (("now", "mean"), ("best", "best mean"))
    teams = _teams(outcomes)
    columns = ["configuration", "seeds"]
    columns += [f"{team}: {text}" for team in teams for _, label in kinds for text in (label, "std. error")]
    rows = []
    for name in dict.fromkeys(str(outcome["configuration"]) for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome["configuration"] == name]
        done = [outcome for outcome in own if outcome["exit_code"] == 0]
        cells: list[Any] = []
        for team in teams:
            for key, _ in kinds:
                cells += mean_and_error([o.get("teams", {}).get(team, {}).get(key) for o in done])
        rows.append([name, _seeds(done), *cells, _states(own)])
    return [*columns, "state"], rows


def mean_and_error(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Returns the mean of the values that exist, and its standard error s / sqrt(n), which needs two of them.

    s is the sample standard deviation, with n - 1 in its denominator.
    """
    found = [value for value in values if value is not None]
    if not found:
        return None, None
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
    return statistics.fmean(found), error


def _seeds(outcomes: Sequence[Outcome]) -> str:
    """Returns the seeds as text, consecutive ones as a range: `0-4, 7`."""
    seeds = sorted({int(outcome["seed"]) for outcome in outcomes})
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts) or "-"


def _states(outcomes: Sequence[Outcome]) -> str:
    """Returns e.g. `2 finished, 1 failed`."""
    states = [str(outcome["state"]) for outcome in outcomes]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _teams(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(team for outcome in outcomes for team in outcome.get("teams", {})))

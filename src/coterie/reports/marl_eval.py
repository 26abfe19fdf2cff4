"""The JSON format of marl-eval, which BenchMARL and Mava write, and its conversion to and from runs.

    {environment: {task: {algorithm: {run: {step_i: {step_count, elapsed_time, METRIC: [values]}, absolute_metrics}}}}}

`absolute_metrics` are not the same in all programs. Mava writes the mean of a fresh evaluation of the best policies,
Coterie its episodes. BenchMARL writes the highest episode of all evaluations, and Coterie the peak if there is no fresh
evaluation. These two are no fresh evaluations and are not read as such.

Source: Gorsane et al. 2022, "Towards a Standardised Performance Evaluation Protocol for Cooperative MARL".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.reports.options import Scale
from coterie.reports.records import CollectedRun, FreshEvaluation, Trial
from coterie.runs.curves import Run

TEAM_RETURN = "team_return"
"""Metric under which returns of teams are written: the sum over a team's agents."""

_RETURNS = (TEAM_RETURN, "return", "episode_return", "mean_episode_return", "returns", "mean_return", "reward")
"""Names of the metric that is read as the return, the first one that a run has."""

_ABSOLUTE = "absolute_metrics"
_NOT_METRICS = ("step_count", "elapsed_time")
_FIX = "Expected the JSON format of marl-eval: {environment: {task: {algorithm: {run: {step_0: {...}}}}}}."


def read_file(path: Path, scale: Scale | None = None) -> list[CollectedRun]:
    """Reads the runs of a file. The return becomes `eval/return_mean`, another metric `eval/metric/NAME`.

    Args:
        path: The file.
        scale: `team` or `agent`: convention of its returns. None: unknown, unless Coterie has written the file.

    Raises:
        UserError: If the file is not in the format.
    """
    runs = []
    for env, tasks in _items(strict_json.read_object(path, _FIX), path, "environments"):
        for task, algos in _items(tasks, path, env):
            for algo, by_run in _items(algos, path, f"{env}/{task}"):
                for name, entries in _items(by_run, path, f"{env}/{task}/{algo}"):
                    place = f"{path}:{env}/{task}/{algo}/{name}"
                    runs.append(_run(place, (env, task, algo, name), entries, scale))
    if not runs:
        raise UserError(f"{path}: contains no runs. {_FIX}")
    return runs


def _items(value: Any, path: Path, place: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: {place} is not an object. {_FIX}")
    yield from value.items()


def _run(place: str, names: tuple[str, str, str, str], entries: Any, scale: Scale | None) -> CollectedRun:
    env, task, algo, name = names
    if not isinstance(entries, dict):
        raise UserError(f"{place}: is not an object. {_FIX}")
    steps = [_step(entry, f"{place}/{key}") for key, entry in entries.items() if key != _ABSOLUTE]
    if not steps:
        raise UserError(f"{place}: has no evaluations. {_FIX}")
    returns = next((metric for metric in _RETURNS if any(metric in values for _, _, values in steps)), None)
    rows = sorted((_row(step, seconds, values, returns) for step, seconds, values in steps), key=lambda r: r["steps"])
    absolute = _values(entries.get(_ABSOLUTE, {}), f"{place}/{_ABSOLUTE}")
    episodes = max(len(values.get(returns or "", ())) for *_, values in steps)
    if len(absolute.get(returns or "", ())) == 1 and (episodes > 1 or returns == TEAM_RETURN):
        absolute = {}  # one value of several episodes is their maximum
    fresh = {("", _name(metric, returns)): np.array(values) for metric, values in absolute.items()}
    number = re.search(r"(\d+)\D*$", name)
    log = Run(
        path=Path(place),
        env=f"{env}/{task}",
        algo=algo,
        seed=int(number.group(1)[:18]) if number else None,
        settings={},
        all_settings={},
        rows=rows,
        levels={},
    )
    done = rows[-1]["steps"]
    return CollectedRun(
        name=place,
        origin="marl-eval",
        log=log,
        state="finished",
        steps=done,
        total=done,
        teams=("",),
        scale="team" if returns == TEAM_RETURN else scale,
        metrics=tuple(dict.fromkeys(name for row in rows for name in row)),
        fresh=(FreshEvaluation("best", done, fresh),) if fresh else (),
    )


def _step(entry: Any, place: str) -> tuple[int, float, dict[str, list[float]]]:
    """Returns the steps, the seconds and the values of an evaluation by metric."""
    if not isinstance(entry, dict):
        raise UserError(f"{place}: is not an object. {_FIX}")
    steps, seconds = entry.get("step_count"), entry.get("elapsed_time", math.nan)
    if not isinstance(steps, int | float) or steps < 0 or not isinstance(seconds, int | float):
        raise UserError(f"{place}: step_count is {steps!r}, elapsed_time {seconds!r}. Expected numbers.")
    return int(steps), float(seconds), _values({k: v for k, v in entry.items() if k not in _NOT_METRICS}, place)


def _values(entry: Any, place: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for metric, values in entry.items() if isinstance(entry, dict) else ():
        listed = values if isinstance(values, list) else [values]
        if not listed or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in listed):
            raise UserError(f"{place}: {metric} is not a list of numbers. {_FIX}")
        found[metric.lower()] = [float(value) for value in listed]
    return found


def _name(metric: str, returns: str | None) -> str:
    return "eval/return_mean" if metric == returns else f"eval/metric/{metric}"


def _row(steps: int, seconds: float, values: Mapping[str, list[float]], returns: str | None) -> dict[str, Any]:
    """Returns a log entry like those of Coterie. A single value is a mean over an unknown number of episodes."""
    row: dict[str, Any] = {"steps": steps, "time/wall_s": seconds}
    for metric, listed in values.items():
        name, count = _name(metric, returns), len(listed)
        row[name] = float(np.mean(listed))
        if count > 1:
            error = name.replace("return_mean", "return_error").replace("eval/metric/", "eval/metric_error/", 1)
            row[error] = float(np.std(listed, ddof=1) / math.sqrt(count))
            row["eval/episodes"] = count
    return row


# ------------------------------------------------------------------------------------------------------------- writing


def write_file(trials: Sequence[Trial], path: Path, metric: str, *, lowest: bool = False) -> list[str]:
    """Writes runs in the format of marl-eval, atomically.

    The return of a team is written as `team_return`, a metric of the environment under its name. Values of evaluations
    are means, lists of one number; those of a fresh evaluation of the best policies are lists of all episodes. Commas
    in labels of algorithms become semicolons, because the package marl-eval refuses them.

    Args:
        trials: The runs. Tasks are split at the first slash into environment and task.
        path: The file.
        metric: Metric of the trials.
        lowest: True if lower values are better, for the peak.

    Returns:
        Sentences on what differs from the format, for the user.

    Raises:
        UserError: If the file cannot be written.
    """
    name = TEAM_RETURN if metric.endswith("return_mean") else metric.rpartition("/")[2]
    tree: dict[str, Any] = {}
    without = 0
    for trial in trials:
        env, _, task = trial.task.partition("/")
        algo = trial.algo.replace(",", ";")  # the package refuses commas in names of algorithms
        runs = tree.setdefault(env, {}).setdefault(task or env, {}).setdefault(algo, {})
        key = base = f"seed_{len(runs) if trial.seed is None else trial.seed}"
        while key in runs:
            key = f"{base}_{len(runs)}"
        without += trial.absolute is None
        runs[key] = _entries(trial, name, lowest=lowest)
    write_text(path, json.dumps(tree, indent=1) + "\n")
    if not without:
        return []
    words = "1 run has" if without == 1 else f"{without} runs have"
    return [
        f"{path}: {words} no fresh evaluation of the best policies, so absolute_metrics is the peak of training. "
        "Add --evaluate."
    ]


def _entries(trial: Trial, name: str, *, lowest: bool) -> dict[str, Any]:
    series = trial.series
    entries: dict[str, Any] = {}
    for i in range(len(series)):
        entries[f"step_{i}"] = {"step_count": int(series.steps[i]), name: [float(series.mean[i])]}
        if math.isfinite(series.seconds[i]):
            entries[f"step_{i}"]["elapsed_time"] = float(series.seconds[i])
    absolute = [series.peak(lowest=lowest)] if trial.absolute is None else [float(value) for value in trial.absolute]
    return {**entries, _ABSOLUTE: {name: absolute}}

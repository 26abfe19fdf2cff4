"""Evaluations of a run, read from its log, with standard errors, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.functional.intervals import error_from_std, welch_test
from coterie.runs import loggers

RETURN_CONVENTION = "team return: sum over the agents of a team, group rewards counted once"
"""Meaning of returns on every screen. A return of single agents is labeled so."""

SIGNIFICANCE = 0.05
"""p-value of Welch's test below which two evaluations differ significantly."""


@dataclass(frozen=True)
class Measurement:
    """Mean of a metric in one evaluation.

    Attributes:
        steps: Environment steps of the run at the evaluation.
        mean: Mean over episodes.
        error: Its standard error; NaN if unknown.
        episodes: Number of episodes.
    """

    steps: int
    mean: float
    error: float
    episodes: int

    def __str__(self) -> str:
        error = f" ± {self.error:.2g}" if math.isfinite(self.error) else ""
        return f"{self.mean:.4g}{error} ({self.episodes:,} episodes)"

    def report(self) -> dict[str, Any]:
        """Returns the values as plain numbers; None for an unknown error."""
        error = self.error if math.isfinite(self.error) else None
        return {"mean": self.mean, "error": error, "episodes": self.episodes}


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of evaluations in a `metrics.jsonl`, oldest first; none if the file cannot be read."""
    try:
        return [row for row in loggers.read(path) if "eval/episodes" in row]
    except UserError:
        return []


def measurement(row: Mapping[str, Any], metric: str) -> Measurement | None:
    """Returns a metric of an evaluation, None if it does not contain it."""
    mean, episodes = row.get(metric, math.nan), row["eval/episodes"]
    if not math.isfinite(mean) or not math.isfinite(episodes):
        return None
    return Measurement(row["steps"], mean, _error(row, metric), int(episodes))


def _error(row: Mapping[str, Any], metric: str) -> float:
    """Returns the standard error of a metric."""
    if metric.startswith("eval/metric/"):
        return row.get(metric.replace("eval/metric/", "eval/metric_error/", 1), math.nan)
    return return_error(row, metric) if metric.endswith("/return_mean") else math.nan


def return_error(row: Mapping[str, Any], metric: str) -> float:
    """Returns the standard error of a mean return; that of training and older runs from the standard deviation."""
    area, prefix = metric.partition("/")[0], metric.removesuffix("return_mean")
    from_std = error_from_std(row.get(f"{prefix}return_std", math.nan), row.get(f"{area}/episodes", math.nan))
    return row.get(f"{prefix}return_error", from_std)


def better_last(chosen: Measurement, last: Measurement, metric: str, *, lowest: bool = False) -> str | None:
    """Returns a sentence if the last evaluation is significantly better than that of a chosen checkpoint; else None.

    Args:
        chosen: Evaluation of the checkpoint.
        last: Last evaluation of the run.
        metric: Name of the metric, for the sentence.
        lowest: True if lower values are better.
    """
    z, p = welch_test(chosen.mean, chosen.error, last.mean, last.error)
    if last.steps == chosen.steps or not p < SIGNIFICANCE or (z > 0) == lowest:
        return None
    return (
        f"the last evaluation, at step {last.steps:,}, is significantly better: {metric} {last} instead of {chosen}, "
        f"Welch's test in the normal approximation z = {abs(z):.1f}, p = {p:.1g}. Use --checkpoint last"
    )

"""Curves over environment steps and wall time: interquartile means of runs, and times to a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from coterie.reports.aggregates import Scores
from coterie.reports.bootstrap import BAND_REPETITIONS, REPETITIONS, interval, random_numbers, resample
from coterie.reports.comparison import Axis, Band, Estimate, TimeToThreshold
from coterie.reports.records import EvaluationSeries

_POINTS = 100
"""Points of a curve whose runs were evaluated at different times."""


def axis_of(series: EvaluationSeries, axis: Axis) -> np.ndarray:
    """Returns the steps or seconds of a series, [P]."""
    return series.steps if axis == "steps" else series.seconds


def common_grid(series: Sequence[EvaluationSeries], axis: Axis) -> np.ndarray | None:
    """Returns places [P] where all series have values: those of the evaluations if they are equal, else 100 places.

    None if the series do not overlap, or a time is unknown.
    """
    places = [axis_of(one, axis) for one in series]
    if not all(np.isfinite(x).all() for x in places):
        return None
    first, last = max(x[0] for x in places), min(x[-1] for x in places)
    if all(len(x) == len(places[0]) and np.array_equal(x, places[0]) for x in places):
        return places[0]
    return np.linspace(first, last, _POINTS) if first < last else None


def interpolated(series: Sequence[EvaluationSeries], axis: Axis, grid: np.ndarray) -> np.ndarray:
    """Returns the means of the series at the places of the grid, linearly interpolated, [n, P]."""
    return np.stack([np.interp(grid, axis_of(one, axis), one.mean) for one in series])


def band(
    statistic: Callable[[Scores], np.ndarray], curves: Sequence[np.ndarray], grid: np.ndarray, *names: str
) -> Band:
    """Returns a statistic of curves at each place, with a pointwise bootstrap band if no task has a single run.

    Args:
        statistic: Function of scores by task, [.., n], that keeps leading dimensions.
        curves: Values of the runs by task, [n, P].
        grid: Places, [P].
        *names: Names of the random numbers.
    """
    value = statistic([x.T for x in curves])
    if min(len(x) for x in curves) < 2:
        unknown = np.full(len(grid), math.nan)
        return Band(grid, value, unknown, unknown)
    samples = resample(curves, random_numbers(*names, "band"), BAND_REPETITIONS)
    low, high = interval(statistic([np.moveaxis(x, 1, -1) for x in samples]))
    return Band(grid, value, low, high)


# ----------------------------------------------------------------------------------------------------------- threshold


def first_reach(series: EvaluationSeries, threshold: float, axis: Axis, *, lowest: bool = False) -> float:
    """Returns when a run first reaches a threshold, linearly interpolated between evaluations.

    Args:
        series: Evaluations of the run.
        threshold: The threshold.
        axis: Unit of the result.
        lowest: True if lower values are better.

    Returns:
        Steps or seconds; infinite if the threshold is not reached.
    """
    sign = -1.0 if lowest else 1.0
    above = sign * (series.mean - threshold)
    reached = np.flatnonzero(above >= 0)
    if not len(reached):
        return math.inf
    at, places = int(reached[0]), axis_of(series, axis)
    if at == 0:
        return float(places[0])
    share = -above[at - 1] / (above[at] - above[at - 1])
    return float(places[at - 1] + share * (places[at] - places[at - 1]))


def time_to_threshold(
    series: Sequence[EvaluationSeries], threshold: float, *names: str, lowest: bool = False
) -> TimeToThreshold:
    """Returns the median time over runs until they reach a threshold, with bootstrap intervals over runs.

    Runs that do not reach it count as infinitely slow, so the median exists if more than half of the runs reach it.

    Args:
        series: Evaluations of the runs.
        threshold: The threshold in the unit of the metric.
        *names: Names of the random numbers.
        lowest: True if lower values are better.
    """
    steps = np.array([first_reach(one, threshold, "steps", lowest=lowest) for one in series])
    seconds = np.array([first_reach(one, threshold, "seconds", lowest=lowest) for one in series])
    return TimeToThreshold(
        threshold=threshold,
        reached=int(np.isfinite(steps).sum()),
        runs=len(series),
        steps=_median(steps, *names),
        seconds=_median(seconds, *names),
    )


def _median(times: np.ndarray, *names: str) -> Estimate:
    if np.isnan(times).any():
        return Estimate(math.nan)
    value = float(_middle(times))
    if len(times) < 2:
        return Estimate(value)
    low, high = interval(_middle(resample([times], random_numbers(*names, "threshold"), REPETITIONS)[0]))
    return Estimate(value, float(low), float(high))


def _middle(times: np.ndarray) -> np.ndarray:
    """Returns the median over the last axis; infinite if one of the two middle values is."""
    ordered, count = np.sort(times, axis=-1), times.shape[-1]
    low, high = ordered[..., (count - 1) // 2], ordered[..., count // 2]
    return np.where(np.isinf(high), high, (low + np.where(np.isinf(high), low, high)) / 2)

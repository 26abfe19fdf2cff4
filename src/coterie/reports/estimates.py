"""Statistics of scores over seeds and tasks, bootstrap intervals, tests, and curves.

Scores are a sequence of arrays, one per task, [.., n] with the scores of its n runs. Tasks may have different numbers
of runs, and count equally. Leading dimensions, such as bootstrap samples, are the same in all tasks and are kept.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice". With equal numbers
of runs the results are those of its package rliable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from coterie.core.seeds import seed_of
from coterie.functional.student_t import two_sided_p_value
from coterie.reports.comparison import Axis, Band, Estimate, TimeToThreshold
from coterie.reports.records import EvaluationSeries

Scores = Sequence[np.ndarray]
"""Scores by task, [.., n] each."""

REPETITIONS = 10_000
"""Bootstrap samples of an interval."""

BAND_REPETITIONS = 1_000
"""Bootstrap samples of each point of a band."""

_TAIL = 0.025
_CHUNK = 4_000_000
"""Numbers drawn at once."""
_POINTS = 100
"""Points of a curve whose runs were evaluated at different times."""
_QUARTER = 0.25


def mean(scores: Scores) -> np.ndarray:
    """Mean over tasks of the mean over runs.

        1/M sum_m 1/n_m sum_i x_mi

    Args:
        scores: By task, [.., n].

    Returns:
        The mean, [..].
    """
    return np.mean(_task_means(scores), axis=-1)


def median(scores: Scores) -> np.ndarray:
    """Median over tasks of the mean over runs, median_m (1/n_m sum_i x_mi). With one task it is that task's mean.

    Args:
        scores: By task, [.., n].

    Returns:
        The median, [..].
    """
    return np.median(_task_means(scores), axis=-1)


def median_of_runs(scores: Scores) -> np.ndarray:
    """Median of all scores of all tasks, [..]; on one task, the median over its runs."""
    return np.median(np.concatenate(scores, axis=-1), axis=-1)


def interquartile_mean(scores: Scores) -> np.ndarray:
    """Mean of the middle half of all scores of all tasks.

    With equal numbers of runs, a quarter of the scores, rounded down, is cut off at each end.
    Otherwise the scores of a task with n_m runs have the weight 1 / n_m, and a quarter of the weight is cut off at each
    end, so that scores at the cut count in part.

    Args:
        scores: By task, [.., n].

    Returns:
        The interquartile mean, [..].
    """
    sizes = [x.shape[-1] for x in scores]
    pooled = np.concatenate(scores, axis=-1)
    if len(set(sizes)) == 1:
        n = pooled.shape[-1]
        cut = int(_QUARTER * n)
        return np.partition(pooled, (cut, n - cut - 1), axis=-1)[..., cut : n - cut].mean(axis=-1)
    weights = np.concatenate([np.full(n, 1 / (n * len(sizes))) for n in sizes])
    order = np.argsort(pooled, axis=-1)
    ends = np.cumsum(weights[order], axis=-1)
    starts = ends - weights[order]
    inside = np.clip(np.minimum(ends, 1 - _QUARTER) - np.maximum(starts, _QUARTER), 0, None)
    return np.sum(inside * np.take_along_axis(pooled, order, axis=-1), axis=-1) / np.sum(inside, axis=-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> np.ndarray:
    """Mean amount by which scores miss a target; scores above it count as the target.

        target - 1/M sum_m 1/n_m sum_i min(x_mi, target)

    Args:
        scores: Normalized scores by task, [.., n].
        target: The target.

    Returns:
        The gap, at least 0, [..].
    """
    return target - mean([np.minimum(x, target) for x in scores])


def performance_profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """Fraction of runs with a score above each threshold, the mean over tasks.

        F(t) = 1/M sum_m 1/n_m sum_i 1[x_mi > t]

    Args:
        scores: Normalized scores by task, [.., n].
        thresholds: Thresholds, [P].

    Returns:
        The fractions, [.., P].
    """
    above = [np.mean(x[..., None, :] > thresholds[:, None], axis=-1) for x in scores]
    return np.mean(np.stack(above), axis=0)


def probability_of_improvement(scores: Scores, others: Scores, *, paired: bool = False) -> np.ndarray:
    """Probability that a run scores higher than one of another algorithm; ties count half. The mean over tasks.

        P(X > Y) = 1/M sum_m 1/(n_m k_m) sum_ij (1[x_mi > y_mj] + 1/2 1[x_mi = y_mj])

    On one task it is the Mann-Whitney statistic U / (n k).

    Args:
        scores: By task, [.., n].
        others: Scores of the other algorithm on the same tasks, [.., k].
        paired: Compare only runs at the same place, with n = k.

    Returns:
        The probability, [..].
    """
    by_task = []
    for x, y in zip(scores, others, strict=True):
        if not paired:
            x, y = x[..., :, None], y[..., None, :]
        better = (x > y) + 0.5 * (x == y)
        by_task.append(np.mean(better, axis=-1) if paired else np.mean(better, axis=(-2, -1)))
    return np.mean(np.stack(by_task), axis=0)


def _task_means(scores: Scores) -> np.ndarray:
    """Returns the means over runs, [.., M]."""
    return np.stack([np.mean(x, axis=-1) for x in scores], axis=-1)


# ------------------------------------------------------------------------------------------------------------ bootstrap


# Stratified bootstrap, percentile intervals. Source: Agarwal et al. 2021; Efron and Tibshirani 1993, chapter 13.


def random_numbers(*names: str) -> np.random.Generator:
    """Returns a generator that depends only on the names, so that equal comparisons print equal intervals."""
    return np.random.default_rng(seed_of(0, "report", *names))


def resample(scores: Scores, rng: np.random.Generator, repetitions: int = REPETITIONS) -> list[np.ndarray]:
    """Draws runs with replacement, separately in each task.

    Args:
        scores: By task, [n, ..]: scores or curves of its runs.
        rng: Source of random numbers.
        repetitions: Number R of samples.

    Returns:
        Samples by task, [R, n, ..].
    """
    return [x[rng.integers(len(x), size=(repetitions, len(x)))] for x in scores]


def resample_episodes(
    episodes: Sequence[Sequence[np.ndarray]], rng: np.random.Generator, repetitions: int = REPETITIONS
) -> list[np.ndarray]:
    """Draws runs with replacement, and then episodes of each drawn run with replacement: the two-level bootstrap.

    Args:
        episodes: Values of the episodes by task and run, [E] each.
        rng: Source of random numbers.
        repetitions: Number R of samples.

    Returns:
        Samples of the runs' means by task, [R, n].
    """
    samples = []
    for runs in episodes:
        means = np.stack([_resampled_means(values, rng, repetitions) for values in runs])  # [n, R]
        shape = (repetitions, len(runs))
        samples.append(means[rng.integers(len(runs), size=shape), rng.integers(repetitions, size=shape)])
    return samples


def _resampled_means(values: np.ndarray, rng: np.random.Generator, repetitions: int) -> np.ndarray:
    """Returns the means of samples of the values, [R]."""
    rows = max(1, _CHUNK // len(values))
    parts = [min(rows, repetitions - start) for start in range(0, repetitions, rows)]
    return np.concatenate([values[rng.integers(len(values), size=(n, len(values)))].mean(axis=1) for n in parts])


def interval(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the 95% percentile interval of bootstrap samples [R, ..]: the 2.5% and the 97.5% quantile, [..] each."""
    if not np.isfinite(samples).all():  # quantiles between infinite samples are not defined
        return np.quantile(samples, _TAIL, axis=0, method="lower"), np.quantile(
            samples, 1 - _TAIL, axis=0, method="higher"
        )
    low, high = np.quantile(samples, (_TAIL, 1 - _TAIL), axis=0)
    return low, high


def estimate(
    statistic: Callable[..., np.ndarray], *scores: Scores, samples: Sequence[Sequence[np.ndarray]] | None
) -> Estimate:
    """Returns a statistic of one or two algorithms with its interval.

    Args:
        statistic: Function of the scores by task of each algorithm that keeps leading dimensions.
        *scores: Scores of each algorithm by task, [n].
        samples: Bootstrap samples of each algorithm, [R, n] by task; None for no interval.
    """
    value = float(statistic(*scores))
    if samples is None:
        return Estimate(value)
    largest = max(math.prod(map(len, runs)) for runs in zip(*scores, strict=True))
    rows = max(1, _CHUNK // largest)
    parts = [slice(start, start + rows) for start in range(0, len(samples[0][0]), rows)]
    drawn = [statistic(*([x[part] for x in by_task] for by_task in samples)) for part in parts]
    low, high = interval(np.concatenate(drawn))
    return Estimate(value, float(low), float(high))


# ---------------------------------------------------------------------------------------------------------------- tests


def welch(x: np.ndarray, y: np.ndarray) -> float:
    """Welch's t-test of equal means with unequal variances, two-sided.

        t = (mean x - mean y) / sqrt(s_x^2 / n + s_y^2 / k)

        degrees of freedom = (s_x^2 / n + s_y^2 / k)^2 / ((s_x^2 / n)^2 / (n - 1) + (s_y^2 / k)^2 / (k - 1))

    Args:
        x: Scores, [n].
        y: Scores, [k].

    Returns:
        The p-value. NaN if there are fewer than two scores of either, or if neither varies and the means differ: the
        test has no estimate of the noise then.

    Source: Welch 1947; recommended for reinforcement learning by Colas et al. 2019.
    """
    if min(len(x), len(y)) < 2:
        return math.nan
    noise = _rounding(x, y)
    if np.ptp(x) <= noise and np.ptp(y) <= noise:
        return 1.0 if abs(x[0] - y[0]) <= noise else math.nan
    a, b = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
    freedom = (a + b) ** 2 / (a**2 / (len(x) - 1) + b**2 / (len(y) - 1))
    return two_sided_p_value((x.mean() - y.mean()) / math.sqrt(a + b), freedom)


def paired_t(x: np.ndarray, y: np.ndarray) -> float:
    """Paired t-test of equal means, two-sided.

    Args:
        x: Scores, [n].
        y: Scores of the partners, [n].

    Returns:
        The p-value. NaN for fewer than two pairs, or if the difference does not vary and is not 0.
    """
    if len(x) < 2:
        return math.nan
    noise = _rounding(x, y)
    if np.ptp(x - y) <= noise:
        return 1.0 if abs(x[0] - y[0]) <= noise else math.nan
    difference = x - y
    return two_sided_p_value(difference.mean() / (difference.std(ddof=1) / math.sqrt(len(x))), len(x) - 1)


def _rounding(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the size of differences that rounding may cause."""
    return 1e-13 * float(max(np.abs(x).max(), np.abs(y).max()))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction, which bounds the probability of any false discovery.

    With p_(1) <= ... <= p_(m):

        corrected p_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))

    Args:
        p: p-values; NaN for tests that were not made, which do not count.

    Returns:
        The corrected p-values in the same order.

    Source: Holm 1979.
    """
    made = [i for i, value in enumerate(p) if not math.isnan(value)]
    corrected, largest = [math.nan] * len(p), 0.0
    for rank, i in enumerate(sorted(made, key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(made) - rank) * p[i]))
        corrected[i] = largest
    return corrected


# --------------------------------------------------------------------------------------------------------------- curves


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


def band(x: np.ndarray, value: np.ndarray, samples: np.ndarray | None) -> Band:
    """Returns a statistic at each place with its pointwise bootstrap band.

    Args:
        x: Places, [P].
        value: Values of the statistic, [P].
        samples: Bootstrap samples of the statistic, [R, P]; None for no band.
    """
    unknown = np.full(len(x), math.nan)
    return Band(x, value, *((unknown, unknown) if samples is None else interval(samples)))


def band_of_curves(
    statistic: Callable[[Scores], np.ndarray], curves: Sequence[np.ndarray], grid: np.ndarray, *names: str
) -> Band:
    """Returns a statistic of curves at each place, with a pointwise bootstrap band if no task has a single run.

    Args:
        statistic: Function of scores by task, [.., n], that keeps leading dimensions.
        curves: Values of the runs by task, [n, P].
        grid: Places, [P].
        *names: Names of the random numbers.
    """
    samples = None
    if min(len(x) for x in curves) > 1:
        drawn = resample(curves, random_numbers(*names, "band"), BAND_REPETITIONS)
        samples = statistic([np.moveaxis(x, 1, -1) for x in drawn])
    return band(grid, statistic([x.T for x in curves]), samples)


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

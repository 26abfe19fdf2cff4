"""Stratified bootstrap: percentile intervals of statistics of scores over seeds and tasks.

Source: Agarwal et al. 2021; Efron and Tibshirani 1993, chapter 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.core.seeds import seed_of
from coterie.reports.aggregates import Scores
from coterie.reports.comparison import Estimate

REPETITIONS = 10_000
"""Bootstrap samples of an interval."""

BAND_REPETITIONS = 1_000
"""Bootstrap samples of each point of a band."""

_TAIL = 0.025
_CHUNK = 4_000_000
"""Numbers drawn at once."""


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


def resample_pairs(
    scores: Scores, others: Scores, rng: np.random.Generator, repetitions: int = REPETITIONS
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draws pairs of runs with replacement, separately in each task.

    Args:
        scores: By task, [n].
        others: Scores of the other algorithm, with the partner of each run at the same place, [n].
        rng: Source of random numbers.
        repetitions: Number R of samples.

    Returns:
        Samples of both, [R, n] by task.
    """
    picks = [rng.integers(len(x), size=(repetitions, len(x))) for x in scores]
    return [x[i] for x, i in zip(scores, picks, strict=True)], [y[i] for y, i in zip(others, picks, strict=True)]


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
    statistic: Callable[[Scores], np.ndarray], scores: Scores, samples: Sequence[np.ndarray] | None
) -> Estimate:
    """Returns a statistic with its interval.

    Args:
        statistic: Function of scores by task that keeps leading dimensions.
        scores: By task, [n].
        samples: Bootstrap samples, [R, n] by task; None for no interval.
    """
    value = float(statistic(scores))
    if samples is None:
        return Estimate(value)
    low, high = interval(statistic(samples))
    return Estimate(value, float(low), float(high))


def estimate_of_two(
    statistic: Callable[[Scores, Scores], np.ndarray],
    scores: Scores,
    others: Scores,
    samples: tuple[Scores, Scores] | None,
) -> Estimate:
    """Returns a statistic of two algorithms with its interval.

    Args:
        statistic: Function of the scores by task of both that keeps leading dimensions.
        scores: By task, [n].
        others: Scores of the other algorithm, [k].
        samples: Bootstrap samples of both, [R, n] and [R, k] by task; None for no interval.
    """
    value = float(statistic(scores, others))
    if samples is None:
        return Estimate(value)
    repetitions = len(samples[0][0])
    pairs = max(len(x) * len(y) for x, y in zip(scores, others, strict=True))
    rows = max(1, _CHUNK // pairs)
    parts = [slice(start, start + rows) for start in range(0, repetitions, rows)]
    drawn = [statistic([x[part] for x in samples[0]], [y[part] for y in samples[1]]) for part in parts]
    low, high = interval(np.concatenate(drawn))
    return Estimate(value, float(low), float(high))

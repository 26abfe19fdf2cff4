"""Statistics of scores over seeds and tasks.

Scores are a sequence of arrays, one per task, [.., n] with the scores of its n runs. Tasks may have different numbers
of runs, and count equally. Leading dimensions, such as bootstrap samples, are the same in all tasks and are kept.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice". With equal numbers
of runs the results are those of its package rliable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.reports.scipy_stats import scipy_stats

Scores = Sequence[np.ndarray]
"""Scores by task, [.., n] each."""

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

    With equal numbers of runs, a quarter of the scores, rounded down, is cut off at each end (`scipy.stats.trim_mean`).
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
        return scipy_stats().trim_mean(pooled, _QUARTER, axis=-1)
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

"""Tests of the difference of two algorithms, and Holm's correction for many of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from coterie.reports.scipy_stats import scipy_stats


def welch(x: np.ndarray, y: np.ndarray) -> float:
    """Welch's t-test of equal means with unequal variances, two-sided.

        t = (mean x - mean y) / sqrt(s_x^2 / n + s_y^2 / k)

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one sample may be constant
        return float(scipy_stats().ttest_ind(x, y, equal_var=False).pvalue)


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
    return float(scipy_stats().ttest_rel(x, y).pvalue)


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

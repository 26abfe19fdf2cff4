"""Standard errors, confidence intervals and the comparison of two means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from torch import Tensor

from coterie.functional import student_t

Z_95 = 1.959963984540054
"""97.5% quantile of the normal distribution: the half-width of a 95% interval in standard errors."""


def standard_error(x: Tensor) -> float:
    """Returns the standard error of the mean of independent values, s / sqrt(E).

    Args:
        x: Values, [E].

    Returns:
        The error in the unit of x, with the unbiased variance s^2. NaN for fewer than two values.
    """
    return float(x.double().std(correction=1)) / math.sqrt(len(x)) if len(x) > 1 else math.nan


def error_from_std(std: float, count: float) -> float:
    """Returns the standard error of a mean from the biased standard deviation of `count` values: std / sqrt(n - 1)."""
    return std / math.sqrt(count - 1) if count > 1 else math.nan


def interval_95(mean: float, error: float) -> tuple[float, float]:
    """Returns the 95% confidence interval of a mean, mean ± 1.96 errors, in the normal approximation."""
    return mean - Z_95 * error, mean + Z_95 * error


def mean_interval_95(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of independent values and the half-width of its 95% confidence interval, t s / sqrt(n).

    Args:
        values: At least one value.

    Returns:
        Mean and half-width, in the unit of the values. The half-width is NaN for one value.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, student_t.quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def welch_test(mean: float, error: float, other_mean: float, other_error: float) -> tuple[float, float]:
    """Welch's test of two means with unequal variances, in the normal approximation.

        z = (other_mean - mean) / sqrt(error^2 + other_error^2),  p = erfc(|z| / sqrt 2)

    The normal distribution replaces Student's t, which is close from about 20 values per mean on. With fewer, p is too
    small.

    Args:
        mean: Mean of the first sample.
        error: Standard error of that mean, at least 0.
        other_mean: Mean of the second sample.
        other_error: Standard error of that mean, at least 0.

    Returns:
        z, positive if the second mean is larger, and the two-sided p-value in [0, 1]. (NaN, NaN) if a number is NaN.

    Source: Welch 1947.
    """
    difference, scale = other_mean - mean, math.hypot(error, other_error)
    if math.isnan(difference) or math.isnan(error) or math.isnan(other_error):  # hypot(inf, NaN) is inf
        return math.nan, math.nan
    if scale == 0:
        return math.copysign(math.inf, difference) if difference else 0.0, 0.0 if difference else 1.0
    z = difference / scale
    return z, math.erfc(abs(z) / math.sqrt(2))

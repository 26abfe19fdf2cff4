"""Confidence intervals of the mean of few values, such as those of seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_QUANTILES = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
)
"""97.5% quantiles of Student's t distribution with 1 to 20 degrees of freedom."""

Z_95 = 1.959963984540054
"""97.5% quantile of the normal distribution: the half-width of a 95% interval in standard errors."""


def quantile_975(degrees: int) -> float:
    """Returns the 97.5% quantile of Student's t distribution.

    Beyond 20 degrees of freedom n it is Fisher's expansion, z + (z^3 + z) / 4n + (5 z^5 + 16 z^3 + 3 z) / 96n^2,
    with an error below 0.0003.

    Args:
        degrees: Degrees of freedom, at least 1.

    Source: Abramowitz and Stegun 1964, 26.7.5.
    """
    if degrees <= len(_QUANTILES):
        return _QUANTILES[degrees - 1]
    z = Z_95
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


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
    return mean, quantile_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))

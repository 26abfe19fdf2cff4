"""Student's t distribution."""

from __future__ import annotations

import math


def two_sided_p_value(t: float, freedom: float) -> float:
    """Returns the probability that |T| exceeds |t|, I_x(n / 2, 1 / 2) with x = n / (n + t^2).

    I is the regularized incomplete beta function.

    Args:
        t: The statistic.
        freedom: Degrees of freedom n, above 0.

    Returns:
        The probability, in [0, 1]. NaN if an argument is NaN.
    """
    if math.isnan(t) or math.isnan(freedom):
        return math.nan
    if math.isinf(t):
        return 0.0
    squared = t * t
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + squared), squared / (freedom + squared))


def quantile(probability: float, freedom: float) -> float:
    """Returns the value that T exceeds with probability 1 - p, found by bisection.

    Args:
        probability: p, in [0.5, 1).
        freedom: Degrees of freedom, above 0.
    """
    tail = 2 * (1 - probability)
    low, high = 0.0, 1.0
    while two_sided_p_value(high, freedom) > tail:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if two_sided_p_value(middle, freedom) > tail else (low, middle)


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Returns I_x(a, b) for x in [0, 1] and `rest` = 1 - x, which is exact also if it is tiny.

    Source: Press et al. 2007, Numerical Recipes, section 6.4.
    """
    if x == 0 or rest == 0:
        return 0.0 if x == 0 else 1.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log(rest) - log_beta)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Returns the continued fraction of the incomplete beta function by the method of Lentz."""
    tiny = 1e-300
    numerator, denominator = 1.0, 1 - (a + b) * x / (a + 1)
    denominator = 1 / (denominator or tiny)
    value, m = denominator, 0
    while True:
        m += 1
        before = value
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            denominator = 1 / (1 + factor * denominator or tiny)
            numerator = 1 + factor / numerator or tiny
            value *= denominator * numerator
        if abs(value - before) <= 1e-16 * abs(value) or m == 100_000:
            return value

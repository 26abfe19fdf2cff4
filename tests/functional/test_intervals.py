"""Standard errors, intervals and the comparison of two means."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.functional.intervals import error_from_std, interval_95, mean_interval_95, standard_error, welch_test


def test_the_standard_error_uses_the_unbiased_variance() -> None:
    """Values 1, 2, 3, 4: variance 5/3, error sqrt(5/12)."""
    assert standard_error(torch.tensor([1.0, 2.0, 3.0, 4.0])) == pytest.approx(math.sqrt(5 / 12))
    assert standard_error(torch.tensor([1.0, 3.0])) == pytest.approx(1.0)
    assert math.isnan(standard_error(torch.tensor([1.0])))


def test_the_error_from_a_biased_deviation_is_the_same() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert error_from_std(float(x.std(correction=0)), 4) == pytest.approx(standard_error(x))
    assert error_from_std(1.5, 2) == 1.5
    assert math.isnan(error_from_std(1.0, 1))


def test_the_interval_is_1_96_errors_on_each_side() -> None:
    assert interval_95(10.0, 2.0) == pytest.approx((6.080072, 13.919928))


def test_welch_compares_with_both_errors() -> None:
    """Difference 5, errors 3 and 4: z = 1, p = 0.3173; 1.959964 errors are p = 0.05."""
    assert welch_test(10.0, 3.0, 15.0, 4.0) == pytest.approx((1.0, 0.31731050786))
    assert welch_test(15.0, 3.0, 10.0, 4.0) == pytest.approx((-1.0, 0.31731050786))
    assert welch_test(0.0, 1.0, 1.959963984540054, 0.0)[1] == pytest.approx(0.05)


def test_welch_without_spread_or_without_numbers() -> None:
    assert welch_test(1.0, 0.0, 2.0, 0.0) == (math.inf, 0.0)
    assert welch_test(2.0, 0.0, 2.0, 0.0) == (0.0, 1.0)
    assert welch_test(2.0, 0.0, 1.0, 0.0) == (-math.inf, 0.0)
    for numbers in (
        (1.0, math.nan, 2.0, 0.0),
        (math.nan, 0.0, 2.0, 0.0),
        (1.0, 1.0, math.nan, 1.0),
        (1.0, math.inf, 2.0, math.nan),
    ):
        assert all(math.isnan(x) for x in welch_test(*numbers))


def test_the_interval_of_a_mean_of_few_values_is_that_of_students_t():
    """Quantiles of Abramowitz and Stegun 1964, table 26.10."""
    mean, half = mean_interval_95([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.302653 / math.sqrt(3)))
    assert mean_interval_95([1.0, 3.0]) == (2.0, pytest.approx(12.706205))
    assert mean_interval_95([5.0])[0] == 5.0
    assert math.isnan(mean_interval_95([5.0])[1])

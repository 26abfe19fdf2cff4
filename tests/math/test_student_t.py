"""Intervals of the mean of few values."""

from __future__ import annotations

import math

import pytest

from coterie.math.student_t import mean_interval_95, quantile_975


def test_quantiles_are_those_of_tables():
    """Abramowitz and Stegun 1964, table 26.10."""
    for degrees, quantile in ((1, 12.706), (2, 4.303), (10, 2.228), (20, 2.086), (30, 2.042), (60, 2.000)):
        assert quantile_975(degrees) == pytest.approx(quantile, abs=1e-3)


def test_the_interval_of_three_values_is_that_of_students_t():
    mean, half = mean_interval_95([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.302653 / math.sqrt(3)))
    assert mean_interval_95([5.0])[0] == 5.0
    assert math.isnan(mean_interval_95([5.0])[1])

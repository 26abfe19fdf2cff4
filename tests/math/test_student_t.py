"""Intervals of the mean of few values."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.math.student_t import mean_interval_95, quantile_975


def test_quantiles_are_those_of_tables():
    """Abramowitz and Stegun 1964, table 26.10."""
    for degrees, quantile in ((1, 12.706), (2, 4.303), (10, 2.228), (20, 2.086), (30, 2.042), (60, 2.000)):
        assert quantile_975(degrees) == pytest.approx(quantile, abs=1e-3)


@pytest.mark.parametrize("degrees", range(1, 21))
def test_a_quantile_encloses_95_percent_of_the_distribution(degrees: int):
    """With t = sqrt(n) tan(x), the density is proportional to cos(x)^(n - 1)."""
    end = math.atan(quantile_975(degrees) / math.sqrt(degrees))
    x = torch.linspace(0, end, 10_001, dtype=torch.float64)
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(math.pi) * math.gamma(degrees / 2))
    inside = 2 * scale * torch.trapezoid(x.cos() ** (degrees - 1), x)
    assert inside.item() == pytest.approx(0.95, abs=1e-7)


def test_quantiles_of_many_degrees_follow_fishers_expansion():
    """1.959964 + 2.372271 / n + 2.822499 / n^2, next to the exact 2.079614 and 2.042272."""
    assert [quantile_975(21), quantile_975(30)] == pytest.approx([2.079329, 2.042176], abs=2e-6)
    assert [quantile_975(21), quantile_975(30)] == pytest.approx([2.079614, 2.042272], abs=3e-4)


def test_the_interval_of_three_values_is_that_of_students_t():
    mean, half = mean_interval_95([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.302653 / math.sqrt(3)))
    assert mean_interval_95([1.0, 3.0]) == (2.0, pytest.approx(12.706205))
    assert mean_interval_95([5.0])[0] == 5.0
    assert math.isnan(mean_interval_95([5.0])[1])

"""Student's t distribution."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from coterie.functional.student_t import quantile, two_sided_p_value

FREEDOM = [1, 1.5, 2, 3, 4.7, 9, 30, 200]


@pytest.mark.parametrize("freedom", FREEDOM)
def test_p_values_and_quantiles_are_those_of_scipy(freedom: float) -> None:
    for t in (1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 12.0, 1e3):
        assert two_sided_p_value(-t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-11)
    for probability in (0.5, 0.7, 0.975, 0.9999):
        assert quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-12)


def test_tabulated_quantiles() -> None:
    assert [round(quantile(0.975, n), 3) for n in (1, 2, 4, 9)] == [12.706, 4.303, 2.776, 2.262]


def test_statistics_at_the_ends_of_the_range() -> None:
    assert two_sided_p_value(0.0, 3) == 1.0
    assert two_sided_p_value(math.inf, 3) == 0.0
    assert math.isnan(two_sided_p_value(math.nan, 3))
    assert two_sided_p_value(1e-9, 1) == pytest.approx(1 - 2e-9 / math.pi, rel=1e-15)

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from coterie.reports.significance import holm, paired_t, welch


def test_holms_correction_has_the_values_of_the_definition() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_tests_that_were_not_made_do_not_count() -> None:
    corrected = holm([0.01, math.nan, 0.04])
    assert corrected[0] == pytest.approx(0.02)
    assert math.isnan(corrected[1])
    assert corrected[2] == pytest.approx(0.04)


def test_corrected_values_are_at_most_one() -> None:
    assert holm([0.5, 0.9, 0.7]) == [1.0, 1.0, 1.0]


def test_p_values_are_those_of_scipy() -> None:
    x, y = np.array([1.0, 2.0, 4.0]), np.array([2.0, 5.0, 7.0])
    assert welch(x, y) == stats.ttest_ind(x, y, equal_var=False).pvalue
    assert paired_t(x, y) == stats.ttest_rel(x, y).pvalue


@pytest.mark.parametrize("test", [welch, paired_t])
def test_scores_without_variance_are_equal_or_have_no_p_value(test) -> None:
    one, two = np.ones(3), np.full(3, 2.0) * (1 + 1e-16)
    assert test(one, one) == 1.0
    assert math.isnan(test(one, two))
    assert math.isnan(test(one[:1], two[:1]))


def test_one_sample_may_be_constant() -> None:
    x, y = np.full(3, 0.5), np.array([0.1, 0.2, 0.3])
    assert 0 < welch(x, y) < 0.05

"""Agreement with rliable 1.2.0 (arch 7.2.0, NumPy 2.4.6, SciPy 1.17.1), whose results on fixed scores are below."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from coterie.reports import aggregates
from coterie.reports.bootstrap import estimate, estimate_of_two, random_numbers, resample

# Five, seven and ten runs (rows) on four, four and three tasks.
A = [[0.95, 1.05, 0.91, 0.76], [0.59, 0.16, 1.12, 0.67], [1.17, 0.54, 0.08, 0.31], [0.09, 0.17, -0.43, 0.65]]
A += [[1.04, 0.5, 0.64, 0.17]]
B = [[0.71, 1.47, -0.07, 0.37], [0.89, 0.15, 0.43, -0.41], [1.19, 0.14, 0.83, 0.8], [0.37, 0.51, 0.89, 0.23]]
B += [[0.19, 0.06, 1.29, 0.39], [-0.08, 0.89, -0.33, 0.36], [0.28, 0.5, 0.79, 0.65]]
C = [[0.96, 0.52, 0.23], [1.0, 0.25, 0.16], [0.38, 0.19, 0.44], [0.56, -0.37, 0.09], [0.51, 0.74, 0.25]]
C += [[0.87, 0.6, 0.22], [0.31, 0.9, 0.76], [0.74, 0.38, 0.35], [0.42, 0.22, 0.09], [0.71, 0.46, 0.62]]

STATISTICS = (aggregates.mean, aggregates.median, aggregates.interquartile_mean, aggregates.optimality_gap)


def by_task(matrix: list[list[float]]) -> list[np.ndarray]:
    return list(np.array(matrix).T)


def test_statistics_are_those_published_in_the_tests_of_rliable() -> None:
    x, y = by_task([[1, 2], [2, 2], [1, 1], [2, 1]]), by_task([[1, 1], [2, 2], [3, 3]])
    assert [float(statistic(x)) for statistic in STATISTICS[:3]] == [1.5, 1.5, 1.5]
    assert [float(statistic(y)) for statistic in STATISTICS[:3]] == [2, 2, 2]
    assert aggregates.probability_of_improvement(x, y) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("matrix", "expected", "half"),
    [
        (A, [0.557, 0.498, 0.5740000000000001, 0.46199999999999997], 0.14750000000000002),
        (B, [0.48178571428571426, 0.5192857142857142, 0.47000000000000003, 0.552142857142857], 0.19357142857142856),
        (C, [0.452, 0.389, 0.436875, 0.548], 0.14766666666666667),
    ],
)
def test_statistics_are_those_of_rliable(matrix: list[list[float]], expected: list[float], half: float) -> None:
    scores = by_task(matrix)
    np.testing.assert_allclose([statistic(scores) for statistic in STATISTICS], expected, rtol=0, atol=1e-14)
    assert aggregates.optimality_gap(scores, 0.5) == pytest.approx(half, abs=1e-14)


def test_performance_profiles_are_those_of_rliable() -> None:
    thresholds = np.array([0, 0.25, 0.5, 0.75, 1])
    profile = aggregates.performance_profile(by_task(B), thresholds)
    expected = [0.8571428571428571, 0.6785714285714286, 0.42857142857142855, 0.32142857142857145, 0.10714285714285714]
    np.testing.assert_allclose(profile, expected, rtol=0, atol=1e-15)


def test_probabilities_of_improvement_are_those_of_rliable() -> None:
    rounded = [by_task(np.round(x, 1).tolist()) for x in (A, B)]  # with ties
    probabilities = [
        aggregates.probability_of_improvement(by_task(A), by_task(B)),
        aggregates.probability_of_improvement(by_task(B), by_task(A)),
        aggregates.probability_of_improvement(*rounded),
    ]
    np.testing.assert_allclose(probabilities, [0.5785714285714286, 0.42142857142857143, 0.575], rtol=0, atol=1e-15)


def test_intervals_are_those_of_rliable_up_to_the_noise_of_sampling() -> None:
    scores = by_task(A)
    samples = resample(scores, random_numbers("test"))
    found = [estimate(statistic, scores, samples) for statistic in STATISTICS]
    expected = [[0.38, 0.367, 0.346, 0.3045], [0.724, 0.729, 0.788, 0.63]]  # 50,000 samples
    np.testing.assert_allclose([[x.low for x in found], [x.high for x in found]], expected, atol=0.012)
    drawn = samples, resample(by_task(B), random_numbers("other"))
    better = estimate_of_two(aggregates.probability_of_improvement, by_task(A), by_task(B), drawn)
    assert (better.low, better.high) == pytest.approx((0.4, 0.75), abs=0.012)


def test_intervals_of_the_mean_are_those_of_scipy_up_to_the_noise_of_sampling() -> None:
    x = np.array(C)[:, 0]
    found = estimate(aggregates.mean, [x], resample([x], random_numbers("scipy")))
    theirs = stats.bootstrap((x,), np.mean, n_resamples=9999, method="percentile", rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_the_interquartile_mean_of_unequal_numbers_of_runs_weighs_tasks_equally() -> None:
    # Each score of the first task counts like two of the second: 0 0 | 1 1 2 2 | 10 10 without a quarter at each end.
    scores = [np.array([0.0, 10.0]), np.array([1.0, 1.0, 2.0, 2.0])]
    assert aggregates.interquartile_mean(scores) == pytest.approx(1.5)
    # Two runs of weight 1/4 and three of weight 1/6: 0.25 is cut off within the second score, and 0.75 at the fourth.
    scores = [np.array([1.0, 4.0]), np.array([0.0, 2.0, 3.0])]
    weights = {1: 1 / 6, 2: 1 / 6, 3: 1 / 6}
    assert aggregates.interquartile_mean(scores) == pytest.approx(sum(x * w for x, w in weights.items()) / 0.5)


def test_equal_numbers_of_runs_have_the_trimmed_mean_of_scipy_in_every_sample() -> None:
    samples = resample(by_task(B), random_numbers("trim"), 20)
    pooled = np.concatenate(samples, axis=-1)
    expected = [stats.trim_mean(row, 0.25) for row in pooled]
    np.testing.assert_array_equal(aggregates.interquartile_mean(samples), expected)


def test_the_probability_of_improvement_on_a_task_is_the_statistic_of_mann_and_whitney() -> None:
    x, y = np.array([0.0, 1.0, 1.0, 3.0]), np.array([1.0, 2.0, 0.5])
    u = stats.mannwhitneyu(x, y).statistic
    assert aggregates.probability_of_improvement([x], [y]) == u / 12


def test_pairs_are_compared_one_by_one() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.5, 2.0, 4.0])
    assert aggregates.probability_of_improvement([x], [y], paired=True) == (1 + 0 + 1 + 0.5) / 4

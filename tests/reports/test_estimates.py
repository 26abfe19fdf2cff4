"""Statistics, intervals and tests.

Those of scores agree with rliable 1.2.0 (arch 7.2.0, NumPy 2.4.6, SciPy 1.17.1), whose results on fixed scores are
below.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from coterie.reports import estimates
from coterie.reports.estimates import (
    band_of_curves,
    common_grid,
    estimate,
    first_reach,
    holm,
    interpolated,
    interval,
    paired_t,
    random_numbers,
    resample,
    resample_episodes,
    time_to_threshold,
    welch,
)
from coterie.reports.records import EvaluationSeries

# Five, seven and ten runs (rows) on four, four and three tasks.
A = [[0.95, 1.05, 0.91, 0.76], [0.59, 0.16, 1.12, 0.67], [1.17, 0.54, 0.08, 0.31], [0.09, 0.17, -0.43, 0.65]]
A += [[1.04, 0.5, 0.64, 0.17]]
B = [[0.71, 1.47, -0.07, 0.37], [0.89, 0.15, 0.43, -0.41], [1.19, 0.14, 0.83, 0.8], [0.37, 0.51, 0.89, 0.23]]
B += [[0.19, 0.06, 1.29, 0.39], [-0.08, 0.89, -0.33, 0.36], [0.28, 0.5, 0.79, 0.65]]
C = [[0.96, 0.52, 0.23], [1.0, 0.25, 0.16], [0.38, 0.19, 0.44], [0.56, -0.37, 0.09], [0.51, 0.74, 0.25]]
C += [[0.87, 0.6, 0.22], [0.31, 0.9, 0.76], [0.74, 0.38, 0.35], [0.42, 0.22, 0.09], [0.71, 0.46, 0.62]]

STATISTICS = (estimates.mean, estimates.median, estimates.interquartile_mean, estimates.optimality_gap)


def by_task(matrix: list[list[float]]) -> list[np.ndarray]:
    return list(np.array(matrix).T)


def test_statistics_are_those_published_in_the_tests_of_rliable() -> None:
    x, y = by_task([[1, 2], [2, 2], [1, 1], [2, 1]]), by_task([[1, 1], [2, 2], [3, 3]])
    assert [float(statistic(x)) for statistic in STATISTICS[:3]] == [1.5, 1.5, 1.5]
    assert [float(statistic(y)) for statistic in STATISTICS[:3]] == [2, 2, 2]
    assert estimates.probability_of_improvement(x, y) == pytest.approx(1 / 3)


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
    assert estimates.optimality_gap(scores, 0.5) == pytest.approx(half, abs=1e-14)


def test_performance_profiles_are_those_of_rliable() -> None:
    thresholds = np.array([0, 0.25, 0.5, 0.75, 1])
    profile = estimates.performance_profile(by_task(B), thresholds)
    expected = [0.8571428571428571, 0.6785714285714286, 0.42857142857142855, 0.32142857142857145, 0.10714285714285714]
    np.testing.assert_allclose(profile, expected, rtol=0, atol=1e-15)


def test_probabilities_of_improvement_are_those_of_rliable() -> None:
    rounded = [by_task(np.round(x, 1).tolist()) for x in (A, B)]  # with ties
    probabilities = [
        estimates.probability_of_improvement(by_task(A), by_task(B)),
        estimates.probability_of_improvement(by_task(B), by_task(A)),
        estimates.probability_of_improvement(*rounded),
    ]
    np.testing.assert_allclose(probabilities, [0.5785714285714286, 0.42142857142857143, 0.575], rtol=0, atol=1e-15)


def test_intervals_are_those_of_rliable_up_to_the_noise_of_sampling() -> None:
    scores = by_task(A)
    samples = resample(scores, random_numbers("test"))
    found = [estimate(statistic, scores, samples=[samples]) for statistic in STATISTICS]
    expected = [[0.38, 0.367, 0.346, 0.3045], [0.724, 0.729, 0.788, 0.63]]  # 50,000 samples
    np.testing.assert_allclose([[x.low for x in found], [x.high for x in found]], expected, atol=0.012)
    drawn = samples, resample(by_task(B), random_numbers("other"))
    better = estimate(estimates.probability_of_improvement, by_task(A), by_task(B), samples=drawn)
    assert (better.low, better.high) == pytest.approx((0.4, 0.75), abs=0.012)


def test_intervals_of_the_mean_are_those_of_scipy_up_to_the_noise_of_sampling() -> None:
    x = np.array(C)[:, 0]
    found = estimate(estimates.mean, [x], samples=[resample([x], random_numbers("scipy"))])
    theirs = stats.bootstrap((x,), np.mean, n_resamples=9999, method="percentile", rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_the_interquartile_mean_of_unequal_numbers_of_runs_weighs_tasks_equally() -> None:
    # Each score of the first task counts like two of the second: 0 0 | 1 1 2 2 | 10 10 without a quarter at each end.
    scores = [np.array([0.0, 10.0]), np.array([1.0, 1.0, 2.0, 2.0])]
    assert estimates.interquartile_mean(scores) == pytest.approx(1.5)
    # Two runs of weight 1/4 and three of weight 1/6: 0.25 is cut off within the second score, and 0.75 at the fourth.
    scores = [np.array([1.0, 4.0]), np.array([0.0, 2.0, 3.0])]
    weights = {1: 1 / 6, 2: 1 / 6, 3: 1 / 6}
    assert estimates.interquartile_mean(scores) == pytest.approx(sum(x * w for x, w in weights.items()) / 0.5)


def test_equal_numbers_of_runs_have_the_trimmed_mean_of_scipy_in_every_sample() -> None:
    samples = resample(by_task(B), random_numbers("trim"), 20)
    pooled = np.concatenate(samples, axis=-1)
    expected = [stats.trim_mean(row, 0.25) for row in pooled]
    np.testing.assert_array_equal(estimates.interquartile_mean(samples), expected)


def test_the_probability_of_improvement_on_a_task_is_the_statistic_of_mann_and_whitney() -> None:
    x, y = np.array([0.0, 1.0, 1.0, 3.0]), np.array([1.0, 2.0, 0.5])
    u = stats.mannwhitneyu(x, y).statistic
    assert estimates.probability_of_improvement([x], [y]) == u / 12


def test_pairs_are_compared_one_by_one() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.5, 2.0, 4.0])
    assert estimates.probability_of_improvement([x], [y], paired=True) == (1 + 0 + 1 + 0.5) / 4


# ---------------------------------------------------------------------------------------------------------------- tests


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
    assert welch(x, y) == pytest.approx(stats.ttest_ind(x, y, equal_var=False).pvalue, rel=1e-12)
    assert paired_t(x, y) == pytest.approx(stats.ttest_rel(x, y).pvalue, rel=1e-12)


@pytest.mark.parametrize("test", [welch, paired_t])
def test_scores_without_variance_are_equal_or_have_no_p_value(test) -> None:
    one, two = np.ones(3), np.full(3, 2.0) * (1 + 1e-16)
    assert test(one, one) == 1.0
    assert math.isnan(test(one, two))
    assert math.isnan(test(one[:1], two[:1]))


def test_one_sample_may_be_constant() -> None:
    x, y = np.full(3, 0.5), np.array([0.1, 0.2, 0.3])
    assert 0 < welch(x, y) < 0.05


# --------------------------------------------------------------------------------------------------------------- curves


def series(mean: list[float], every: float = 100.0) -> EvaluationSeries:
    steps = np.arange(len(mean)) * every
    unknown = np.full(len(mean), math.nan)
    return EvaluationSeries(steps, steps / 10, np.array(mean, float), unknown, unknown)


def test_the_first_time_at_a_threshold_is_interpolated_between_evaluations() -> None:
    run = series([0, 1, 3, 2])
    assert first_reach(run, 2.0, "steps") == 150
    assert first_reach(run, 2.0, "seconds") == 15
    assert first_reach(run, 0.0, "steps") == 0
    assert first_reach(run, 4.0, "steps") == math.inf
    assert first_reach(series([9, 5, 1]), 3.0, "steps", lowest=True) == 150


def test_runs_that_do_not_reach_the_threshold_count_as_infinitely_slow() -> None:
    runs = [series([0, 1]), series([0, 2]), series([0, 4]), series([0, 0.5]), series([0, 1])]
    time = time_to_threshold(runs, 1.0)
    assert (time.reached, time.runs) == (4, 5)
    assert time.steps.value == 100
    assert time.steps.low == pytest.approx(25)
    assert time.steps.high == math.inf
    assert time_to_threshold(runs, 3.0).steps.value == math.inf


def test_curves_of_runs_with_different_evaluations_are_compared_where_both_have_values() -> None:
    runs = [series([0, 1, 2, 3]), series([0, 10], every=200)]
    grid = common_grid(runs, "steps")
    assert grid is not None
    assert (grid[0], grid[-1], len(grid)) == (0, 200, 100)
    np.testing.assert_allclose(interpolated(runs, "steps", grid)[:, -1], [2, 10])
    assert common_grid([series([0.0]), series([1.0])], "steps") is not None


def test_a_band_contains_the_statistic_and_is_missing_for_one_run() -> None:
    runs = np.random.default_rng(0).normal(size=(6, 4))
    found = band_of_curves(estimates.interquartile_mean, [runs], np.arange(4.0), "test")
    np.testing.assert_allclose(found.value, estimates.interquartile_mean([runs.T]))
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
    assert np.isnan(band_of_curves(estimates.mean, [runs[:1]], np.arange(4.0), "test").low).all()


def test_the_two_level_bootstrap_adds_the_noise_of_episodes() -> None:
    # Equal means of all seeds: all of the variance is that of a mean over 50 episodes, 1 / sqrt(50 n) for n seeds.
    values = np.random.default_rng(1).normal(size=50)
    values = (values - values.mean()) / values.std()
    samples = resample_episodes([[values, values, values, values]], random_numbers("episodes"), 4000)[0]
    assert samples.shape == (4000, 4)
    assert samples.mean(axis=1).std() == pytest.approx(1 / math.sqrt(200), rel=0.05)
    low, high = interval(samples.mean(axis=1))
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(200), rel=0.07)

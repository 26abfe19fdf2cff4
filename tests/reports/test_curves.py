from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.reports import aggregates
from coterie.reports.bootstrap import interval, random_numbers, resample_episodes
from coterie.reports.curves import band, common_grid, first_reach, interpolated, time_to_threshold
from coterie.reports.records import EvaluationSeries


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
    found = band(aggregates.interquartile_mean, [runs], np.arange(4.0), "test")
    np.testing.assert_allclose(found.value, aggregates.interquartile_mean([runs.T]))
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
    assert np.isnan(band(aggregates.mean, [runs[:1]], np.arange(4.0), "test").low).all()


def test_the_two_level_bootstrap_adds_the_noise_of_episodes() -> None:
    # Equal means of all seeds: all of the variance is that of a mean over 50 episodes, 1 / sqrt(50 n) for n seeds.
    values = np.random.default_rng(1).normal(size=50)
    values = (values - values.mean()) / values.std()
    samples = resample_episodes([[values, values, values, values]], random_numbers("episodes"), 4000)[0]
    assert samples.shape == (4000, 4)
    assert samples.mean(axis=1).std() == pytest.approx(1 / math.sqrt(200), rel=0.05)
    low, high = interval(samples.mean(axis=1))
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(200), rel=0.07)

"""The criterion that ends a lesson: smoothing, patience and thresholds, with literal numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie.config.curriculum import AdvanceConfig
from coterie.training.curriculum.criterion import Criterion, smooth


def evaluated(values: list[float], **config: Any) -> tuple[list[float], list[bool]]:
    criterion = Criterion(AdvanceConfig(metric="progress", **config))
    means, met = [], []
    for value in values:
        criterion.add(value)
        means.append(criterion.mean)
        met.append(criterion.met)
    return means, met


def test_the_exponential_mean_starts_at_the_first_value():
    assert smooth(math.nan, 4.0, 0.75) == 4.0
    assert smooth(4.0, 8.0, 0.75) == 5.0
    assert evaluated([4, 8, 0], above=4.5, smoothing=0.75) == ([4.0, 5.0, 3.75], [False, True, False])
    assert evaluated([4, 8, 0], above=4.5) == ([4, 8, 0], [False, True, False])  # without smoothing


def test_the_moving_average_needs_a_full_window():
    means, met = evaluated([9, 9, 3, 0], above=5, window=3)
    assert math.isnan(means[0])
    assert means[2:] == [7.0, 4.0]
    assert met == [False, False, True, False]


def test_patience_counts_consecutive_values():
    values = [2.0, 0, 2, 2, 2]
    assert evaluated(values, above=1, patience=3)[1] == [False, False, False, False, True]
    assert evaluated(values, above=1)[1] == [True, False, True, True, True]


def test_a_threshold_can_be_an_upper_bound_and_excludes_equality():
    assert evaluated([1, 0.5, 0.4], below=0.5)[1] == [False, False, True]
    assert evaluated([1, 1.1], above=1)[1] == [False, True]


def test_a_value_that_is_not_finite_resets_the_streak_and_keeps_the_mean():
    assert evaluated([2, math.nan, 2, 2], above=1, patience=2)[1] == [False, False, False, True]
    assert evaluated([2, math.inf, 4], above=9, smoothing=0.5)[0] == [2, 2, 3]


@pytest.mark.parametrize("config", [{"window": 3}, {"smoothing": 0.5}, {"patience": 2}])
def test_a_criterion_resumes_from_its_state(config: dict[str, Any]):
    advance = AdvanceConfig(metric="progress", above=2.5, **config)
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    for stop in range(len(values)):
        one, other = Criterion(advance), Criterion(advance)
        for value in values[:stop]:
            one.add(value)
        other.load_state_dict(one.state_dict())
        for value in values[stop:]:
            one.add(value)
            other.add(value)
        assert other.state_dict() == one.state_dict()
        assert other.met

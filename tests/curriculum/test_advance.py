"""When a lesson is over: smoothing, patience and thresholds, with literal numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie.curriculum.config import AdvanceConfig
from coterie.curriculum.criterion import Criterion, smoothed


def heard(values: list[float], **config: Any) -> tuple[list[float], list[bool]]:
    criterion = Criterion(AdvanceConfig(metric="progress", **config))
    means, met = [], []
    for value in values:
        criterion.hear(value)
        means.append(criterion.mean)
        met.append(criterion.met)
    return means, met


def test_the_exponential_mean_begins_at_the_first_value():
    assert smoothed(math.nan, 4.0, 0.75) == 4.0
    assert smoothed(4.0, 8.0, 0.75) == 5.0
    assert heard([4, 8, 0], above=4.5, smoothing=0.75) == ([4.0, 5.0, 3.75], [False, True, False])
    assert heard([4, 8, 0], above=4.5) == ([4, 8, 0], [False, True, False])  # without smoothing


def test_the_mean_of_a_window_waits_until_it_is_full():
    means, met = heard([9, 9, 3, 0], above=5, window=3)
    assert math.isnan(means[0])
    assert means[2:] == [7.0, 4.0]
    assert met == [False, False, True, False]


def test_patience_counts_values_in_a_row():
    values = [2.0, 0, 2, 2, 2]
    assert heard(values, above=1, patience=3)[1] == [False, False, False, False, True]
    assert heard(values, above=1)[1] == [True, False, True, True, True]


def test_a_threshold_can_be_below_and_is_not_reached_by_equality():
    assert heard([1, 0.5, 0.4], below=0.5)[1] == [False, False, True]
    assert heard([1, 1.1], above=1)[1] == [False, True]


def test_what_is_not_finite_breaks_the_row_and_leaves_the_mean():
    assert heard([2, math.nan, 2, 2], above=1, patience=2)[1] == [False, False, False, True]
    assert heard([2, math.inf, 4], above=9, smoothing=0.5)[0] == [2, 2, 3]


@pytest.mark.parametrize("config", [{"window": 3}, {"smoothing": 0.5}, {"patience": 2}])
def test_a_criterion_goes_on_where_it_was(config: dict[str, Any]):
    advance = AdvanceConfig(metric="progress", above=2.5, **config)
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    for stop in range(len(values)):
        one, other = Criterion(advance), Criterion(advance)
        for value in values[:stop]:
            one.hear(value)
        other.load_state_dict(one.state_dict())
        for value in values[stop:]:
            one.hear(value)
            other.hear(value)
        assert other.state_dict() == one.state_dict()
        assert other.met

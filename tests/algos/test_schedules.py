"""Schedules of hyperparameters."""

import pytest

from coterie.algos.optimizer import scheduled


@pytest.mark.parametrize(
    ("schedule", "progress", "value"),
    [
        ("constant", 0.7, 1.0),
        ("linear", 0.0, 1.0),
        ("linear", 0.5, 0.505),
        ("linear", 1.0, 0.01),
        ("exponential", 0.5, 0.1),
        ("exponential", 2.0, 0.01),
    ],
)
def test_schedule_values(schedule, progress, value):
    assert scheduled(schedule, 1.0, 0.01, progress) == pytest.approx(value)

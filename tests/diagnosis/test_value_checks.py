"""Checks of the critic at their thresholds."""

from __future__ import annotations

import pytest

from coterie.diagnosis.findings import Skipped
from coterie.diagnosis.value_checks import explained_variance, value_range
from runviews import CLIPPED, LEARNING, OFF_POLICY, STUCK, severity, view

VALUES = CLIPPED | {"gamma": 0.9}


@pytest.mark.parametrize(("value", "found"), [(0.01, None), (0.0, "medium"), (-0.9, "medium"), (-1.1, "high")])
def test_explained_variance_at_or_below_zero(value: float, found: str | None) -> None:
    metrics = {"loss/policy": [0.0] * 20, "value/explained_variance": [0.9] * 14 + [value] * 6}
    run = view(STUCK | metrics, CLIPPED)
    assert severity(explained_variance(run, run.teams[0])) == found
    run = view(LEARNING | metrics, CLIPPED)
    assert severity(explained_variance(run, run.teams[0])) == (found and "medium")


def test_explained_variance_of_a_young_critic_is_not_checked() -> None:
    run = view({"loss/policy": [0.0] * 19, "value/explained_variance": [-1.0] * 19}, CLIPPED)
    assert isinstance(explained_variance(run, run.teams[0]), Skipped)


@pytest.mark.parametrize(("value", "found"), [(29.0, None), (-31.0, "medium"), (59.0, "medium"), (61.0, "high")])
def test_values_beyond_the_discounted_sum_of_the_largest_reward(value: float, found: str | None) -> None:
    metrics = {"rollout/reward_abs_max": [1.0, 2.0, 1.0], "value/estimate": [value] * 10}  # returns up to 2 / (1 - 0.9)
    run = view(metrics, VALUES)
    assert severity(value_range(run, run.teams[0])) == found


def test_the_entropy_of_a_soft_return_counts_as_reward() -> None:
    metrics = {"rollout/reward_abs_max": [1.0] * 10, "value/q_taken_mean": [25.0] * 10}
    soft = {"policy/temperature": [0.5] * 10, "policy/entropy": [2.0] * 10}
    hard, run = view(metrics, VALUES), view(metrics | soft, VALUES)
    assert severity(value_range(hard, hard.teams[0])) == "medium"
    assert severity(value_range(run, run.teams[0])) is None


def test_without_discount_the_length_of_episodes_bounds_returns() -> None:
    metrics = {"rollout/reward_abs_max": [1.0] * 10, "value/estimate": [301.0] * 10, "rollout/length_mean": [10.0] * 10}
    run = view(metrics, VALUES | {"gamma": 1.0})
    assert severity(value_range(run, run.teams[0])) == "high"


def test_values_are_not_checked_without_rewards_or_on_another_scale() -> None:
    metrics = {"rollout/reward_abs_max": [1.0] * 10, "value/q_taken_mean": [1e9] * 10}
    runs = [
        view({"value/q_taken_mean": [1e9] * 10}, OFF_POLICY),
        view(metrics, OFF_POLICY | {"reward_scale": "std"}),
        view(metrics | {"rollout/reward_abs_max": [0.0] * 10}, OFF_POLICY),
        view(metrics | {"reward/rnd_weight": [1.0] * 10}, OFF_POLICY),
        view({}, OFF_POLICY),
    ]
    assert all(isinstance(value_range(run, run.teams[0]), Skipped) for run in runs)

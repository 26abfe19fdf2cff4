"""Checks of the critic at their thresholds."""

from __future__ import annotations

import pytest

from coterie.checks.diagnosis.value_checks import explained_variance, value_range, values_at_limits
from coterie.checks.findings import Finding, Skipped
from runviews import CLIPPED, LEARNING, OFF_POLICY, STUCK, checked, severity, view

VALUES = CLIPPED | {"gamma": 0.9}


@pytest.mark.parametrize(("value", "found"), [(0.01, None), (0.0, "medium"), (-0.9, "medium"), (-1.1, "high")])
def test_explained_variance_at_or_below_zero(value: float, found: str | None) -> None:
    metrics = {"loss/policy": [0.0] * 20, "value/explained_variance": [0.9] * 14 + [value] * 6}
    run = view(STUCK | metrics, CLIPPED)
    assert severity(checked(explained_variance, run)) == found
    run = view(LEARNING | metrics, CLIPPED)
    assert severity(checked(explained_variance, run)) == (found and "medium")


def test_explained_variance_of_a_young_critic_is_not_checked() -> None:
    run = view({"loss/policy": [0.0] * 19, "value/explained_variance": [-1.0] * 19}, CLIPPED)
    assert isinstance(checked(explained_variance, run), Skipped)


@pytest.mark.parametrize(("value", "found"), [(29.0, None), (-31.0, "medium"), (59.0, "medium"), (61.0, "high")])
def test_values_beyond_the_discounted_sum_of_the_largest_reward(value: float, found: str | None) -> None:
    metrics = {"rollout/reward_abs_max": [1.0, 2.0, 1.0], "value/estimate": [value] * 10}  # returns up to 2 / (1 - 0.9)
    run = view(metrics, VALUES)
    assert severity(checked(value_range, run)) == found


def test_the_entropy_of_a_soft_return_counts_as_reward() -> None:
    metrics = {"rollout/reward_abs_max": [1.0] * 10, "value/q_taken_mean": [25.0] * 10}
    soft = {"policy/temperature": [0.5] * 10, "policy/entropy": [2.0] * 10}
    hard, run = view(metrics, VALUES), view(metrics | soft, VALUES)
    assert severity(checked(value_range, hard)) == "medium"
    assert severity(checked(value_range, run)) is None


@pytest.mark.parametrize(("value", "found"), [(29.0, None), (-31.0, "medium"), (61.0, "high")])
def test_values_of_scaled_rewards_are_checked_in_the_unit_of_rewards(value: float, found: str | None) -> None:
    scaled = {"replay/reward_scale": [0.1] * 10, "value/q_taken_mean": [10 * value] * 10}
    run = view({"rollout/reward_abs_max": [2.0] * 10} | scaled, VALUES | {"reward_scale": "rms"})
    outcome = checked(value_range, run)
    assert severity(outcome) == found
    assert not isinstance(outcome, Finding) or f"times replay/reward_scale is {value:g}" in outcome.evidence


def test_without_discount_the_length_of_episodes_bounds_returns() -> None:
    metrics = {"rollout/reward_abs_max": [1.0] * 10, "value/estimate": [301.0] * 10, "rollout/length_mean": [10.0] * 10}
    run = view(metrics, VALUES | {"gamma": 1.0})
    assert severity(checked(value_range, run)) == "high"


@pytest.mark.parametrize(("value", "found"), [(1.4, None), (-1.6, "medium"), (3.53, "high")])
def test_without_rewards_values_are_at_most_those_of_untrained_networks(value: float, found: str | None) -> None:
    metrics = {"rollout/reward_abs_max": [0.0] * 10, "value/q_taken_mean": [value] * 10}
    outcome = checked(
        value_range, view(metrics | {"replay/reward_scale": [1e-8] * 10}, VALUES | {"reward_scale": "rms"})
    )
    assert severity(outcome) == found
    expected = f"value/q_taken_mean is {value}; all rewards were 0, which allows returns up to 0"
    assert not isinstance(outcome, Finding) or outcome.evidence == expected


def test_values_are_not_checked_without_known_rewards_or_on_another_scale() -> None:
    metrics = {"rollout/reward_abs_max": [1.0] * 10, "value/q_taken_mean": [1e9] * 10}
    runs = [
        view({"value/q_taken_mean": [1e9] * 10}, OFF_POLICY),
        view(metrics, OFF_POLICY | {"reward_scale": "rms"}),
        view(metrics | {"reward/rnd_weight": [1.0] * 10}, OFF_POLICY),
        view({}, OFF_POLICY),
    ]
    assert all(isinstance(checked(value_range, run), Skipped) for run in runs)


DRIFT = {
    "rollout/truncated": [1.0] * 10,
    "rollout/length_mean": [25.0] * 10,
    "rollout/return_std": [15.0] * 10,
    "rollout/return_mean": [-55.0] * 5 + [-100.0] * 5,
    "value/estimate": [0.0] * 5 + [-130.0] * 5,
}
"""Metrics of a run with values of a task without an end."""
FAR_SIGHTED = CLIPPED | {"gamma": 0.99}


def test_values_that_drift_at_a_known_limit_are_not_bootstrapped_there() -> None:
    run = view(DRIFT, FAR_SIGHTED | {"bootstrap_at_limit": True}, manifest={"episode_limit": 25})
    found = checked(values_at_limits, run)
    assert isinstance(found, Finding)
    assert found.severity == "high"
    assert found.evidence == (
        "value/estimate went from 0 to -130 while the return went from -55 to -100: episodes are truncated after 25 "
        "steps, where values are bootstrapped over a discount horizon of 100 steps"
    )
    assert found.fix == "Let returns end at the limit: algo.bootstrap_at_limit=false (now true)."


def test_values_that_drift_at_an_unknown_limit_are_discounted_within_the_episode() -> None:
    run = view(DRIFT, FAR_SIGHTED | {"bootstrap_at_limit": False}, manifest={"episode_limit": None})
    found = checked(values_at_limits, run)
    assert isinstance(found, Finding)
    assert found.fix == "Discount within the episode: algo.gamma=0.96 (now 0.99)."


@pytest.mark.parametrize(
    ("metrics", "algo"),
    [
        ({}, {"bootstrap_at_limit": False}),
        ({}, {"gamma": 0.97}),  # a horizon of 33 steps
        ({"rollout/truncated": [0.4] * 10}, {}),
        ({"value/estimate": [-99.0] * 10}, {}),  # within the returns
        ({"rollout/return_mean": [-100.0] * 5 + [-55.0] * 5}, {}),  # it learns
    ],
)
def test_values_do_not_drift_within_the_episode_or_where_the_run_learns(
    metrics: dict[str, list[float]], algo: dict[str, object]
) -> None:
    run = view(DRIFT | metrics, FAR_SIGHTED | algo, manifest={"episode_limit": 25})
    assert checked(values_at_limits, run) is None


def test_truncation_of_earlier_versions_is_known_from_the_length_of_episodes() -> None:
    earlier = {name: values for name, values in DRIFT.items() if name != "rollout/truncated"}
    for limit, terminates, expected in ((25, False, "high"), (25, True, None), (50, False, None)):
        run = view(earlier, FAR_SIGHTED, env__episode_limit=limit, env__terminate_at_limit=terminates)
        assert severity(checked(values_at_limits, run)) == expected


def test_limits_are_not_checked_without_values_or_episodes() -> None:
    for run in (view(DRIFT, CLIPPED), view({}, FAR_SIGHTED)):
        assert isinstance(checked(values_at_limits, run), Skipped)


SPARSE = {
    "rollout/reward_abs_max": [1.0] * 10,
    "rollout/length_mean": [40.0] * 10,
    "rollout/return_mean": [0.3] * 10,
    "rollout/return_std": [0.45] * 10,
}
"""Metrics of a run whose returns are at most 1, or up to 1.2 by the spread of single episodes."""


@pytest.mark.parametrize(("value", "found"), [(1.7, None), (2.0, "medium"), (3.5, "medium"), (3.7, "high")])
def test_values_beyond_the_returns_that_were_seen(value: float, found: str | None) -> None:
    metrics = SPARSE | {"value/q_taken_mean": [value] * 10}
    run = view(metrics, OFF_POLICY | {"gamma": 0.99, "target_update_interval": 200}, manifest={"episode_limit": 50})
    outcome = checked(value_range, run)
    assert severity(outcome) == found
    assert not isinstance(outcome, Finding) or outcome.evidence.endswith("; the returns of episodes reach 1.2")


def test_values_that_are_bootstrapped_at_limits_continue_the_return() -> None:
    metrics = SPARSE | {"value/q_taken_mean": [4.0] * 10, "rollout/truncated": [0.9] * 10}
    for setting, found in ((True, None), (False, "high")):  # 100 steps of the discount horizon are 2.5 episodes
        algo = OFF_POLICY | {"gamma": 0.99, "bootstrap_at_limit": setting}
        run = view(metrics, algo, manifest={"episode_limit": 50})
        assert severity(checked(value_range, run)) == found


def test_rewards_that_cancel_allow_values_beyond_the_return() -> None:
    metrics = SPARSE | {"value/q_taken_mean": [2.5] * 10}
    returns = {"rollout/return_mean": [-5.0] + [0.0] * 9, "rollout/return_std": [0.1] * 10}
    run = view(metrics | returns, OFF_POLICY | {"gamma": 0.99}, manifest={"episode_limit": 50})
    assert checked(value_range, run) is None

"""Checks of the environment at their thresholds."""

from __future__ import annotations

import pytest

from coterie.diagnosis.environment_checks import environment_speed, episode_end, reward_scale
from coterie.diagnosis.findings import Finding, Skipped
from runviews import CLIPPED, OFF_POLICY, severity, view


@pytest.mark.parametrize(
    ("largest", "found"),
    [(0.0, "high"), (0.9e-5, "high"), (0.9e-3, "medium"), (1.1e-3, None), (99.0, None), (101.0, "medium"),
     (1001.0, "high")],
)  # fmt: skip
def test_rewards_that_are_large_small_or_zero(largest: float, found: str | None) -> None:
    run = view({"rollout/reward_abs_max": [largest] * 3}, OFF_POLICY)
    assert severity(reward_scale(run, run.teams[0])) == found


def test_normalized_rewards_have_any_scale() -> None:
    for algo in (CLIPPED | {"normalize_value": True}, OFF_POLICY | {"reward_scale": "std"}):
        run = view({"rollout/reward_abs_max": [1e6] * 3}, algo)
        assert reward_scale(run, run.teams[0]) is None


def test_curiosity_without_rewards_is_no_severe_finding() -> None:
    run = view({"rollout/reward_abs_max": [0.0] * 3, "reward/rnd_mean": [1.0] * 3}, CLIPPED)
    assert severity(reward_scale(run, run.teams[0])) == "medium"


@pytest.mark.parametrize(
    ("share", "rate", "found"),
    [(0.74, 10, None), (0.76, 10, "medium"), (0.89, 999, "medium"), (0.91, 999, "high"), (0.99, 1001, None)],
)
def test_an_environment_that_takes_most_of_the_time(share: float, rate: float, found: str | None) -> None:
    run = view({"time/collect_share": [share] * 10, "time/steps_per_s": [rate] * 10}, CLIPPED)
    assert severity(environment_speed(run)) == found


def test_the_fix_of_a_slow_environment_depends_on_its_workers() -> None:
    def fix(**settings: object) -> str:
        metrics = {"time/collect_share": [1.0] * 10, "time/steps_per_s": [10.0] * 10}
        outcome = environment_speed(view(metrics, CLIPPED, **settings))
        assert isinstance(outcome, Finding)
        return outcome.fix

    assert "num_envs=40 (now 10)" in fix()
    assert "workers.count=8 (now 0)" in fix(env__wrappers__reward_scale=1.0, workers__count=0)
    assert "workers.overlap=true" in fix(env__wrappers__reward_scale=1.0, workers__count=2, workers__overlap=False)


def test_speed_needs_entries() -> None:
    assert isinstance(environment_speed(view({}, CLIPPED)), Skipped)


@pytest.mark.parametrize(("steps", "found"), [(1990, None), (2000, "medium"), (9990, "medium"), (10_000, "high")])
def test_episodes_that_never_end(steps: int, found: str | None) -> None:
    assert severity(episode_end(view({}, CLIPPED, steps=steps))) == found  # of ten environments
    assert severity(episode_end(view({"rollout/episodes": [1]}, CLIPPED, steps=steps))) is None

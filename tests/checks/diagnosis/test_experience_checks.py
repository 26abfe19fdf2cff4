"""Checks of rewards, ends, speed, replay, exploration and evaluation at their thresholds."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.checks.diagnosis.experience_checks import (
    environment_speed,
    episode_end,
    evaluation_mode,
    exploration,
    replay,
    reward_scale,
)
from coterie.checks.findings import Finding, Skipped
from runviews import CLIPPED, OFF_POLICY, checked, reason, severity, view


@pytest.mark.parametrize(
    ("largest", "found"),
    [(0.0, "high"), (0.9e-5, "high"), (0.9e-3, "medium"), (1.1e-3, None), (99.0, None), (101.0, "medium"),
     (1001.0, "high")],
)  # fmt: skip
def test_rewards_that_are_large_small_or_zero(largest: float, found: str | None) -> None:
    run = view({"rollout/reward_abs_max": [largest] * 3}, OFF_POLICY)
    assert severity(checked(reward_scale, run)) == found


def test_normalized_rewards_have_any_scale() -> None:
    for algo in (CLIPPED | {"normalize_value": True}, OFF_POLICY | {"reward_scale": "rms"}):
        run = view({"rollout/reward_abs_max": [1e6] * 3}, algo)
        assert checked(reward_scale, run) is None


def test_curiosity_without_rewards_is_no_severe_finding() -> None:
    run = view({"rollout/reward_abs_max": [0.0] * 3, "reward/rnd_mean": [1.0] * 3}, CLIPPED)
    assert severity(checked(reward_scale, run)) == "medium"


@pytest.mark.parametrize(
    ("share", "rate", "found"),
    [(0.74, 10, None), (0.76, 10, "medium"), (0.89, 999, "medium"), (0.91, 999, "high"), (0.99, 1001, None)],
)
def test_an_environment_that_takes_most_of_the_time(share: float, rate: float, found: str | None) -> None:
    run = view({"time/collect_share": [share] * 10, "time/steps_per_s": [rate] * 10}, CLIPPED)
    assert severity(checked(environment_speed, run)) == found


def test_the_fix_of_a_slow_environment_depends_on_its_workers() -> None:
    def fix(**settings: object) -> str:
        metrics = {"time/collect_share": [1.0] * 10, "time/steps_per_s": [10.0] * 10}
        outcome = checked(environment_speed, view(metrics, CLIPPED, **settings))
        assert isinstance(outcome, Finding)
        return outcome.fix

    assert "num_envs=40 (now 10)" in fix()
    assert "workers.count=8 (now 0)" in fix(env__wrappers__reward_scale=1.0, workers__count=0)
    assert "workers.overlap=true" in fix(env__wrappers__reward_scale=1.0, workers__count=2, workers__overlap=False)


def test_speed_needs_entries() -> None:
    assert isinstance(checked(environment_speed, view({}, CLIPPED)), Skipped)


@pytest.mark.parametrize(("steps", "found"), [(1990, None), (2000, "medium"), (9990, "medium"), (10_000, "high")])
def test_episodes_that_never_end(steps: int, found: str | None) -> None:
    assert severity(checked(episode_end, view({}, CLIPPED, steps=steps))) == found  # of ten environments
    assert severity(checked(episode_end, view({"rollout/episodes": [1]}, CLIPPED, steps=steps))) is None


EPSILON = {"epsilon_start": 1.0, "epsilon_end": 0.0, "epsilon_schedule": "linear"}


@pytest.mark.parametrize(("sequences", "found"), [(99, "high"), (101, "medium"), (499, "medium"), (500, None)])
def test_a_full_buffer_of_few_batches_is_small(sequences: int, found: str | None) -> None:
    run = view({"replay/sequences": [sequences], "replay/updates": [100]}, OFF_POLICY, steps=2000)
    assert severity(checked(replay, run)) == found
    run = view({"replay/sequences": [sequences], "replay/updates": [100]}, OFF_POLICY, steps=900)  # not yet full
    assert severity(checked(replay, run)) is None


@pytest.mark.parametrize(("updates", "found"), [(4_900_000, None), (5_100_000, "medium")])
def test_data_of_old_policies_is_too_old(updates: int, found: str | None) -> None:
    run = view({"replay/sequences": [1000], "replay/updates": [updates]}, OFF_POLICY, steps=2000)  # holds half of it
    assert severity(checked(replay, run)) == found


@pytest.mark.parametrize(("lesson", "found"), [([1, 1, 1, 2, 2, 2, 2, 2, 2, 2], None), ([1] * 6 + [2] * 4, "medium")])
def test_data_of_earlier_lessons_is_too_old(lesson: list[int], found: str | None) -> None:
    metrics = {"replay/sequences": [1000], "replay/updates": [600], "lesson/index": lesson}
    run = view(metrics, OFF_POLICY, steps=1000)
    assert severity(checked(replay, run)) == found


@pytest.mark.parametrize(("decay", "found"), [(1249, None), (1251, "medium"), (1990, "medium"), (2010, "high")])
def test_epsilon_at_the_end_of_the_run(decay: int, found: str | None) -> None:
    run = view({}, OFF_POLICY | EPSILON | {"epsilon_decay_steps": decay}, steps=1000)
    assert severity(checked(exploration, run)) == found


def test_an_exponential_schedule_is_shorter_than_a_linear_one() -> None:
    algo = OFF_POLICY | EPSILON | {"epsilon_end": 0.01, "epsilon_decay_steps": 2000}
    run = view({}, algo | {"epsilon_schedule": "exponential"}, steps=1000)  # 0.1 in the middle
    assert checked(exploration, run) is None
    run = view({}, algo, steps=1000)
    assert severity(checked(exploration, run)) == "high"


@pytest.mark.parametrize("setting", ["random_steps", "learning_starts"])
def test_learning_that_starts_after_the_run(setting: str) -> None:
    runs = [view({}, OFF_POLICY | {setting: steps}, steps=1000) for steps in (999, 1000)]
    outcomes = [checked(exploration, run) for run in runs]
    assert isinstance(outcomes[0], Skipped)
    assert severity(outcomes[1]) == "high"


def compared(evaluated: float, algo: dict[str, Any] = CLIPPED, **settings: Any) -> Any:
    metrics = {
        "loss/policy": [0.0] * 100,
        "rollout/return_mean": [10.0] * 10,
        "rollout/return_std": [2.0] * 10,
        "eval/return_mean": [10.0, *[evaluated] * 3],
        "eval/return_std": [1.0] * 4,
    }
    run = view(metrics, algo, **settings)
    return checked(evaluation_mode, run)


@pytest.mark.parametrize(("evaluated", "found"), [(8.1, None), (7.9, "high"), (99.0, None)])
def test_evaluation_one_standard_deviation_below_training(evaluated: float, found: str | None) -> None:
    assert severity(compared(evaluated)) == found


def test_the_fix_is_the_other_mode() -> None:
    assert "eval.mode=sample (now greedy)" in compared(0.0, eval__mode="greedy").fix
    assert "eval.mode=greedy (now sample)" in compared(0.0, eval__mode="sample").fix
    assert "eval.mode=sample (now auto)" in compared(0.0, OFF_POLICY | EPSILON).fix


def test_an_untrained_policy_is_not_compared() -> None:
    metrics = {"loss/policy": [0.0] * 12, "rollout/return_mean": [10.0] * 10, "eval/return_mean": [0.0] * 4}
    run = view(metrics, CLIPPED)
    assert reason(checked(evaluation_mode, run)) == "the policy has taken fewer than 100 gradient steps"


def test_other_rewards_in_training_are_no_mismatch() -> None:
    assert isinstance(compared(0.0, env__wrappers__reward_scale=0.1), Skipped)
    assert isinstance(compared(0.0, randomize__speed=1.0), Skipped)
    assert isinstance(compared(0.0, selfplay__opponents="uniform"), Skipped)

"""Checks of replay, exploration and evaluation at their thresholds."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.diagnosis.experience_checks import evaluation_mode, exploration, replay
from coterie.diagnosis.findings import Skipped
from runviews import CLIPPED, OFF_POLICY, severity, view

EPSILON = {"epsilon_start": 1.0, "epsilon_end": 0.0, "epsilon_schedule": "linear"}


@pytest.mark.parametrize(("sequences", "found"), [(99, "high"), (101, "medium"), (499, "medium"), (500, None)])
def test_a_full_buffer_of_few_batches_is_small(sequences: int, found: str | None) -> None:
    run = view({"replay/sequences": [sequences], "replay/updates": [100]}, OFF_POLICY, steps=2000)
    assert severity(replay(run, run.teams[0])) == found
    run = view({"replay/sequences": [sequences], "replay/updates": [100]}, OFF_POLICY, steps=900)  # not yet full
    assert severity(replay(run, run.teams[0])) is None


@pytest.mark.parametrize(("updates", "found"), [(4_900_000, None), (5_100_000, "medium")])
def test_data_of_old_policies_is_too_old(updates: int, found: str | None) -> None:
    run = view({"replay/sequences": [1000], "replay/updates": [updates]}, OFF_POLICY, steps=2000)  # holds half of it
    assert severity(replay(run, run.teams[0])) == found


@pytest.mark.parametrize(("lesson", "found"), [([1, 1, 1, 2, 2, 2, 2, 2, 2, 2], None), ([1] * 6 + [2] * 4, "medium")])
def test_data_of_earlier_lessons_is_too_old(lesson: list[int], found: str | None) -> None:
    metrics = {"replay/sequences": [1000], "replay/updates": [600], "lesson/index": lesson}
    run = view(metrics, OFF_POLICY, steps=1000)
    assert severity(replay(run, run.teams[0])) == found


@pytest.mark.parametrize(("decay", "found"), [(1249, None), (1251, "medium"), (1990, "medium"), (2010, "high")])
def test_epsilon_at_the_end_of_the_run(decay: int, found: str | None) -> None:
    run = view({}, OFF_POLICY | EPSILON | {"epsilon_decay_steps": decay}, steps=1000)
    assert severity(exploration(run, run.teams[0])) == found


def test_an_exponential_schedule_is_shorter_than_a_linear_one() -> None:
    algo = OFF_POLICY | EPSILON | {"epsilon_end": 0.01, "epsilon_decay_steps": 2000}
    run = view({}, algo | {"epsilon_schedule": "exponential"}, steps=1000)  # 0.1 in the middle
    assert exploration(run, run.teams[0]) is None
    run = view({}, algo, steps=1000)
    assert severity(exploration(run, run.teams[0])) == "high"


@pytest.mark.parametrize("setting", ["random_steps", "learning_starts"])
def test_learning_that_starts_after_the_run(setting: str) -> None:
    runs = [view({}, OFF_POLICY | {setting: steps}, steps=1000) for steps in (999, 1000)]
    outcomes = [exploration(run, run.teams[0]) for run in runs]
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
    return evaluation_mode(run, run.teams[0])


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
    assert evaluation_mode(run, run.teams[0]) == Skipped("the policy has taken fewer than 100 gradient steps")


def test_other_rewards_in_training_are_no_mismatch() -> None:
    assert isinstance(compared(0.0, env__wrappers__reward_scale=0.1), Skipped)
    assert isinstance(compared(0.0, randomize__speed=1.0), Skipped)
    assert isinstance(compared(0.0, selfplay__opponents="uniform"), Skipped)

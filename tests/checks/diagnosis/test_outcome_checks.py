"""Checks of the end of a run at their thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.checks.diagnosis.diagnosis import diagnose_view
from coterie.checks.diagnosis.outcome_checks import below_random, fell, nothing_learned
from coterie.checks.diagnosis.run_view import RunView
from coterie.checks.diagnosis.update_checks import more_steps
from coterie.checks.findings import Finding, Skipped
from runviews import CLIPPED, checked, severity, view


def evaluated(*returns: float, error: float = 1.0, random: float = 0.0, **more: Any) -> RunView:
    """Returns the view of a run with these evaluations and 800 gradient steps."""
    metrics: dict[str, Sequence[float]] = {"loss/policy": [0.0] * 100}
    metrics |= {"eval/return_mean": returns, "eval/return_error": [error] * len(returns)}
    algo = CLIPPED | more.pop("algo", {})
    manifest = {"random": {"agent": random}, "random_error": {"agent": error}, "episode_limit": 25}
    return view(metrics | more.pop("metrics", {}), algo, manifest=manifest, **more)


def outcomes(run: RunView) -> list[str | None]:
    """Returns the severity of the findings below random, fell and nothing learned."""
    return [severity(checked(check, run)) for check in (below_random, fell, nothing_learned)]


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([0, 5, 9, 9, 9], [None, None, None]),
        ([0, 0, -9, -9, -9], ["high", None, None]),
        ([0, 9, 9, 9, 2, 2, 2], [None, "high", None]),
        ([0, 9, 9, 9, -9, -9, -9], ["high", None, None]),
        ([0, 1, -1, 1, 0], [None, None, "high"]),
    ],
)
def test_a_run_has_at_most_one_finding_on_its_outcome(returns: list[float], expected: list[str | None]) -> None:
    assert outcomes(evaluated(*returns)) == expected
    assert outcomes(evaluated(*returns, error=9.0)) == [None, None, "high"]  # noise: nothing is known to be learned


def test_a_run_that_did_not_rise_since_its_start_has_learned_nothing() -> None:
    found = checked(nothing_learned, evaluated(20, 22, 19, 21, 20))  # a warm start above the random policy
    assert isinstance(found, Finding)
    assert found.severity == "medium"
    assert "20 above the random policy (0), but not above the start (20)" in found.evidence


@pytest.mark.parametrize("returns", [(1.5, 0.15), (1.5, 0.15, 0.15), (1.5, 1.4, 0.15, 0.15, 0.15)])
def test_ending_below_the_random_policy_is_the_first_finding(returns: tuple[float, ...]) -> None:
    # Entropy, gradients and values look wrong as well.
    metrics = {"policy/entropy": [1.6, 0.1, *[0.001] * 8], "policy/grad_norm": [1.0, *[1e6] * 9]}
    metrics |= {"rollout/return_mean": [1.5] * 10, "rollout/return_std": [1.0] * 10}
    run = evaluated(*returns, error=0.05, random=1.53, metrics={"loss/policy": [0.0] * 10, **metrics})
    findings = diagnose_view(run, Path("run")).findings
    assert findings[0].name == "below random"
    assert "below the random policy (1.53)" in findings[0].evidence
    assert {"entropy", "gradients"} < {finding.name for finding in findings}


def test_of_several_teams_that_learn_all_must_be_below_random_for_a_finding() -> None:
    def run(red: float, blue: float) -> RunView:
        red_view, blue_view = evaluated(0, red).teams[0], evaluated(0, blue).teams[0]
        teams = (replace(red_view, name="red", alone=False), replace(blue_view, name="blue", alone=False))
        return replace(evaluated(0), teams=teams)

    lost = run(-9, -9)
    assert [severity(below_random(lost, team)) for team in lost.teams] == ["high", "high"]
    won = run(-9, 9)
    with pytest.raises(Skipped, match="opponents"):
        below_random(won, won.teams[0])


def test_the_evidence_states_the_end_the_reference_and_the_fall() -> None:
    run = evaluated(-56, -53, -53, -53, -83, -83, -83, random=-56)
    found = checked(below_random, run)
    assert isinstance(found, Finding)
    assert found.evidence == "the last 3 evaluations are -83 ± 0.577, 27 below the random policy (-56)"
    assert found.fix == "Smaller updates: algo.lr=0.0001 (now 0.0003)."
    run = evaluated(-56, -30, -30, -30, -53, -53, -53, random=-56)
    found = checked(fell, run)
    assert isinstance(found, Finding)
    assert ", fell by 23 since step " in found.evidence
    assert found.evidence.endswith("; it had reached -30")


def test_a_run_that_was_never_better_needs_more_gradient_steps() -> None:
    run = evaluated(-9, -9, -9, -9, -9)
    found = checked(below_random, run)
    assert isinstance(found, Finding)
    assert found.fix == "Train longer: steps=3000."
    few = evaluated(-9, -9, -9, -9, -9, metrics={"loss/policy": [0.0] * 10})
    found = checked(below_random, few)
    assert isinstance(found, Finding)
    assert found.fix == "Train longer: steps=7000."


def test_more_updates_per_step_are_advised_where_they_are_not_more_than_usual() -> None:
    def fix(losses: int = 10, **settings: Any) -> str:
        algo = settings.pop("algo", {})
        few = evaluated(-9, -9, -9, -9, -9, metrics={"loss/policy": [0.0] * losses}, algo=algo, **settings)
        return more_steps(few, few.teams[0], few.teams[0].gradient_steps)

    assert fix(num_envs=56) == "Update more often: num_envs=8 (now 56)."  # 80 gradient steps
    assert fix(num_envs=55) == "Train longer: steps=7000."
    replay = {"learning_starts": 100, "rollout_length": 8, "gradient_steps": 1}
    assert fix(algo=replay, num_envs=7) == "More gradient steps per rollout: algo.gradient_steps=7 (now 1)."
    assert fix(algo=replay, num_envs=6) == "Train longer: steps=7000."  # more than one per 8 steps


def test_the_first_advice_of_a_run_without_any_reward_is_a_reward() -> None:
    metrics = {"rollout/reward_abs_max": [0.0] * 10, "value/q_taken_mean": [3.53] * 10}
    run = evaluated(
        0, 0, 0, 0, 0, metrics=metrics | {"loss/policy": [0.0] * 100}, algo={"mixer": "qmix", "gamma": 0.99}
    )
    findings = diagnose_view(run, Path("run")).findings
    assert [f.name for f in findings if f.severity == "high"] == ["reward scale", "value range", "nothing learned"]
    assert {f.fix for f in findings if f.severity == "high"} == {"Reward what is new: rewards.rnd={}."}


def test_values_that_drift_at_limits_are_the_cause() -> None:
    drift = {"rollout/truncated": [1.0], "rollout/length_mean": [25.0], "value/estimate": [0.0, -200.0]}
    drift |= {"rollout/return_mean": [-56.0, -83.0], "rollout/return_std": [9.0]}
    run = evaluated(-56, -53, -83, -83, -83, random=-56, metrics=drift, algo={"gamma": 0.99})
    found = checked(below_random, run)
    assert isinstance(found, Finding)
    assert found.fix == "Let returns end at the limit: algo.bootstrap_at_limit=false (now true)."


def test_small_steps_learn_nothing() -> None:
    def fix(lr: float, losses: int = 100) -> str:
        metrics = {"loss/policy": [0.0] * losses}
        found = checked(nothing_learned, evaluated(0, 0, 0, 0, 0, metrics=metrics, algo={"lr": lr}))
        assert isinstance(found, Finding)
        return found.fix

    assert fix(1e-5) == "Larger steps: algo.lr=0.0001 (now 1e-05)."
    assert fix(4e-4) == "Larger steps: algo.lr=0.0005 (now 0.0004)."
    assert fix(1e-3) == "Train longer: steps=3000."
    assert fix(1e-3, 1000).startswith("Check with coterie check-env")
    young = evaluated(0, 0, 0, 0, 0, metrics={"loss/policy": [0.0] * 9})
    assert isinstance(checked(nothing_learned, young), Skipped)


def test_without_evaluations_training_returns_are_compared_with_the_start() -> None:
    metrics: dict[str, Sequence[float]] = {"rollout/return_std": [3.0] * 6, "rollout/episodes": [10.0] * 6}
    metrics |= {"loss/policy": [0.0] * 100}
    run = view(metrics | {"rollout/return_mean": [10, 40, 40, 40, 15, 15]}, CLIPPED)
    assert isinstance(checked(below_random, run), Skipped)
    worse = view(metrics | {"rollout/return_mean": [40, 40, 20, 10, 10, 10]}, CLIPPED)
    assert severity(checked(fell, worse)) is None  # it was never above the start
    assert severity(checked(fell, run)) == "high"


def test_runs_whose_returns_depend_on_more_than_the_policy_are_not_judged() -> None:
    bad = [0, -9, -9, -9, -9]
    for run, reason in (
        (evaluated(*bad, selfplay__opponents="uniform"), "opponents"),
        (evaluated(*bad, metrics={"lesson/index": [1.0, 2.0]}), "lessons"),
        (evaluated(*bad[:1]), "no returns after the start"),
        (view({}, CLIPPED), "no returns"),
    ):
        for check in (below_random, fell, nothing_learned):
            found = checked(check, run)
            assert isinstance(found, Skipped)
            assert reason in str(found)

"""Checks of updates at their thresholds: gradients, entropy, KL divergence and clipping."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from coterie.checks.diagnosis.run_view import Sample
from coterie.checks.diagnosis.update_checks import (
    clip_fraction,
    effective_samples,
    entropy_collapse,
    gradient_norm,
    gradient_steps,
    kl_range,
)
from coterie.checks.findings import Skipped
from runviews import CLIPPED, LEARNING, OFF_POLICY, STUCK, checked, severity, view


@pytest.mark.parametrize(("low", "found"), [(0.049, "high"), (0.051, None)])
def test_entropy_collapses_below_a_twentieth_of_its_start(low: float, found: str | None) -> None:
    run = view(STUCK | {"policy/entropy": [1.0, 0.5, *[low] * 8]}, CLIPPED)
    assert severity(checked(entropy_collapse, run)) == found


def test_a_deterministic_policy_is_no_collapse_late_or_with_a_better_return() -> None:
    late = view(STUCK | {"policy/entropy": [*[1.0] * 6, *[0.01] * 4]}, CLIPPED)
    good = view(LEARNING | {"policy/entropy": [1.0, *[0.01] * 9]}, CLIPPED)
    recovered = view(STUCK | {"policy/entropy": [1.0, *[0.01] * 8, 0.5]}, CLIPPED)
    none = view(STUCK | {"policy/entropy": [0.0] * 10}, CLIPPED)  # a single choice
    assert [checked(entropy_collapse, run) for run in (late, good, recovered, none)] == [None] * 4


@pytest.mark.parametrize(("std", "found"), [(0.019, "high"), (0.021, None)])
def test_the_entropy_of_continuous_actions_counts_as_a_standard_deviation(std: float, found: str | None) -> None:
    def entropy(std: float) -> float:
        return 3 * math.log(std * math.sqrt(2 * math.pi * math.e))

    run = view(STUCK | {"policy/entropy": [entropy(0.6), *[entropy(std)] * 9]}, CLIPPED)
    team = replace(run.teams[0], sample=Sample(continuous=3))
    assert severity(checked(entropy_collapse, run, team)) == found
    assert isinstance(checked(entropy_collapse, run, replace(team, sample=Sample(continuous=None))), Skipped)


@pytest.mark.parametrize(("kl", "found"), [(0.049, None), (0.051, "medium"), (0.19, "medium"), (0.21, "high")])
def test_kl_above_the_range(kl: float, found: str | None) -> None:
    run = view(STUCK | {"policy/kl": [kl] * 10}, CLIPPED)
    assert severity(checked(kl_range, run)) == found
    run = view(LEARNING | {"policy/kl": [kl] * 10}, CLIPPED)
    assert severity(checked(kl_range, run)) == (found and "medium")


def test_kl_of_zero_is_found_unless_there_is_one_gradient_step_or_the_gradient_is_zero() -> None:
    metrics = STUCK | {"policy/kl": [1e-8] * 10}
    once = CLIPPED | {"epochs": 1, "num_minibatches": 1}
    runs = [view(metrics, CLIPPED), view(metrics, once), view(metrics | {"policy/grad_norm": [0.0] * 10}, CLIPPED)]
    assert [severity(checked(kl_range, run)) for run in runs] == ["medium", None, None]


@pytest.mark.parametrize(("share", "found"), [(0.29, None), (0.31, "medium"), (0.59, "medium"), (0.61, "high")])
def test_clip_fraction(share: float, found: str | None) -> None:
    run = view(STUCK | {"policy/clip_fraction": [share] * 10}, CLIPPED)
    assert severity(checked(clip_fraction, run)) == found


@pytest.mark.parametrize(("share", "found"), [(0.51, None), (0.49, "medium"), (0.21, "medium"), (0.19, "high")])
def test_effective_samples_of_sequential_updates(share: float, found: str | None) -> None:
    metrics = STUCK | {"policy/effective_samples": [share] * 10}
    assert severity(checked(effective_samples, view(metrics, CLIPPED))) == found
    assert severity(checked(effective_samples, view(metrics, CLIPPED | {"max_kl": 0.01}))) == found
    simultaneous = checked(effective_samples, view(STUCK, CLIPPED))
    assert isinstance(simultaneous, Skipped)
    assert not simultaneous.applies


def test_checks_say_why_they_are_not_made() -> None:
    few, other = view({"policy/kl": [1.0] * 4, "policy/entropy": [1.0] * 4}, CLIPPED), view({}, OFF_POLICY)
    for check in (entropy_collapse, kl_range, clip_fraction):
        outcome = checked(check, few)
        assert isinstance(outcome, Skipped)
        assert "entries, fewer than 5" in str(outcome)
        outcome = checked(check, other)
        assert isinstance(outcome, Skipped)
        assert not outcome.applies


@pytest.mark.parametrize(("norm", "found"), [(49.0, None), (51.0, "high")])
def test_gradients_explode_at_a_hundred_times_the_clipped_norm(norm: float, found: str | None) -> None:
    metrics = {"value/grad_norm": [norm] * 10}
    run = view(STUCK | metrics, CLIPPED | {"max_grad_norm": 0.5})
    assert severity(checked(gradient_norm, run)) == found
    run = view(LEARNING | metrics, CLIPPED | {"max_grad_norm": 0.5})
    assert severity(checked(gradient_norm, run)) == (found and "medium")


@pytest.mark.parametrize(("end", "found"), [(99.0, None), (101.0, "high")])
def test_gradients_that_grow_a_thousandfold_explode(end: float, found: str | None) -> None:
    run = view(LEARNING | {"policy/grad_norm": [0.01] * 5 + [end] * 5}, CLIPPED | {"max_grad_norm": None})
    assert severity(checked(gradient_norm, run)) == found


@pytest.mark.parametrize(("norm", "found"), [(2e-6, None), (0.9e-6, "high")])
def test_the_gradient_of_the_policy_vanishes(norm: float, found: str | None) -> None:
    run = view(STUCK | {"policy/grad_norm": [norm] * 10}, CLIPPED)
    assert severity(checked(gradient_norm, run)) == found
    run = view(LEARNING | {"policy/grad_norm": [norm] * 10}, CLIPPED)
    assert checked(gradient_norm, run) is None


@pytest.mark.parametrize(("steps", "found"), [(0, "high"), (99, "high"), (101, "medium"), (499, "medium"), (500, None)])
def test_gradient_steps_off_policy(steps: int, found: str | None) -> None:
    run = view({"replay/updates": [0, steps]}, OFF_POLICY)
    assert severity(checked(gradient_steps, run)) == found


@pytest.mark.parametrize(("updates", "found"), [(12, "high"), (13, "medium"), (62, "medium"), (63, None)])
def test_gradient_steps_on_policy_are_updates_times_epochs_times_minibatches(updates: int, found: str | None) -> None:
    run = view({"loss/policy": [0.0] * updates}, CLIPPED)  # 8 steps each
    assert severity(checked(gradient_steps, run)) == found
    run = view({"loss/policy": [0.0] * updates}, CLIPPED, log__every=10)
    assert severity(checked(gradient_steps, run)) is None

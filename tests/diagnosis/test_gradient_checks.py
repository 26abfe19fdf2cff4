"""Checks of gradients at their thresholds."""

from __future__ import annotations

import pytest

from coterie.diagnosis.gradient_checks import gradient_norm, gradient_steps
from runviews import CLIPPED, LEARNING, OFF_POLICY, STUCK, severity, view


@pytest.mark.parametrize(("norm", "found"), [(49.0, None), (51.0, "high")])
def test_gradients_explode_at_a_hundred_times_the_clipped_norm(norm: float, found: str | None) -> None:
    metrics = {"value/grad_norm": [norm] * 10}
    run = view(STUCK | metrics, CLIPPED | {"max_grad_norm": 0.5})
    assert severity(gradient_norm(run, run.teams[0])) == found
    run = view(LEARNING | metrics, CLIPPED | {"max_grad_norm": 0.5})
    assert severity(gradient_norm(run, run.teams[0])) == (found and "medium")


@pytest.mark.parametrize(("end", "found"), [(99.0, None), (101.0, "high")])
def test_gradients_that_grow_a_thousandfold_explode(end: float, found: str | None) -> None:
    run = view(LEARNING | {"policy/grad_norm": [0.01] * 5 + [end] * 5}, CLIPPED | {"max_grad_norm": None})
    assert severity(gradient_norm(run, run.teams[0])) == found


@pytest.mark.parametrize(("norm", "found"), [(2e-6, None), (0.9e-6, "high")])
def test_the_gradient_of_the_policy_vanishes(norm: float, found: str | None) -> None:
    run = view(STUCK | {"policy/grad_norm": [norm] * 10}, CLIPPED)
    assert severity(gradient_norm(run, run.teams[0])) == found
    run = view(LEARNING | {"policy/grad_norm": [norm] * 10}, CLIPPED)
    assert gradient_norm(run, run.teams[0]) is None


@pytest.mark.parametrize(("steps", "found"), [(0, "high"), (99, "high"), (101, "medium"), (499, "medium"), (500, None)])
def test_gradient_steps_off_policy(steps: int, found: str | None) -> None:
    run = view({"replay/updates": [0, steps]}, OFF_POLICY)
    assert severity(gradient_steps(run, run.teams[0])) == found


@pytest.mark.parametrize(("updates", "found"), [(12, "high"), (13, "medium"), (62, "medium"), (63, None)])
def test_gradient_steps_on_policy_are_updates_times_epochs_times_minibatches(updates: int, found: str | None) -> None:
    run = view({"loss/policy": [0.0] * updates}, CLIPPED)  # 8 steps each
    assert severity(gradient_steps(run, run.teams[0])) == found
    run = view({"loss/policy": [0.0] * updates}, CLIPPED, log__every=10)
    assert severity(gradient_steps(run, run.teams[0])) is None

"""Checks of networks on observations at their thresholds."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.diagnosis.findings import Finding, Skipped
from coterie.diagnosis.network_checks import dead_units, observation_scale, saturated_tanh
from coterie.diagnosis.run_view import LayerActivity, ObservationScale, Sample
from runviews import CLIPPED, LEARNING, severity, view


def sampled(
    layers: tuple[LayerActivity, ...] = (), scales: tuple[ObservationScale, ...] = (), **options: Any
) -> Sample:
    return Sample(**{"observations": 100, "layers": layers, "scales": scales, "missing": ""} | options)


@pytest.mark.parametrize(("dead", "found"), [(0.49, None), (0.5, "medium"), (0.74, "medium"), (0.75, "high")])
def test_dead_units(dead: float, found: str | None) -> None:
    sample = sampled((LayerActivity("layer 1", "relu", 64, 0.1, 0.0), LayerActivity("layer 2", "relu", 64, dead, 0.0)))
    run = view({}, CLIPPED, sample=sample)
    assert severity(dead_units(run, run.teams[0])) == found
    run = view(LEARNING, CLIPPED, sample=sample)
    assert severity(dead_units(run, run.teams[0])) == (found and "medium")
    assert saturated_tanh(run, run.teams[0]) == Skipped("the network that acts has no tanh layers", applies=False)


@pytest.mark.parametrize(("saturated", "found"), [(0.49, None), (0.5, "medium"), (0.74, "medium"), (0.75, "high")])
def test_saturated_tanh(saturated: float, found: str | None) -> None:
    run = view({}, CLIPPED, sample=sampled((LayerActivity("layer 1", "tanh", 64, 0.0, saturated),)))
    assert severity(saturated_tanh(run, run.teams[0])) == found
    assert dead_units(run, run.teams[0]) == Skipped("the network that acts has only tanh layers", applies=False)


@pytest.mark.parametrize(("largest", "found"), [(20.0, None), (21.0, "medium"), (100.0, "medium"), (101.0, "high")])
def test_large_observations(largest: float, found: str | None) -> None:
    run = view({}, CLIPPED, sample=sampled(scales=(ObservationScale("agent", largest, 3, 1.0, 1.0),)))
    outcome = observation_scale(run, run.teams[0])
    assert severity(outcome) == found
    if isinstance(outcome, Finding):
        assert outcome.evidence.startswith("feature 3 of the observations of agent reaches ")
    run = view({}, CLIPPED | {"normalize_obs": True}, sample=run.teams[0].sample)
    assert observation_scale(run, run.teams[0]) is None


@pytest.mark.parametrize(("smallest", "found"), [(0.0011, None), (0.0009, "medium"), (float("nan"), None)])
def test_features_of_different_size(smallest: float, found: str | None) -> None:
    run = view({}, CLIPPED, sample=sampled(scales=(ObservationScale("agent", 2.0, 0, smallest, 1.0),)))
    assert severity(observation_scale(run, run.teams[0])) == found


def test_images_of_integers_have_any_scale() -> None:
    scale = ObservationScale("agent", 0.0, 0, float("nan"), float("nan"), integer=True)
    run = view({}, CLIPPED, sample=sampled(scales=(scale,)))
    assert observation_scale(run, run.teams[0]) is None


def test_networks_are_not_checked_without_observations() -> None:
    layers = (LayerActivity("layer 1", "relu", 64, 1.0, 0.0),)
    few, none = (
        view({}, CLIPPED, sample=sample) for sample in (sampled(layers, observations=7), Sample(missing="why"))
    )
    assert dead_units(few, few.teams[0]) == Skipped("7 observations, fewer than 8")
    for check in (dead_units, saturated_tanh, observation_scale):
        assert check(none, none.teams[0]) == Skipped("why")

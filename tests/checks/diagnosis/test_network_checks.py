"""Checks of networks on observations at their thresholds, and activity and scale with literal numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from coterie.checks.diagnosis.network_checks import (
    dead_units,
    layer_activity,
    mlp_activities,
    observation_scale,
    saturated_tanh,
    scale_of,
    stored_sample,
    thinned,
)
from coterie.checks.diagnosis.run_view import LayerActivity, ObservationScale, Sample
from coterie.checks.findings import Finding
from coterie.nets.config import LayerNormKind, NetworkConfig
from coterie.nets.layers import MLP
from runviews import CLIPPED, LEARNING, checked, reason, severity, view


def sampled(
    layers: tuple[LayerActivity, ...] = (), scales: tuple[ObservationScale, ...] = (), **options: Any
) -> Sample:
    return Sample(**{"observations": 100, "layers": layers, "scales": scales, "missing": ""} | options)


@pytest.mark.parametrize(("dead", "found"), [(0.49, None), (0.5, "medium"), (0.74, "medium"), (0.75, "high")])
def test_dead_units(dead: float, found: str | None) -> None:
    sample = sampled((LayerActivity("layer 1", "relu", 64, 0.1, 0.0), LayerActivity("layer 2", "relu", 64, dead, 0.0)))
    run = view({}, CLIPPED, sample=sample)
    assert severity(checked(dead_units, run)) == found
    run = view(LEARNING, CLIPPED, sample=sample)
    assert severity(checked(dead_units, run)) == (found and "medium")
    assert reason(checked(saturated_tanh, run), applies=False) == "the network that acts has no tanh layers"


@pytest.mark.parametrize(("saturated", "found"), [(0.49, None), (0.5, "medium"), (0.74, "medium"), (0.75, "high")])
def test_saturated_tanh(saturated: float, found: str | None) -> None:
    run = view({}, CLIPPED, sample=sampled((LayerActivity("layer 1", "tanh", 64, 0.0, saturated),)))
    assert severity(checked(saturated_tanh, run)) == found
    assert reason(checked(dead_units, run), applies=False) == "the network that acts has only tanh layers"


@pytest.mark.parametrize(("largest", "found"), [(20.0, None), (21.0, "medium"), (100.0, "medium"), (101.0, "high")])
def test_large_observations(largest: float, found: str | None) -> None:
    run = view({}, CLIPPED, sample=sampled(scales=(ObservationScale("agent", largest, 3, 1.0, 1.0),)))
    outcome = checked(observation_scale, run)
    assert severity(outcome) == found
    if isinstance(outcome, Finding):
        assert outcome.evidence.startswith("feature 3 of the observations of agent reaches ")
    run = view({}, CLIPPED | {"normalize_obs": True}, sample=run.teams[0].sample)
    assert checked(observation_scale, run) is None


@pytest.mark.parametrize(("smallest", "found"), [(0.0011, None), (0.0009, "medium"), (float("nan"), None)])
def test_features_of_different_size(smallest: float, found: str | None) -> None:
    run = view({}, CLIPPED, sample=sampled(scales=(ObservationScale("agent", 2.0, 0, smallest, 1.0),)))
    assert severity(checked(observation_scale, run)) == found


def test_networks_are_not_checked_without_observations() -> None:
    layers = (LayerActivity("layer 1", "relu", 64, 1.0, 0.0),)
    few, none = (
        view({}, CLIPPED, sample=sample) for sample in (sampled(layers, observations=7), Sample(missing="why"))
    )
    assert reason(checked(dead_units, few)) == "7 observations, fewer than 8"
    for check in (dead_units, saturated_tanh, observation_scale):
        assert reason(checked(check, none)) == "why"


def test_a_relu_is_dead_if_it_is_never_positive() -> None:
    output = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]])
    found = layer_activity("layer", "relu", output)
    assert (found.units, found.dead, found.saturated) == (4, 0.5, 0.0)


def test_tanh_is_saturated_beyond_097() -> None:
    found = layer_activity("layer", "tanh", torch.tensor([[0.98, -0.98], [0.96, 0.0]]))
    assert (found.dead, found.saturated) == (0.0, 0.5)


def test_other_units_are_dead_if_they_hardly_vary() -> None:
    output = torch.tensor([[-1.0, 0.0, 1.0], [-1.001, 1.0, 2.0]])
    assert layer_activity("layer", "elu", output).dead == pytest.approx(1 / 3)


def test_parameter_sets_are_counted_separately() -> None:
    output = torch.tensor([[[1.0], [1.0]], [[0.0], [0.0]]])  # two agents with a unit each
    found = layer_activity("layer", "relu", output)
    assert (found.units, found.dead) == (2, 0.5)


@pytest.mark.parametrize("layer_norm", [False, True, "hidden"])
def test_the_layers_of_an_mlp_are_those_of_its_forward_pass(layer_norm: LayerNormKind) -> None:
    config = NetworkConfig(hidden_sizes=(8, 4), activation="relu", layer_norm=layer_norm)
    mlp, x = MLP(3, config, torch.Generator().manual_seed(0)), torch.randn(64, 3)
    with torch.no_grad():
        mlp.layers[1].bias -= 100.0
        mlp.layers[1].bias[0] += 200.0
    assert [(a.name, a.dead) for a in mlp_activities("agent", mlp, "relu", x)] == [
        ("agent layer 1", 0.0),
        ("agent layer 2", 0.75),
    ]


def test_scale_of_observations() -> None:
    scale = scale_of("agent", torch.tensor([[[1.0, -30.0, 5.0]], [[3.0, 10.0, 5.0]]]))
    assert scale is not None
    assert (scale.largest, scale.feature, scale.smallest, scale.widest) == (30.0, 1, 1.0, 20.0)
    constant = scale_of("agent", torch.ones(4, 1, 2))
    assert constant is not None
    assert math.isnan(constant.smallest)
    assert scale_of("agent", torch.full((4, 1, 2), math.nan)) is None
    assert scale_of("agent", torch.full((4, 1, 2), 255, dtype=torch.uint8)) is None  # networks scale images
    assert scale_of("agent", {"camera": torch.ones(4, 1, 2)}) is None


def test_many_rows_are_thinned_evenly() -> None:
    assert len(thinned(torch.zeros(8192, 2), 0)) == 8192
    assert thinned(torch.arange(20_000), 0).tolist()[:3] == [0, 3, 6]


def stored(obs: torch.Tensor, agents: int, ids: bool, sets: int | None = None) -> dict:
    """Returns the state of a checkpoint with one role, whose second layer is dead."""
    config = NetworkConfig(hidden_sizes=(8, 4), activation="relu")
    mlp = MLP(obs.shape[-1] + (agents if ids else 0), config, torch.Generator().manual_seed(0), sets)
    with torch.no_grad():
        mlp.layers[1].bias -= 100.0
    weights = {f"net.networks.agent.network.body.{name}": x for name, x in mlp.state_dict().items()}
    timestep = {"obs": {"agent": obs}, "alive": torch.ones(len(obs), agents, dtype=torch.bool)}
    algorithm = {"policy": {"module": weights, "moments": {}}}
    return {"collector": {"timestep": timestep}, "algorithms": {"team": algorithm}}


@pytest.mark.parametrize(("ids", "sets"), [(False, None), (True, None), (False, 2)])
def test_the_networks_of_a_checkpoint_are_evaluated_on_its_observations(ids: bool, sets: int | None) -> None:
    state = stored(torch.randn(16, 2, 3), 2, ids, sets)
    sample = stored_sample(state, "team", {"activation": "relu"})
    assert sample.observations == 32
    assert [layer.dead for layer in sample.layers] == [pytest.approx(0.0), pytest.approx(1.0)]
    assert sample.source == "observations in the checkpoint"


def test_unknown_inputs_and_activations_are_not_guessed() -> None:
    state = stored(torch.randn(16, 2, 3), 2, ids=False)
    assert stored_sample(state, "team", {"activation": "os.system"}).layers == ()
    state["collector"]["timestep"]["obs"]["agent"] = torch.randn(16, 2, 2)  # the network reads one number more
    sample = stored_sample(state, "team", {"activation": "relu"})
    assert sample.layers == ()
    assert "does not describe the inputs" in sample.missing

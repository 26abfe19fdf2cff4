"""Networks of Q-learning: mixers, their inputs, and Q* of weighted QMIX, by the settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algo_worlds import Everything
from coterie.algos.qlearning import QLearningConfig, build_central
from coterie.algos.team_q import build_policy, build_value
from coterie.nets.config import CentralInputs
from coterie.nets.mixers import QMIXMixer, QPLEXMixer, TeamQNetwork, UnrestrictedMixer, VDNMixer
from policy_cases import CPU, draw

(TEAM,) = Everything("discrete").spec.default_teams()  # two guards that observe 5 numbers, a scout that observes 3
OBS, STATE, JOINT = 2 * 5 + 3, 5, 2 * 3 + 4
FROM_OBS, FROM_STATE = CentralInputs(True, 0), CentralInputs(False, STATE)


def config_of(**settings: Any) -> QLearningConfig:
    small = {"hidden_sizes": (7,), "rnn": "gru", "rnn_size": 6, "mixing_embed_dim": 11, "hypernet_embed_dim": 9}
    return QLearningConfig(**small | settings)


def value_of(mixer: str, inputs: CentralInputs = FROM_OBS) -> tuple[TeamQNetwork, Any]:
    config, generator = config_of(mixer=mixer), draw()
    policy = build_policy(config, TEAM, generator, CPU)
    return build_value(config, TEAM, policy, inputs, generator), policy


@pytest.mark.parametrize("last_action", [False, True])
def test_the_policy_reads_last_actions_if_configured(last_action: bool):
    policy = build_policy(config_of(obs_last_action=last_action), TEAM, draw(), CPU)
    assert policy.reads_last_action is last_action
    assert set(policy.initial_hidden_state(2)) == ({"h", "last"} if last_action else {"h"})


@pytest.mark.parametrize(
    ("mixer", "kind", "features"),
    [("none", None, 0), ("vdn", VDNMixer, 0), ("qmix", QMIXMixer, OBS), ("qplex", QPLEXMixer, OBS)],
)
def test_only_monotonic_mixers_read_central_inputs(mixer: str, kind: Any, features: int):
    value, policy = value_of(mixer)
    assert value.net is policy.net
    assert value.mixer is None if kind is None else isinstance(value.mixer, kind)
    assert (0 if value.encoder is None else value.encoder.features) == features
    if features:
        from_state, _ = value_of(mixer, FROM_STATE)
        assert from_state.encoder is not None
        assert from_state.encoder.features == STATE
        from_both, _ = value_of(mixer, CentralInputs(True, 1))
        assert from_both.encoder is not None
        assert from_both.encoder.features == OBS + 1


def test_mixers_have_the_configured_sizes():
    """Linear layers of 9 hidden units; a mixing layer of 11 for three agents; QPLEX reads joint actions as well."""
    value, _ = value_of("qmix")
    assert value.mixer is not None
    sizes = [tuple(p.shape) for p in value.mixer.parameters()]
    assert (9, 3 * 11) in sizes
    value, _ = value_of("qplex")
    assert isinstance(value.mixer, QPLEXMixer)
    sizes = [tuple(p.shape) for p in value.mixer.parameters()]
    assert {(OBS, 9), (9, 2 * 3), (OBS + JOINT, 9), (9, 11), (11, 3)} <= set(sizes)


@pytest.mark.parametrize(("inputs", "features"), [(FROM_OBS, OBS), (FROM_STATE, STATE)])
def test_the_unrestricted_q_has_networks_of_its_own(inputs: CentralInputs, features: int):
    """Hidden layers of 4 x 9 units read a value per agent and the central inputs."""
    policy = build_policy(config_of(), TEAM, draw(), CPU)
    central = build_central(config_of(), TEAM, inputs, draw(1), CPU)
    assert isinstance(central.mixer, UnrestrictedMixer)
    assert central.encoder is not None
    assert central.encoder.features == features
    assert next(iter(central.mixer.parameters())).shape == (3 + features, 36)
    own, its = next(policy.net.parameters()), next(central.net.parameters())
    assert own.shape == its.shape
    assert not torch.equal(own, its)

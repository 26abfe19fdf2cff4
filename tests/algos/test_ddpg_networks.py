"""Critics of DDPG: their number, kind, inputs and outputs, by the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from algo_worlds import Everything
from coterie.algos.ddpg import DDPGConfig, build_critics
from coterie.nets.action_critics import CentralizedActionCritic, DecentralizedActionCritic
from policy_cases import draw

(TEAM,) = Everything("discrete", equal_roles=True).spec.default_teams()
OBS, STATE, JOINT_ACTION = 3 * 5, 5, 3 * 3


def critics_of(state_size: int = 0, team: Any = TEAM, **settings: Any) -> list[Any]:
    return list(build_critics(DDPGConfig(hidden_sizes=(7,), **settings), team, state_size, draw()))


def first_layer(critic: CentralizedActionCritic) -> Any:
    return next(iter(critic.network.parameters()))


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_twin_critics_differ_in_their_weights(critic: str):
    assert len(critics_of(critic=critic, twin_critics=False)) == 1
    first, second = critics_of(critic=critic, twin_critics=True)
    assert all(p.shape == q.shape for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert any((p != q).any() for p, q in zip(first.parameters(), second.parameters(), strict=True))
    kind = DecentralizedActionCritic if critic == "own" else CentralizedActionCritic
    assert isinstance(first, kind)
    assert isinstance(second, kind)
    heads = [p.shape[-1] for name, p in first.named_parameters() if name.endswith("head.weight")]
    assert heads == ([1, 1] if critic == "own" else [3]), "one reward signal"


@pytest.mark.parametrize(
    ("critic", "state_size", "features"),
    [("joint", 0, OBS), ("joint", 1, OBS + 1), ("state", STATE, STATE), ("joint_state", STATE, OBS + STATE)],
)
def test_a_centralized_critic_reads_the_configured_inputs(critic: str, state_size: int, features: int):
    (found,) = critics_of(state_size, critic=critic, twin_critics=False)
    assert found.encoder.features == features
    assert first_layer(found).shape == (features + JOINT_ACTION, 7)


def test_the_critics_hidden_layers_are_the_actors_unless_configured():
    (same,) = critics_of(critic="joint", twin_critics=False)
    (own,) = critics_of(critic="joint", twin_critics=False, critic_hidden_sizes=(11, 13))
    assert [p.shape[-1] for p in same.network.parameters() if p.ndim == 2] == [7, 3]
    assert [p.shape[-1] for p in own.network.parameters() if p.ndim == 2] == [11, 13, 3]


@pytest.mark.parametrize(
    ("share_params", "share_critic", "per_agent"),
    [("role", None, False), ("all", None, False), ("none", None, True), ("role", False, True), ("none", True, False)],
)
def test_critics_are_shared_like_the_actors_unless_configured(share_params: str, share_critic: Any, per_agent: bool):
    settings = {"share_params": share_params, "share_critic": share_critic}
    for common in (False, True):
        (found,) = critics_of(critic="joint", twin_critics=False, common_reward=common, **settings)
        assert found.per_agent_network is per_agent
        assert found.shared_output is common
    single = replace(TEAM, roles=TEAM.roles[:1], stop=2)
    assert critics_of(team=single, critic="joint", **settings)[0].num_agents == 2

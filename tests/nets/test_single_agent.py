"""Networks of single agents: the same numbers as in the team's network, and derivatives along a direction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.kernels import switch
from coterie.nets.config import ModuleFactory, NetworkConfig
from coterie.nets.single_agent import SingleAgentActor, SingleAgentNetwork, alone, tangent
from coterie.nets.stochastic_actor import StochasticActor
from coterie.nets.team import TeamNetwork

VECTOR, IMAGE = spaces.Box(-9, 9, (4,)), spaces.Box(-1, 1, (5, 6, 2), np.float32)
NUMBERS = spaces.Box(-1, 1, (2,))


def own_layers(input_size):
    return nn.Sequential(nn.Linear(input_size, 6), nn.Tanh())


def team_actor(space=VECTOR, actions=NUMBERS, *, agents=3, **settings):
    role = RoleSpec("agent", "agent", tuple(f"agent_{k}" for k in range(agents)), space, actions)
    (team,) = EnvSpec("team", (role,), {}).default_teams()
    config = NetworkConfig(hidden_sizes=(8,), rnn_size=4, activation="tanh", share_params="none")
    g = torch.Generator().manual_seed(0)
    actor = StochasticActor(team, replace(config, **settings), g, state_dependent_std=False, init_std=0.6)
    with torch.no_grad():
        for p in actor.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=g))
    return team, actor


def inputs_of(space, rnn, agents=3):
    """Returns observations, resets and hidden states of two environments, of three timesteps for recurrent networks."""
    g = torch.Generator().manual_seed(1)
    lead = (2,) if rnn == "none" else (3, 2)
    obs = {"agent": torch.randn(*lead, agents, *space.shape, generator=g)}
    first = None if rnn == "none" else torch.rand(*lead, agents, generator=g) < 0.3
    names = {"none": (), "gru": ("h",), "lstm": ("h", "c")}[rnn]
    return obs, first, {name: torch.randn(2, agents, 4, generator=g) for name in names}


ARCHITECTURES = [
    ("none", VECTOR, {}),
    ("gru", VECTOR, {"layer_norm": True}),
    ("lstm", VECTOR, {"layer_norm": "hidden"}),
    ("none", IMAGE, {}),
    ("none", VECTOR, {"body": ModuleFactory("own", "algo.network", own_layers)}),
]


@pytest.mark.parametrize(("rnn", "space", "settings"), ARCHITECTURES)
def test_the_network_of_an_agent_is_its_part_of_the_teams(rnn, space, settings):
    team, actor = team_actor(space, rnn=rnn, **settings)
    turns = SingleAgentActor(actor, team, actor.blocks[0])
    obs, first, hidden_state = inputs_of(space, rnn)
    params, log_std = actor(obs, first, hidden_state)["agent"]
    before = [p.clone() for p in actor.parameters()]
    for k in range(3):
        alone = slice(k, k + 1)
        axis = 1 if first is None else 2
        own_obs = {"agent": obs["agent"].narrow(axis, k, 1)}
        own_state = {name: x[:, alone] for name, x in hidden_state.items()}
        with turns.of(k) as own:
            found, own_log_std = own(own_obs, None if first is None else first[..., alone], own_state)["agent"]
            torch.testing.assert_close(found, params.narrow(axis, k, 1))
            assert torch.equal(own_log_std, log_std[alone])
    assert all(torch.equal(p, q) for p, q in zip(actor.parameters(), before, strict=True))


@pytest.mark.parametrize(("rnn", "space", "settings"), ARCHITECTURES)
def test_a_turn_changes_only_the_policy_of_its_agent(rnn, space, settings):
    team, actor = team_actor(space, rnn=rnn, **settings)
    inputs = inputs_of(space, rnn)
    params, log_std = actor(*inputs)["agent"]
    with torch.no_grad(), SingleAgentActor(actor, team, actor.blocks[0]).of(1) as own:
        for p in own.parameters():
            p.add_(0.1)
    changed, changed_log_std = actor(*inputs)["agent"]
    agents = (changed != params).flatten(0, -3).any(0).any(-1)
    assert agents.tolist() == [False, True, False]
    assert (changed_log_std != log_std).all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_a_turn_with_a_network_reads_and_changes_only_that_of_its_agent(rnn):
    team, actor = team_actor(rnn=rnn)
    net, (obs, first, hidden_state) = actor.net, inputs_of(VECTOR, rnn)
    single = TeamNetwork(alone(team, net.blocks[0]), {"agent": 2}, net.config, torch.Generator())
    before = net(obs, first, hidden_state)[0]["agent"]
    own_state = {name: x[:, 2:] for name, x in hidden_state.items()}
    with torch.no_grad(), SingleAgentNetwork(single, net, net.blocks[0]).of(2) as own:
        found = own({"agent": obs["agent"][..., 2:, :]}, None if first is None else first[..., 2:], own_state)
        torch.testing.assert_close(found[0]["agent"], before[..., 2:, :])
        for p in own.parameters():
            p.add_(0.1)
    changed = net(obs, first, hidden_state)[0]["agent"] != before
    assert changed.flatten(0, -3).any(0).any(-1).tolist() == [False, False, True]


@pytest.mark.parametrize(("rnn", "space", "settings"), ARCHITECTURES)
@pytest.mark.parametrize("kernels", ["off", "on"])
def test_derivatives_along_a_direction_are_limits_of_differences(rnn, space, settings, kernels):
    _, actor = team_actor(space, agents=1, rnn=rnn, **settings)
    inputs = inputs_of(space, rnn, agents=1)
    g = torch.Generator().manual_seed(2)
    direction = {name: torch.randn(p.shape, generator=g) for name, p in actor.named_parameters()}
    switch.configure(kernels)
    try:
        params, log_std = tangent(actor, inputs, direction)["agent"]
    finally:
        switch.configure("auto")
    actor.double()
    wide = tuple({k: x.double() for k, x in part.items()} if isinstance(part, dict) else part for part in inputs)

    def shifted(by):
        with torch.no_grad():
            start = [p.clone() for p in actor.parameters()]
            for p, v in zip(actor.parameters(), direction.values(), strict=True):
                p.add_(by * v.double())
            found = actor(*wide)["agent"][0]
            for p, x in zip(actor.parameters(), start, strict=True):
                p.copy_(x)
        return found

    difference = (shifted(1e-6) - shifted(-1e-6)) / 2e-6
    torch.testing.assert_close(params.double(), difference, rtol=1e-3, atol=1e-4)
    assert torch.equal(log_std, direction["log_std.agent"])

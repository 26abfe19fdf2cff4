"""Networks of a team: blocks of agents, inputs, parameter sets and hidden states, against plain products."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from coterie.core.types import Action
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.team import (
    AgentNetwork,
    CentralEncoder,
    TeamNetwork,
    join_blocks,
    join_choices,
    join_hidden_states,
    slice_agents,
    team_blocks,
)
from policy_cases import draw, make_team

SMALL = NetworkConfig((8,), "tanh")


def equal_roles() -> TeamSpec:
    """Two guards and three scouts with the same spaces."""
    spaces_ = spaces.Box(-9, 9, (4,)), spaces.Discrete(3)
    roles = (
        RoleSpec("guard", "all", ("guard_0", "guard_1"), *spaces_),
        RoleSpec("scout", "all", ("scout_0", "scout_1", "scout_2"), *spaces_),
    )
    return EnvSpec("two", roles, {}).default_teams()[0]


def plain(network: AgentNetwork, x: torch.Tensor) -> torch.Tensor:
    """Output of one layer with tanh and a head."""
    layer = network.body.layers[0]
    return torch.tanh(x @ layer.weight + layer.bias) @ network.head.weight + network.head.bias


def test_roles_have_blocks_of_their_own_or_share_one():
    team = equal_roles()
    found = [(b.name, b.start, b.stop, b.n, len(b.roles)) for b in team_blocks(team, "role")]
    assert found == [("guard", 0, 2, 2, 1), ("scout", 2, 5, 3, 1)]
    assert found == [(b.name, b.start, b.stop, b.n, len(b.roles)) for b in team_blocks(team, "none")]
    assert [(b.name, b.start, b.stop, b.n, len(b.roles)) for b in team_blocks(team, "all")] == [("guard", 0, 5, 5, 2)]
    with pytest.raises(ValueError, match="its roles differ in their spaces"):
        team_blocks(make_team("discrete"), "all")


def test_a_block_joins_and_splits_the_agents_of_its_roles():
    (block,) = team_blocks(equal_roles(), "all")
    obs = {"guard": torch.randn(6, 2, 4), "scout": torch.randn(6, 3, 4)}
    joined = torch.cat([obs["guard"], obs["scout"]], 1)
    assert block.join_obs(obs).equal(joined)
    back = block.split_by_role(joined)
    assert back["guard"].equal(obs["guard"])
    assert back["scout"].equal(obs["scout"])
    action = block.join_actions({"guard": Action(torch.zeros(6, 2, 1)), "scout": Action(torch.ones(6, 3, 1))})
    assert action.continuous is None
    assert action.discrete is not None
    assert action.discrete[:, :, 0].tolist() == [[0, 0, 1, 1, 1]] * 6
    numbers = block.join_actions({n: Action(None, torch.full((6, k, 2), k)) for n, k in (("guard", 2), ("scout", 3))})
    assert numbers.discrete is None
    assert numbers.continuous is not None
    assert numbers.continuous[0].tolist() == [[2, 2]] * 2 + [[3, 3]] * 3


def test_masks_of_a_block_are_true_for_roles_without_one():
    (block,) = team_blocks(equal_roles(), "all")
    guard, scout = torch.rand(6, 2, 3) < 0.5, torch.rand(6, 3, 3) < 0.5
    assert block.join_masks({}) is None
    for masks, expected in (
        ({"guard": guard, "scout": scout}, torch.cat([guard, scout], 1)),
        ({"guard": guard}, torch.cat([guard, torch.ones_like(scout)], 1)),
        ({"scout": scout}, torch.cat([torch.ones_like(guard), scout], 1)),
    ):
        found = block.join_masks(masks)
        assert found is not None
        assert found.equal(expected)
    single = team_blocks(equal_roles(), "role")[1]
    assert single.join_masks({"guard": guard, "scout": scout}) is scout
    assert single.join_masks({"guard": guard}) is None


@pytest.mark.parametrize("agent_id", [False, True])
@pytest.mark.parametrize("share", ["role", "none", "all"])
def test_outputs_of_a_team_are_those_of_its_networks(share, agent_id):
    """Six timesteps of three environments; inputs are the observation, two further numbers, and the one-hot id."""
    team, config = equal_roles(), replace(SMALL, share_params=share, obs_agent_id=agent_id)
    blocks = team_blocks(team, share)
    sizes = {b.name: 5 + i for i, b in enumerate(blocks)}
    net = TeamNetwork(team, sizes, config, draw(), head_gain=0.5, extra_sizes={b.name: 2 for b in blocks})
    obs = {r.name: torch.randn(6, 3, r.n, 4, generator=draw(i)) for i, r in enumerate(team.roles)}
    extra = {b.name: torch.randn(6, 3, b.n, 2, generator=draw(i + 5)) for i, b in enumerate(blocks)}
    found, hidden_state = net(obs, None, {}, extra)
    assert hidden_state == {}
    for block in blocks:
        network = net.networks[block.name].network
        ids = torch.eye(block.n).expand(6, 3, -1, -1)
        x = torch.cat([block.join_obs(obs), extra[block.name], *[ids] * agent_id], -1)
        assert found[block.name].shape == (6, 3, block.n, sizes[block.name])
        for i in range(block.n):
            own = network
            if share == "none":
                own = AgentNetwork(x.shape[-1], sizes[block.name], config, draw())
                state = own.state_dict()
                own.load_state_dict({k: v[i].view(state[k].shape) for k, v in network.state_dict().items()})
            torch.testing.assert_close(found[block.name][:, :, i], plain(own, x[:, :, i]), atol=1e-5, rtol=0)
        singular = torch.linalg.svdvals(network.head.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, 0.5))


def test_a_single_agent_needs_no_id():
    team = make_team("discrete")
    net = TeamNetwork(team, {"guard": 2, "scout": 2}, replace(SMALL, obs_agent_id=True), draw())
    assert net.networks["guard"].network.body.layers[0].weight.shape[0] == 5 + 2
    assert net.networks["scout"].network.body.layers[0].weight.shape[0] == 3


@pytest.mark.parametrize("share", ["role", "none"])
def test_hidden_states_of_agents_are_kept_apart(share):
    """Each agent's outputs and hidden state depend on its own observations, resets and hidden state only."""
    config = replace(SMALL, rnn="gru", rnn_size=7, share_params=share)
    team = equal_roles()
    net = TeamNetwork(team, {"guard": 2, "scout": 2}, config, draw())
    start = net.initial_hidden_state(3, torch.device("cpu"))
    assert start["h"].equal(torch.zeros(3, 5, 7))
    assert TeamNetwork(team, {"guard": 2, "scout": 2}, SMALL, draw()).initial_hidden_state(3, torch.device("cpu")) == {}
    obs = {r.name: torch.randn(6, 3, r.n, 4, generator=draw(i)) for i, r in enumerate(team.roles)}
    first = torch.rand(6, 3, 5, generator=draw(3)) < 0.3
    start = {"h": torch.randn(3, 5, 7, generator=draw(4))}
    found, after = net(obs, first, start)
    out = join_blocks(found, net.blocks, -2)
    assert (out.shape, after["h"].shape) == ((6, 3, 5, 2), (3, 5, 7))
    for agent in range(5):
        name, i = ("guard", agent) if agent < 2 else ("scout", agent - 2)
        network = net.networks[name].network
        if share == "none":
            own = AgentNetwork(4, 2, config, draw())
            state = own.state_dict()
            own.load_state_dict({k: v[i].reshape(state[k].shape) for k, v in network.state_dict().items()})
            network = own
        h = start["h"][:, agent : agent + 1]
        for t in range(6):
            y, state = network(obs[name][t][:, i : i + 1], first[t][:, agent : agent + 1], {"h": h})
            h = state["h"]
            torch.testing.assert_close(y[:, 0], out[t, :, agent], atol=1e-5, rtol=0)
        torch.testing.assert_close(h[:, 0], after["h"][:, agent], atol=1e-5, rtol=0)


def test_parts_of_blocks_are_sliced_and_joined():
    guard, scout = team_blocks(equal_roles(), "role")
    first, h = torch.rand(6, 3, 5) < 0.5, torch.randn(3, 5, 7)
    part, state = slice_agents(scout, first, {"h": h})
    assert part is not None
    assert part.equal(first[:, :, 2:])
    assert state["h"].equal(h[:, 2:])
    assert slice_agents(guard, None, {}) == (None, {})
    part, state = slice_agents(scout, first, {})  # of a feed-forward network
    assert part is not None
    assert part.equal(first[:, :, 2:])
    assert state == {}
    part, state = slice_agents(scout, None, {"h": h})
    assert part is None
    assert state["h"].equal(h[:, 2:])
    (every,), whole = team_blocks(equal_roles(), "all"), {"h": h}
    assert slice_agents(every, first, whole) == (first, whole)
    assert join_hidden_states([{"h": h[:, :2]}, {"h": h[:, 2:]}])["h"].equal(h)
    assert join_hidden_states([{"h": h}])["h"].equal(h)
    values = {"guard": torch.ones(6, 4, 2, 2), "scout": torch.ones(6, 4, 3, 4)}  # as many environments as choices
    joined = join_choices(values, (guard, scout), -7.0)
    assert joined.shape == (6, 4, 5, 4)
    assert joined[0, 0].tolist() == [[1, 1, -7, -7]] * 2 + [[1, 1, 1, 1]] * 3


def test_a_central_input_is_the_joint_observation_and_the_state():
    team, state = make_team("discrete"), torch.randn(6, 3, 4)
    obs = {r.name: torch.randn(6, 3, r.n, *(r.observation_space.shape or ())) for r in team.roles}
    joint = torch.cat([obs["guard"].flatten(-2), obs["scout"].flatten(-2)], -1)
    for inputs, given, expected in (
        (CentralInputs(True), None, joint),
        (CentralInputs(True, 4), state, torch.cat([joint, state], -1)),
        (CentralInputs(False, 4), state, state),
    ):
        encoder = CentralEncoder(team, inputs, draw())
        assert encoder.features == expected.shape[-1]
        assert encoder(obs, given).equal(expected)

"""State-value critics: the agents and signals of their outputs, and their inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.algos.ppo import CentralizedCritic, DecentralizedCritic
from coterie.nets.config import MESSAGE_BODIES, CentralInputs, NetworkConfig
from coterie.nets.team_view import VIEW, TeamView
from policy_cases import draw, make_team

TEAM = make_team("discrete")


def observations() -> dict[str, torch.Tensor]:
    """Five timesteps of three environments."""
    return {r.name: torch.randn(5, 3, r.n, *(r.observation_space.shape or ()), generator=draw(1)) for r in TEAM.roles}


def test_a_decentralized_critic_values_each_agents_own_observation():
    """Values of four signals; those of the guards and the scout come from networks of their own."""
    critic, obs = DecentralizedCritic(TEAM, 4, NetworkConfig((8,), "tanh"), draw()), observations()
    value, hidden_state = critic(obs, None, None, {})
    assert (value.shape, hidden_state) == ((5, 3, 3, 4), {})
    for name, agents in (("guard", slice(0, 2)), ("scout", slice(2, 3))):
        network = critic.network.networks[name].network
        x = torch.tanh(obs[name] @ network.body.layers[0].weight + network.body.layers[0].bias)
        expected = x @ network.head.weight + network.head.bias
        torch.testing.assert_close(value[:, :, agents], expected, atol=1e-5, rtol=0)
    other = obs | {"scout": obs["scout"] + 1}
    changed = (critic(other, None, None, {})[0] != value).any(-1).any(0).any(0)
    assert changed.tolist() == [False, False, True]


def test_a_decentralized_critic_may_read_a_state_that_is_the_same_for_all_agents():
    """The values are those of the observation of each agent with the state after it."""
    critic = DecentralizedCritic(TEAM, 2, NetworkConfig((8,), "tanh"), draw(), state_size=3)
    obs, state = observations(), torch.randn(5, 3, 3, generator=draw(2))
    value, _ = critic(obs, state, None, {})
    for name, agents in (("guard", slice(0, 2)), ("scout", slice(2, 3))):
        network = critic.network.networks[name].network
        x = torch.cat([obs[name], state.unsqueeze(2).expand(-1, -1, obs[name].shape[2], -1)], -1)
        x = torch.tanh(x @ network.body.layers[0].weight + network.body.layers[0].bias)
        torch.testing.assert_close(value[:, :, agents], x @ network.head.weight + network.head.bias)


@pytest.mark.parametrize("body", MESSAGE_BODIES)
def test_the_value_of_a_dead_agent_is_of_what_the_others_observe(body):
    """Of all of them, in a critic of the team. Observations of dead agents change nothing. If one guard is alone, the
    dead one reads the same features, and that it is dead.
    """
    config = NetworkConfig((8,), "tanh", body=body, joint=True)
    critic = DecentralizedCritic(replace(TEAM, agents_can_die=True), 1, config, draw())

    def values(alive: list[bool], changed: str = "") -> torch.Tensor:
        obs = {name: x + (name == changed) for name, x in observations().items()}
        view = TeamView(torch.tensor(alive).expand(5, 3, 3), None, {})
        return critic(obs | {VIEW: view}, None, None, {})[0].squeeze(-1)

    two = values([True, True, False])
    assert two.equal(values([True, True, False], "scout"))
    assert not two.isclose(values([True, True, False], "guard")).any()
    alone = values([True, False, False])
    assert not alone[..., 0].isclose(alone[..., 1]).any()


def test_a_centralized_critic_has_an_output_per_agent_and_signal():
    """The input is the joint observation, guards first, and the state."""
    config = NetworkConfig((8,), "tanh")
    critic = CentralizedCritic(team=TEAM, num_signals=4, config=config, generator=draw(), inputs=CentralInputs(True, 6))
    obs, state = observations(), torch.randn(5, 3, 6, generator=draw(2))
    value, hidden_state = critic(obs, state, None, {})
    assert (value.shape, hidden_state) == ((5, 3, 3, 4), {})
    x = torch.cat([obs["guard"].flatten(-2), obs["scout"].flatten(-2), state], -1)
    assert critic.encoder.features == x.shape[-1] == 2 * 5 + 3 + 6
    body, head = critic.network.body.layers[0], critic.network.head
    expected = torch.tanh(x @ body.weight + body.bias) @ head.weight + head.bias
    torch.testing.assert_close(value, expected.view(5, 3, 3, 4), atol=1e-5, rtol=0)


def test_a_recurrent_centralized_critic_has_one_hidden_state_per_environment():
    config = NetworkConfig((8,), "tanh", rnn="gru", rnn_size=7)
    critic = CentralizedCritic(TEAM, 2, config, draw(), inputs=CentralInputs(False, 6))
    state, first = torch.randn(5, 3, 6, generator=draw(2)), torch.zeros(5, 3, 1, dtype=torch.bool)
    value, hidden_state = critic({}, state, first, {"h": torch.zeros(3, 1, 7)})
    assert (value.shape, hidden_state["h"].shape) == ((5, 3, 3, 2), (3, 1, 7))

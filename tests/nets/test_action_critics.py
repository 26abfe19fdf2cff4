"""Critics of deterministic actors against the same network on inputs joined by hand, and the gradients of actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.nets.action_critics import (
    ActionValueNetwork,
    CentralizedActionCritic,
    DecentralizedActionCritic,
    current_actions_gradient,
    own_action_gradient,
    replayed_actions_gradient,
    select_action_gradient,
)
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.joint_actions import JointAction
from policy_cases import CPU, SMALL, draw, make_team

TEAM = make_team("discrete")  # two guards that observe 5 numbers, a scout that observes 3; four choices each
OBS, JOINT = 2 * 5 + 3, 3 * 4
KINDS = {"by output": (False, False), "one output": (False, True), "own networks": (True, False)}
EACH = pytest.mark.parametrize("kind", KINDS)


def critic_of(kind: str, signals: int = 2, rnn: Any = "none", state: int = 0, joint: bool = True) -> Any:
    own, shared = KINDS[kind]
    return CentralizedActionCritic(
        TEAM, signals, replace(SMALL, rnn=rnn, rnn_size=6), draw(), inputs=CentralInputs(joint, state),
        per_agent_network=own, shared_output=shared,
    )  # fmt: skip


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=draw(seed))


def observations(*lead: int) -> dict[str, Tensor]:
    return {"guard": numbers(*lead, 2, 5), "scout": numbers(*lead, 1, 3, seed=2)}


def value_by_hand(critic: Any, kind: str, x: Tensor, joint_action: Tensor, agent: int) -> Tensor:
    """Q_i [K] of one agent at one timestep, from the features x [D] and a joint action [J]."""
    entry = torch.cat([x, joint_action])
    if kind == "own networks":
        return critic.network.network(entry.expand(1, 3, -1), None, {})[0][0, agent]
    out = critic.network.network(entry.expand(1, 1, -1), None, {})[0][0, 0]
    return out if kind == "one output" else out[2 * agent : 2 * agent + 2]


@EACH
def test_values_are_those_of_the_joined_observations_and_actions(kind: str):
    """Two signals, five timesteps of two environments."""
    critic, obs, joint = critic_of(kind), observations(5, 2), numbers(5, 2, JOINT, seed=3)
    encoding, hidden_state = critic.encode(obs, None, None, {})
    assert encoding.shape == (5, 2, 3 if kind == "own networks" else 1, OBS)
    assert hidden_state == {}
    per_agent = numbers(5, 2, 3, JOINT, seed=4)
    same, apart = critic.q_values(encoding, joint), critic.q_values(encoding, per_agent)
    assert same.shape == apart.shape == (5, 2, 3, 2)
    for t, b, agent in ((t, b, agent) for t in range(5) for b in range(2) for agent in range(3)):
        x = torch.cat([obs["guard"][t, b].flatten(), obs["scout"][t, b, 0]])
        assert torch.equal(encoding[t, b, 0], x)
        torch.testing.assert_close(same[t, b, agent], value_by_hand(critic, kind, x, joint[t, b], agent))
        torch.testing.assert_close(apart[t, b, agent], value_by_hand(critic, kind, x, per_agent[t, b, agent], agent))
    distinct = same[0, 0, :, 0].unique()
    assert len(distinct) == (1 if kind == "one output" else 3)


@pytest.mark.parametrize(("joint", "state", "features"), [(True, 4, OBS + 4), (False, 4, 4)])
def test_the_state_follows_the_observations(joint: bool, state: int, features: int):
    critic, obs = critic_of("by output", state=state, joint=joint), observations(2)
    encoding, _ = critic.encode(obs, torch.arange(8.0).view(2, 4), None, {})
    assert encoding.shape == (2, 1, features)
    assert encoding[1, 0, -4:].tolist() == [4, 5, 6, 7]
    assert critic.q_values(encoding, numbers(2, JOINT)).shape == (2, 3, 2)


@EACH
def test_a_recurrent_critic_reads_observations_step_by_step(kind: str):
    """Values of a sequence are those of its steps, and a reset forgets."""
    critic, obs = critic_of(kind, rnn="gru"), observations(4, 2)
    agents = 3 if kind == "own networks" else 1
    first = torch.zeros(4, 2, 1, dtype=torch.bool)
    start = {"h": numbers(2, agents, 6, seed=5)}
    whole, last = critic.encode(obs, None, first, start)
    assert whole.shape == (4, 2, agents, 6)
    hidden_state, steps = start, []
    for t in range(4):
        part, hidden_state = critic.encode({k: x[t : t + 1] for k, x in obs.items()}, None, first[:1], hidden_state)
        steps.append(part)
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(hidden_state["h"], last["h"])
    reset, _ = critic.encode(obs, None, ~first, start)
    fresh, _ = critic.encode(obs, None, ~first, {"h": torch.zeros_like(start["h"])})
    assert torch.equal(reset, fresh)
    assert not torch.allclose(reset[0], whole[0])
    assert critic.q_values(whole, numbers(4, 2, JOINT)).shape == (4, 2, 3, 2)


@pytest.mark.parametrize("sets", [None, 3])
def test_an_action_value_network_joins_encodings_and_actions(sets: int | None):
    network = ActionValueNetwork(5, 4, 2, SMALL, generator=draw(), sets=sets)
    obs, action = numbers(7, 3, 5), numbers(7, 3, 4, seed=2)
    assert network.history is None
    assert network.encode(obs, None, {}) == (obs, {})
    found = network(obs, action)
    assert found.shape == (7, 3, 2)
    torch.testing.assert_close(found, network.network(torch.cat([obs, action], -1), None, {})[0])
    recurrent = ActionValueNetwork(5, 4, 2, NetworkConfig((8,), rnn="lstm", rnn_size=6), generator=draw(), sets=sets)
    features, _ = recurrent.encode(obs, torch.ones(7, 3, dtype=torch.bool), {k: numbers(7, 3, 6) for k in "hc"})
    assert features.shape == (7, 3, 6)
    assert recurrent.network.rnn is None
    assert recurrent(features, action).shape == (7, 3, 2)


# ----------------------------------------------------------------------------------------------- gradients of actions


def gradient_by_hand(critic: Any, features: Tensor, taken: Tensor, now: Tensor, valid: Tensor, kind: str) -> Any:
    """Gradient [T, S, J] of each agent's Q in its own part, with the others' from `taken`; and the sum of Q."""
    expected, total = torch.zeros_like(now), 0.0
    for t, s, agent in valid.nonzero().tolist():
        own = slice(4 * agent, 4 * agent + 4)
        joint = taken[t, s].clone()
        joint[own] = now[t, s, own]
        joint.requires_grad_()
        q = value_by_hand(critic, kind, features[t, s, 0], joint, agent)[0]
        expected[t, s, own] = torch.autograd.grad(q, joint)[0][own]
        total += q.item()
    return expected, total


@EACH
@pytest.mark.parametrize("others", ["replay", "current"])
def test_gradients_of_a_centralized_critic_are_those_of_each_agents_own_action(kind: str, others: Any):
    critic, joint = critic_of(kind), JointAction(TEAM, CPU)
    features, _ = critic.encode(observations(3, 2), None, None, {})
    taken, now = numbers(3, 2, JOINT, seed=3), numbers(3, 2, JOINT, seed=4)
    valid = torch.tensor([[[1, 1, 0], [1, 0, 1]], [[0, 0, 0], [1, 1, 1]], [[0, 1, 1], [0, 0, 1]]]).bool()
    with_others = taken if others == "replay" else now
    expected, total = gradient_by_hand(critic, features.detach(), with_others, now, valid, kind)
    gradient = select_action_gradient(True, others)
    assert gradient is (replayed_actions_gradient if others == "replay" else current_actions_gradient)
    found, q = gradient(critic, features, now.clone(), taken, valid, joint=joint)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert q.item() == pytest.approx(total, rel=1e-4)
    assert not q.requires_grad
    assert not found.requires_grad


# --------------------------------------------------------------------------------------------- decentralized critics


@pytest.mark.parametrize(
    ("share", "agent_id", "state_size"), [("role", True, 0), ("none", False, 2), ("none", True, 0), ("all", True, 2)]
)
def test_an_agents_value_depends_on_its_own_observation_and_action(share: Any, agent_id: bool, state_size: int):
    """A state follows the observation. With ids, one-hot within the block, the values of shared networks differ between
    equal agents.
    """
    team = TEAM
    if share == "all":
        scout = replace(team.roles[1], observation_space=team.roles[0].observation_space)
        team = replace(team, roles=(team.roles[0], scout))
    config = replace(SMALL, share_params=share, obs_agent_id=agent_id)
    critic = DecentralizedActionCritic(team, 2, config, draw(), state_size=state_size)
    state = numbers(4, state_size, seed=9)
    obs = {
        role.name: numbers(4, role.n, *(role.observation_space.shape or ()), seed=i)
        for i, role in enumerate(team.roles)
    }
    action = {"guard": numbers(4, 2, 4, seed=5), "scout": numbers(4, 1, 4, seed=6)}
    encoding, hidden_state = critic.encode(obs, state if state_size else None, None, {})
    assert hidden_state == {}
    found = critic.q_values(encoding, action)
    assert found.shape == (4, 3, 2)
    blocks = {"guard": (0, 3)} if share == "all" else {"guard": (0, 2), "scout": (2, 3)}
    assert set(encoding) == set(blocks)
    for name, (start, stop) in blocks.items():
        seen = torch.cat(list(obs.values()), 1) if share == "all" else obs[name]
        acted = torch.cat(list(action.values()), 1) if share == "all" else action[name]
        ids = torch.eye(stop - start).expand(4, -1, -1)[..., : (stop - start) * (agent_id and stop - start > 1)]
        x = torch.cat([seen, state.unsqueeze(1).expand(-1, stop - start, -1), ids], -1)
        assert torch.equal(encoding[name], x)
        expected = critic.networks[name].network(torch.cat([x, acted], -1), None, {})[0]
        torch.testing.assert_close(found[:, start:stop], expected)
        weight = next(iter(critic.networks[name].parameters()))
        assert weight.ndim == (3 if share == "none" else 2)


def test_the_hidden_states_of_blocks_are_joined_by_agent():
    critic = DecentralizedActionCritic(TEAM, 1, replace(SMALL, rnn="gru", rnn_size=6), draw())
    obs, start = observations(3, 2), {"h": numbers(2, 3, 6, seed=7)}
    first = torch.zeros(3, 2, 3, dtype=torch.bool)
    first[1, :, 2] = True  # the scout
    encoding, hidden_state = critic.encode(obs, None, first, start)
    assert hidden_state["h"].shape == (2, 3, 6)
    for name, agents in (("guard", slice(0, 2)), ("scout", slice(2, 3))):
        part = {"h": start["h"][:, agents]}
        expected, after = critic.networks[name].encode(obs[name], first[..., agents], part)
        torch.testing.assert_close(encoding[name], expected)
        torch.testing.assert_close(hidden_state["h"][:, agents], after["h"])


def test_the_gradient_of_a_decentralized_critic_is_that_of_the_sum_over_valid_agents():
    critic, joint = DecentralizedActionCritic(TEAM, 1, SMALL, draw()), JointAction(TEAM, CPU)
    encoding, _ = critic.encode(observations(2, 3), None, None, {})
    action, valid = numbers(2, 3, JOINT), torch.rand(2, 3, 3, generator=draw(3)) > 0.4
    assert select_action_gradient(False, "replay") is select_action_gradient(False, "current") is own_action_gradient
    found, q = own_action_gradient(critic, encoding, action.clone(), action, valid, joint=joint)
    expected, total = torch.zeros_like(action), 0.0
    for t, s, agent in valid.nonzero().tolist():
        own, leaf = slice(4 * agent, 4 * agent + 4), action.clone().requires_grad_()
        value = critic.q_values(encoding, joint.split(leaf))[t, s, agent, 0]
        expected[t, s, own] = torch.autograd.grad(value, leaf)[0][t, s, own]
        total += value.item()
    torch.testing.assert_close(found, expected)
    assert q.item() == pytest.approx(total, rel=1e-5)
    assert not q.requires_grad

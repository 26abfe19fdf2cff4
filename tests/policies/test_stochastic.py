"""StochasticPolicy: shapes, masks, sampling, and consistent log-probabilities."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coterie.core.types import Action
from coterie.functional.policy_gradient import log_prob_and_entropy
from coterie.nets.stochastic_actor import StochasticActor
from coterie.policies.stochastic import StochasticPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep

MASK = (True, False, True, True)


def policy(kind, **config):
    return StochasticPolicy(make_team(kind), replace(SMALL, **config), draw(), CPU, init_std=0.5)


@pytest.mark.parametrize(("kind", "mode"), [("discrete", "greedy"), ("continuous", "sample"), ("hybrid", "explore")])
def test_actions_have_the_shapes_of_the_action_space(kind, mode):
    actor = policy(kind)
    (noise,) = actor.draw_noise(1, 6, draw(2))
    actions, hidden_state, extras = actor.act(make_timestep(actor.team, 6), {}, noise, mode)
    for role in actor.team.roles:
        discrete, continuous = actions[role.name].discrete, actions[role.name].continuous
        assert (discrete is None) == (kind == "continuous")
        assert (continuous is None) == (kind == "discrete")
        assert discrete is None or discrete.shape == (6, role.n, 1)
        assert continuous is None or continuous.shape == (6, role.n, 2)
    assert hidden_state == {}
    assert extras["log_prob"].shape == (6, 3)


def test_greedy_actions_are_the_most_likely_ones_and_need_no_noise():
    actor = policy("hybrid")
    timestep = make_timestep(actor.team, 5, MASK)
    actions, _, _ = actor.act(timestep, {}, None, "greedy")
    distribution = actor.action_distribution(timestep, {}, "greedy")
    for name, action in actions.items():
        assert torch.equal(action.discrete, distribution[name].probability.argmax(-1, keepdim=True))
        assert torch.equal(action.continuous, distribution[name].mean)


@pytest.mark.parametrize("kind", ["discrete", "continuous", "hybrid"])
def test_log_prob_while_acting_equals_evaluated_log_prob(kind):
    actor = policy(kind)
    timestep = make_timestep(actor.team, 7)
    actions, _, extras = actor.act(timestep, {}, actor.draw_noise(1, 7, draw(2))[0], "sample")
    log_prob, entropy = actor.actor.evaluate(timestep.obs, timestep.action_mask, actions, first=None, hidden_state={})
    torch.testing.assert_close(log_prob, extras["log_prob"])
    assert entropy.shape == (7, 3)


def test_log_prob_and_entropy_with_zero_weights_have_literal_values():
    actor = policy("hybrid")
    with torch.no_grad():
        for parameter in actor.net.parameters():
            parameter.zero_()
    actions, _, extras = actor.act(make_timestep(actor.team, 2), {}, None, "greedy")
    density = -2 * (math.log(0.5) + 0.5 * math.log(2 * math.pi))  # two numbers at the mean, std 0.5
    torch.testing.assert_close(extras["log_prob"], torch.full((2, 3), math.log(1 / 4) + density))
    timestep = make_timestep(actor.team, 2)
    _, entropy = actor.actor.evaluate(timestep.obs, {}, actions, first=None, hidden_state={})
    torch.testing.assert_close(entropy, torch.full((2, 3), math.log(4) - density + 1))


def test_a_normalizer_is_part_of_the_state_only_if_it_is_enabled():
    plain, normalized = policy("discrete"), policy("discrete", normalize_obs=True)
    assert plain.state_dict()["moments"] == {}
    timestep = make_timestep(normalized.team, 50)
    normalized.obs_normalizer.update(timestep.obs, timestep.alive)
    read = normalized.obs_normalizer(timestep.obs)["guard"]
    torch.testing.assert_close(read.flatten(0, 1).mean(0), torch.zeros(5), atol=1e-4, rtol=0)
    plain.obs_normalizer.update(timestep.obs, timestep.alive)
    assert plain.obs_normalizer(timestep.obs)["guard"] is timestep.obs["guard"]


def actor(kind: str, state_dependent_std: bool = False, **config) -> StochasticActor:
    settings = replace(SMALL, **config)
    return StochasticActor(
        make_team(kind), settings, draw(), state_dependent_std=state_dependent_std, init_std=0.25
    )  # fmt: skip


@pytest.mark.parametrize(("share", "agents"), [("role", (1, 1)), ("none", (2, 1))])
def test_a_learned_standard_deviation_is_a_parameter_per_number_and_parameter_set(share, agents):
    net = actor("hybrid", share_params=share)
    assert [tuple(p.shape) for p in net.log_std.values()] == [(n, 2) for n in agents]
    assert all(p.tolist() == [pytest.approx([math.log(0.25)] * 2)] * len(p) for p in net.log_std.values())
    assert not actor("discrete").log_std
    assert not actor("hybrid", state_dependent_std=True).log_std
    guard = net.blocks[0]
    with torch.no_grad():
        net.log_std["guard"].copy_(torch.tensor([[-9.0, 9.0]]))
    output = torch.randn(5, 3, 2, 6)
    params, log_std = net.params(guard, output)
    assert params is output
    assert log_std is not None
    assert log_std.tolist() == [[-5, 2]] * agents[0]


def test_a_state_dependent_standard_deviation_is_an_output_around_the_initial_one():
    net = actor("hybrid", state_dependent_std=True)
    output = torch.randn(5, 3, 2, 8)
    output[0, 0, 0, 6:] = torch.tensor([-20.0, 20.0])
    params, log_std = net.params(net.blocks[0], output)
    assert params.equal(output[..., :6])
    assert log_std is not None
    assert log_std[0, 0, 0].tolist() == [-5, 2]
    torch.testing.assert_close(log_std[1:], (output[1:, ..., 6:] + math.log(0.25)).clamp(-5, 2))


@pytest.mark.parametrize(
    ("kind", "dependent", "size"),
    [("discrete", False, 4), ("hybrid", False, 6), ("hybrid", True, 8), ("continuous", True, 4)],
)
def test_the_head_is_small_and_has_an_output_per_parameter(kind, dependent, size):
    net = actor(kind, dependent)
    for block in net.blocks:
        weight = net.net.networks[block.name].network.head.weight
        assert weight.shape == (8, size)
        gain = torch.linalg.svdvals(weight)
        torch.testing.assert_close(gain, torch.full_like(gain, 0.01))


def test_last_actions_are_further_inputs():
    """Observations of 5 and 3 numbers, and actions of 4 choices and 2 numbers."""
    net = actor("hybrid", obs_last_action=True)
    widths = [net.net.networks[b.name].network.body.layers[0].weight.shape[0] for b in net.blocks]
    assert widths == [5 + 6, 3 + 6]


@pytest.mark.parametrize(("kind", "dependent"), [("discrete", False), ("continuous", True), ("hybrid", False)])
def test_log_probs_and_entropies_are_those_of_each_agents_distribution(kind, dependent):
    """Five timesteps of three environments; guards have masks."""
    net = actor(kind, dependent)
    torch.nn.init.normal_(net.net.networks["guard"].network.head.weight, generator=draw(9))
    obs = {"guard": torch.randn(5, 3, 2, 5, generator=draw(1)), "scout": torch.randn(5, 3, 1, 3, generator=draw(2))}
    mask = {"guard": torch.tensor([True, False, True, True]).expand(5, 3, 2, 4)} if kind != "continuous" else {}
    choice = None if kind == "continuous" else torch.tensor([0, 2, 3])
    action = {}
    for name, n in (("guard", 2), ("scout", 1)):
        discrete = None if choice is None else choice[torch.randint(3, (5, 3, n, 1), generator=draw(n))]
        number = None if kind == "discrete" else torch.randn(5, 3, n, 2, generator=draw(n + 3))
        action[name] = Action(discrete, number)
    log_prob, entropy = net.evaluate(obs, mask, action, None, {})
    assert log_prob.shape == entropy.shape == (5, 3, 3)
    outputs, _ = net.net(obs, None, {})
    for block, agents in zip(net.blocks, (slice(0, 2), slice(2, 3)), strict=True):
        params, log_std = net.params(block, outputs[block.name])
        expected = log_prob_and_entropy(
            block.action_spec, params, action[block.name], log_std=log_std, mask=mask.get(block.name)
        )
        torch.testing.assert_close((log_prob[..., agents], entropy[..., agents]), expected)

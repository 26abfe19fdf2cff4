"""StochasticPolicy: shapes, masks, sampling, and consistent log-probabilities."""

import math
from dataclasses import replace

import pytest
import torch

from coterie.policies.stochastic import StochasticPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep

MASK = (True, False, True, True)


def policy(kind, **config):
    return StochasticPolicy(make_team(kind), replace(SMALL, **config), draw(), CPU, init_std=0.5)


@pytest.mark.parametrize("kind", ["discrete", "continuous", "hybrid"])
@pytest.mark.parametrize("mode", ["greedy", "sample", "explore"])
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


def test_masked_choices_are_never_taken():
    actor = policy("discrete")
    timestep = make_timestep(actor.team, 2000, MASK)
    for mode in ("greedy", "sample"):
        actions, _, _ = actor.act(timestep, {}, actor.draw_noise(1, 2000, draw(2))[0], mode)
        assert 1 not in actions["guard"].discrete
    free, _, _ = actor.act(make_timestep(actor.team, 2000), {}, actor.draw_noise(1, 2000, draw(2))[0], "sample")
    assert 1 in free["guard"].discrete, "negative control: without a mask it is taken"


def test_greedy_actions_are_the_most_likely_ones_and_need_no_noise():
    actor = policy("hybrid")
    timestep = make_timestep(actor.team, 5, MASK)
    actions, _, _ = actor.act(timestep, {}, None, "greedy")
    distribution = actor.action_distribution(timestep, {}, "greedy")
    for name, action in actions.items():
        assert torch.equal(action.discrete, distribution[name].probability.argmax(-1, keepdim=True))
        assert torch.equal(action.continuous, distribution[name].mean)


def test_sample_frequencies_match_the_reported_distribution():
    actor = policy("hybrid")
    timestep = make_timestep(actor.team, 1, MASK)
    many = replace(timestep, obs={name: x.expand(20_000, -1, -1) for name, x in timestep.obs.items()})
    many = replace(many, action_mask={name: x.expand(20_000, -1, -1) for name, x in timestep.action_mask.items()})
    actions, _, _ = actor.act(many, {}, actor.draw_noise(1, 20_000, draw(2))[0], "sample")
    reported = actor.action_distribution(timestep, {}, "sample")["guard"]
    frequency = torch.nn.functional.one_hot(actions["guard"].discrete[..., 0], 4).float().mean(0)
    torch.testing.assert_close(frequency, reported.probability[0], atol=0.02, rtol=0)
    torch.testing.assert_close(actions["guard"].continuous.mean(0), reported.mean[0], atol=0.02, rtol=0)
    torch.testing.assert_close(actions["guard"].continuous.std(0), reported.std[0], atol=0.02, rtol=0)


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
    assert plain.obs_normalizer is None
    assert plain.state_dict()["moments"] == {}
    timestep = make_timestep(normalized.team, 50)
    normalized.obs_normalizer.update(timestep.obs, timestep.alive)
    read = normalized.normalize(timestep.obs)["guard"]
    torch.testing.assert_close(read.flatten(0, 1).mean(0), torch.zeros(5), atol=1e-4, rtol=0)
    assert plain.normalize(timestep.obs) is timestep.obs

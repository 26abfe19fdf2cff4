"""SquashedPolicy: bounds, masks, sampled log-densities, uniform exploration."""

import math

import pytest
import torch

from coterie.algos.sac_networks import Temperature
from coterie.nets.squashed_actions import draw_block_noise, sample_actions
from coterie.policies.squashed import SquashedPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep

MASK = (True, False, True, True)


def policy(kind="hybrid"):
    return SquashedPolicy(make_team(kind), SMALL, draw(), CPU)


@pytest.mark.parametrize("mode", ["greedy", "sample", "explore"])
@pytest.mark.parametrize("uniform", [False, True])
def test_actions_respect_bounds_and_masks(mode, uniform):
    actor = policy()
    actor.uniform = uniform
    timestep = make_timestep(actor.team, 2000, MASK)
    action = actor.act(timestep, {}, actor.draw_noise(1, 2000, draw(2))[0], mode)[0]["guard"]
    assert action.continuous.abs().max() <= 1
    assert 1 not in action.discrete


def test_greedy_actions_are_the_reported_ones_and_need_no_noise():
    actor = policy()
    timestep = make_timestep(actor.team, 4, MASK)
    actions, _, _ = actor.act(timestep, {}, None, "greedy")
    reported = actor.action_distribution(timestep, {}, "greedy")["guard"]
    assert torch.equal(actions["guard"].continuous, reported.mean)
    assert torch.equal(actions["guard"].discrete, reported.probability.argmax(-1, keepdim=True))


def test_samples_of_learning_are_those_of_acting_with_the_same_noise():
    actor = policy()
    timestep = make_timestep(actor.team, 6, MASK)
    noise = draw_block_noise(actor.blocks, (6,), draw(2), actor.device)
    acted, _, _ = actor.act(timestep, {}, noise, "sample")
    outputs, _ = actor.net(timestep.obs, None, {})
    sample = sample_actions(actor.blocks, outputs, timestep.action_mask, noise)
    assert torch.equal(sample.action["guard"].discrete, acted["guard"].discrete)
    torch.testing.assert_close(sample.action["guard"].continuous, acted["guard"].continuous)
    torch.testing.assert_close(sample.prob.sum(-1), torch.ones(6, 3))
    assert sample.max_entropy[0].tolist() == pytest.approx([math.log(3), math.log(3), math.log(4)])


def test_log_density_with_zero_weights_has_its_literal_value():
    """Standard normal noise of 0.5: log N(0.5) - log(1 - tanh(0.5)^2) per number."""
    actor = policy("continuous")
    with torch.no_grad():
        for parameter in actor.net.parameters():
            parameter.zero_()
    noise = {
        name: torch.full_like(x, 0.5) for name, x in draw_block_noise(actor.blocks, (2,), draw(), actor.device).items()
    }
    outputs, _ = actor.net(make_timestep(actor.team, 2).obs, None, {})
    sample = sample_actions(actor.blocks, outputs, {}, noise)
    per_number = -0.125 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(0.5) ** 2)
    torch.testing.assert_close(sample.entropy, torch.full((2, 3), -2 * per_number))
    torch.testing.assert_close(sample.action["guard"].continuous, torch.full((2, 2, 2), math.tanh(0.5)))


def test_the_entropy_of_choices_is_exact():
    """Zero weights are uniform choices: log 3 for the two agents with a mask, log 4 for the third."""
    actor = policy("discrete")
    with torch.no_grad():
        for parameter in actor.net.parameters():
            parameter.zero_()
    timestep = make_timestep(actor.team, 6, MASK)
    outputs, _ = actor.net(timestep.obs, None, {})
    sample = sample_actions(
        actor.blocks, outputs, timestep.action_mask, draw_block_noise(actor.blocks, (6,), draw(), actor.device)
    )
    assert sample.entropy[0].tolist() == pytest.approx([math.log(3), math.log(3), math.log(4)])


def test_temperature_is_one_number_per_block_given_to_its_agents():
    temperature = Temperature(policy().blocks, 0.2, CPU)
    with torch.no_grad():
        temperature.log[1] = 1.0
    assert temperature.log[temperature.block_of].tolist() == pytest.approx([math.log(0.2), math.log(0.2), 1.0])

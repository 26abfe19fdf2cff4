"""SquashedPolicy: bounds, masks, sampled log-densities, uniform exploration."""

import math

import pytest
import torch

from algo_worlds import Everything
from coterie.algos.sac import Temperature
from coterie.nets.squashed_actions import draw_block_noise, sample_actions
from coterie.policies.squashed import SquashedPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep

MASK = (True, False, True, True)


def policy(kind="hybrid"):
    return SquashedPolicy(make_team(kind), SMALL, draw(), CPU)


@pytest.mark.parametrize(("mode", "uniform"), [("greedy", True), ("sample", False), ("explore", True)])
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


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "continuous", "hybrid"])
def test_agents_with_different_actions_have_entropies_of_their_own_by_loops(kind):
    """Two guards with choices, numbers, or both, and a scout with four choices; fewer choices are padded."""
    (team,) = Everything(kind).spec.default_teams()
    actor = SquashedPolicy(team, SMALL, draw(), CPU)
    timestep, noise = make_timestep(team, 5), draw_block_noise(actor.blocks, (5,), draw(2), CPU)
    outputs, _ = actor.net(timestep.obs, None, {})
    outputs = {name: x.detach() + torch.randn(x.shape, generator=draw(3)) for name, x in outputs.items()}
    sample = sample_actions(actor.blocks, outputs, {}, noise)
    assert sample.prob.shape == (5, 3, 5 if kind == "multi_discrete" else 4)
    places = [(block, b, k) for block in actor.blocks for b in range(5) for k in range(block.n)]
    for block, b, k in places:
        spec, i, params, start = block.action_spec, block.start + k, outputs[block.name][b, k], 0
        entropy, uniform, probs = 0.0, 0.0, []
        for width in spec.choices:
            probs += (own := params[start : start + width].softmax(-1).tolist())
            entropy -= sum(p * math.log(p) for p in own)
            uniform += math.log(width)
            start += width
        for c in range(spec.continuous):
            mean, raw, drawn = (
                params[start + c],
                params[start + spec.continuous + c],
                noise[block.name][b, k, start + c],
            )
            std = math.exp(-1.5 + 3.5 * math.tanh(raw + math.atanh(1.5 / 3.5)))
            u = (mean + std * drawn).item()
            density = -0.5 * drawn.item() ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)
            entropy -= density - math.log(1 - math.tanh(u) ** 2)
            taken = sample.action["guard"].continuous[b, k, c].item()
            assert taken == pytest.approx(math.tanh(u), abs=1e-5)
        padded = (probs or [1.0]) + [0.0] * (sample.prob.shape[-1] - len(probs or [1.0]))
        assert sample.prob[b, i].tolist() == pytest.approx(padded, abs=1e-6)
        assert sample.entropy[b, i].item() == pytest.approx(entropy, abs=1e-4)
        assert sample.max_entropy[b, i].item() == pytest.approx(uniform, abs=1e-6)


def test_consecutive_agents_share_a_temperature():
    temperature = Temperature([2, 1], 0.2, CPU)
    with torch.no_grad():
        temperature.log[1] = 1.0
    assert temperature.log[temperature.index_of].tolist() == pytest.approx([math.log(0.2), math.log(0.2), 1.0])

"""DeterministicPolicy: greedy actions, exploration noise, relaxed actions."""

from dataclasses import replace

import pytest
import torch

from coterie.nets.relaxed_actions import draw_block_noise, relaxed_actions
from coterie.policies.deterministic import DeterministicPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep

MASK = (True, False, True, True)


def policy(kind="continuous", **arguments):
    return DeterministicPolicy(make_team(kind), SMALL, draw(), CPU, **arguments)


def test_greedy_actions_are_the_reported_mean():
    actor = policy("hybrid")
    timestep = make_timestep(actor.team, 4, MASK)
    actions, _, _ = actor.act(timestep, {}, None, "greedy")
    reported = actor.action_distribution(timestep, {}, "greedy")["guard"]
    assert torch.equal(actions["guard"].continuous, reported.mean)
    assert torch.equal(actions["guard"].discrete, reported.probability.argmax(-1, keepdim=True))
    assert 1 not in actions["guard"].discrete


def test_exploration_adds_scaled_noise_and_clips():
    actor = policy()
    timestep = make_timestep(actor.team, 200)
    (noise,) = actor.draw_noise(1, 200, draw(2))
    mean = actor.act(timestep, {}, None, "greedy")[0]["guard"].continuous
    for actor.noise_std in (0.0, 0.1, 2.0):
        found = actor.act(timestep, {}, noise, "explore")[0]["guard"].continuous
        torch.testing.assert_close(found, (mean + actor.noise_std * noise["guard"]).clamp(-1, 1))
    assert torch.equal(actor.act(timestep, {}, noise, "sample")[0]["guard"].continuous, mean)


def test_uniform_exploration_covers_the_action_space():
    actor = policy("hybrid")
    actor.uniform = True
    timestep = make_timestep(actor.team, 20_000, MASK)
    action = actor.act(timestep, {}, actor.draw_noise(1, 20_000, draw(2))[0], "explore")[0]["guard"]
    frequency = torch.nn.functional.one_hot(action.discrete[..., 0], 4).float().mean(0)
    torch.testing.assert_close(frequency, torch.tensor([[1 / 3, 0, 1 / 3, 1 / 3]] * 2), atol=0.02, rtol=0)
    assert action.continuous.var().item() == pytest.approx(1 / 3, abs=0.01)  # of a uniform number in [-1, 1]


def test_ornstein_uhlenbeck_noise_is_part_of_the_hidden_state_and_reset():
    actor = policy(noise="ornstein_uhlenbeck", theta=0.5)
    actor.noise_std = 0.1
    timestep, hidden_state = make_timestep(actor.team, 3), actor.initial_hidden_state(3)
    first, second = actor.draw_noise(2, 3, draw(2))
    _, hidden_state, _ = actor.act(timestep, hidden_state, first, "explore")
    _, continued, _ = actor.act(timestep, hidden_state, second, "explore")
    renewed = replace(timestep, first=torch.ones_like(timestep.first))
    _, reset, _ = actor.act(renewed, hidden_state, second, "explore")
    (name,) = continued
    torch.testing.assert_close(continued[name][:, :2], 0.5 * first["guard"] + second["guard"])
    torch.testing.assert_close(reset[name][:, :2], second["guard"])
    assert actor.network_state(continued) == {}


def test_relaxed_actions_are_one_hot_with_a_gradient():
    actor = policy("hybrid")
    timestep = make_timestep(actor.team, 5, MASK)
    outputs, _ = actor.net(timestep.obs, None, {})
    noise = draw_block_noise(actor.blocks, (5,), draw(2), actor.device)
    vectors = relaxed_actions(actor.blocks, outputs, timestep.action_mask, noise, temperature=1.0)
    assert vectors["guard"].shape == (5, 2, 6)
    torch.testing.assert_close(vectors["guard"][..., :4].sum(-1), torch.ones(5, 2))
    assert (vectors["guard"][..., 1] == 0).all()
    vectors["guard"][..., 0].sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in actor.net.parameters())

"""EpsilonGreedyPolicy: greedy and random choices, masks, last actions."""

from dataclasses import replace

import pytest
import torch

from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep

MASK = (True, False, True, True)


def policy(**config):
    return EpsilonGreedyPolicy(make_team("discrete"), replace(SMALL, **config), draw(), CPU)


def test_greedy_choices_have_the_highest_available_q_and_need_no_noise():
    actor = policy()
    timestep = make_timestep(actor.team, 6, MASK)
    actions, _, _ = actor.act(timestep, {}, None, "greedy")
    q = actor.action_distribution(timestep, {}, "greedy")["guard"].q
    expected = q.masked_fill(~timestep.action_mask["guard"], -torch.inf).argmax(-1, keepdim=True)
    assert torch.equal(actions["guard"].discrete, expected)
    assert actions["scout"].discrete.shape == (6, 1, 1)


def test_the_output_gain_scales_the_initial_q():
    timestep = make_timestep(make_team("discrete"), 6, MASK)
    small = EpsilonGreedyPolicy(make_team("discrete"), SMALL, draw(), CPU, output_gain=0.01)
    q, usual = (one.action_distribution(timestep, {}, "greedy")["guard"].q for one in (small, policy()))
    assert usual.abs().max() > 0.1
    torch.testing.assert_close(q, 0.01 * usual)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_choice_frequencies_match_epsilon_greedy(epsilon):
    actor = policy()
    actor.epsilon = epsilon
    timestep = make_timestep(actor.team, 1, MASK)
    many = replace(
        timestep,
        obs={name: x.expand(20_000, -1, -1) for name, x in timestep.obs.items()},
        action_mask={"guard": timestep.action_mask["guard"].expand(20_000, -1, -1)},
    )
    actions, _, _ = actor.act(many, {}, actor.draw_noise(1, 20_000, draw(2))[0], "explore")
    frequency = torch.nn.functional.one_hot(actions["guard"].discrete[..., 0], 4).float().mean(0)
    reported = actor.action_distribution(timestep, {}, "explore")["guard"].probability[0]
    torch.testing.assert_close(frequency, reported, atol=0.02, rtol=0)
    assert frequency[:, 1].eq(0).all(), "a masked choice is never taken"
    assert reported.amax(-1).tolist() == pytest.approx([1 - epsilon + epsilon / 3] * 2)


def test_the_hidden_state_holds_last_actions_if_the_network_reads_them():
    actor = policy(obs_last_action=True)
    actions, hidden_state, _ = actor.act(make_timestep(actor.team, 3), actor.initial_hidden_state(3), None, "greedy")
    assert torch.equal(hidden_state["last"][:, :2].argmax(-1, keepdim=True), actions["guard"].discrete)
    assert torch.equal(hidden_state["last"], actor.encode_last(actions))


def test_a_restored_policy_has_equal_action_probabilities():
    actor, other = policy(), policy()
    actor.epsilon = 0.25
    with torch.no_grad():
        for parameter in actor.net.parameters():
            parameter.add_(0.1)
    other.load_state_dict(actor.state_dict())
    timestep = make_timestep(actor.team, 4)
    expected, found = (p.action_distribution(timestep, {}, "explore")["scout"].probability for p in (actor, other))
    assert torch.equal(found, expected)

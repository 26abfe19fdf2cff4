"""EpsilonSoftPolicy: mixing with uniform choices, and last actions in the hidden state."""

import math
from dataclasses import replace

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.policy_gradient import choice_log_probs, log_prob_and_entropy
from coterie.policies.epsilon_soft import EpsilonSoftPolicy, mix_with_uniform
from policy_cases import CPU, SMALL, draw, make_team, make_timestep


def policy(stores_last_action=False, **config):
    team = make_team("discrete")
    return EpsilonSoftPolicy(team, replace(SMALL, **config), draw(), CPU, stores_last_action=stores_last_action)


def test_explored_probabilities_are_mixed_with_uniform_ones():
    actor = policy()
    timestep = make_timestep(actor.team, 3, (True, True, False, True))
    actor.epsilon = 0.3
    plain = actor.action_distribution(timestep, {}, "sample")["guard"].probability
    mixed = actor.action_distribution(timestep, {}, "explore")["guard"].probability
    torch.testing.assert_close(mixed, 0.7 * plain + 0.3 / 3 * torch.tensor([1.0, 1.0, 0.0, 1.0]))


def test_log_probs_of_choices_are_those_of_exploration():
    actor = policy()
    actor.epsilon = 0.2
    timestep = make_timestep(actor.team, 3)
    log_probs = actor.log_probs(timestep.obs, timestep.action_mask, first=None, hidden_state={}, last=None)
    assert log_probs.shape == (3, 3, 4)
    explored = actor.action_distribution(timestep, {}, "explore")
    torch.testing.assert_close(log_probs[:, :2].exp(), explored["guard"].probability)
    torch.testing.assert_close(log_probs[:, 2:].exp(), explored["scout"].probability)


def test_the_hidden_state_stores_last_actions_only_on_request():
    actor = policy(stores_last_action=True)
    start = actor.initial_hidden_state(3)
    assert torch.equal(start["last"], torch.zeros(3, 3, 4))
    actions, hidden_state, _ = actor.act(make_timestep(actor.team, 3), start, None, "greedy")
    assert torch.equal(hidden_state["last"][:, :2].argmax(-1, keepdim=True), actions["guard"].discrete)
    assert policy().initial_hidden_state(3) == {}


def test_the_network_reads_last_actions_if_configured():
    actor = policy(obs_last_action=True)
    timestep = make_timestep(actor.team, 3)
    zero, one = torch.zeros(3, 3, 4), torch.nn.functional.one_hot(torch.zeros(3, 3, dtype=torch.long), 4).float()
    before = actor.action_distribution(timestep, {"last": zero}, "sample")["guard"].probability
    after = actor.action_distribution(timestep, {"last": one}, "sample")["guard"].probability
    assert not torch.equal(before, after)
    renewed = replace(timestep, first=torch.ones_like(timestep.first))
    assert torch.equal(actor.action_distribution(renewed, {"last": one}, "sample")["guard"].probability, before)


def test_policy_is_mixed_with_uniform_choices_among_those_available():
    """0.7 pi + 0.3 / 2 of two available choices of three; the third is exactly zero."""
    spec = ActionSpec(choices=(3,))
    logits = torch.tensor([0.8, 0.2, 9.0]).log()
    mask = torch.tensor([True, True, False])
    mixed = choice_log_probs(spec, mix_with_uniform(spec, logits, mask, 0.3), mask).exp()
    torch.testing.assert_close(mixed, torch.tensor([0.71, 0.29, 0.0]))
    assert mixed[2] == 0
    free = choice_log_probs(spec, mix_with_uniform(spec, logits, None, 0.3), None).exp()
    torch.testing.assert_close(free, torch.tensor([0.156, 0.114, 0.73]))


def test_every_component_is_mixed_and_means_are_unchanged():
    spec = ActionSpec(choices=(2, 3), continuous=1, low=(-1,), high=(1,))
    params = torch.tensor([[50.0, 0.0, 0.0, 0.0, 50.0, 0.25]])
    mixed = mix_with_uniform(spec, params, None, 0.3)
    expected = torch.tensor([[0.85, 0.15, 0.1, 0.1, 0.8]])
    torch.testing.assert_close(mixed[:, :5].exp(), expected)
    assert mixed[0, 5] == 0.25
    action = Action(torch.tensor([[1, 2]]), torch.tensor([[0.25]]))
    log_prob, _ = log_prob_and_entropy(spec, mixed, action, log_std=torch.zeros(1), mask=None)
    assert log_prob.item() == pytest.approx(math.log(0.15 * 0.8) - 0.5 * math.log(2 * math.pi), abs=1e-5)


def test_mixing_with_masks_has_finite_gradients():
    spec, mask = ActionSpec(choices=(3,)), torch.tensor([[True, False, True]])
    logits = torch.tensor([[90.0, 0.0, -90.0]], requires_grad=True)
    log_p = choice_log_probs(spec, mix_with_uniform(spec, logits, mask, 0.1), mask)
    (log_p[0, 2] - (log_p.exp() * log_p).sum()).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] == 0

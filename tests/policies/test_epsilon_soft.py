"""EpsilonSoftPolicy: mixing with uniform choices, and last actions in the hidden state."""

from dataclasses import replace

import torch

from coterie.policies.epsilon_soft import EpsilonSoftPolicy
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

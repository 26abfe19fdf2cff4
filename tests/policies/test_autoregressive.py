"""A policy whose agents decide one after another: distributions, masks, modes, other names of agents."""

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.policies.autoregressive import PLACE
from coterie.policies.remapped import RemappedPolicy
from exports import scramble
from preset_learners import preset_learner


def policy_of(kind="discrete", num_envs=400, **settings):
    """Returns a policy with weights of ordinary size, and a timestep of its environment in which agents are dead."""
    env = env_of(Everything(kind, dead=0.0), num_envs)
    policy = preset_learner("mat", env, "none", **settings).policy
    scramble(policy, env)
    timestep = env.reset()
    for noise in policy.draw_noise(3, num_envs, torch.Generator().manual_seed(0)):
        with torch.no_grad():
            timestep = env.step(policy.act(timestep, {}, noise, "sample")[0])[1]
    assert not timestep.alive.all()
    return policy, timestep


@pytest.mark.parametrize("kind", list(Everything.KINDS))
def test_greedy_actions_are_the_most_likely_of_the_reported_distributions(kind):
    policy, timestep = policy_of(kind)
    with torch.no_grad():
        actions, _, extras = policy.act(timestep, {}, {}, "greedy")
        found = policy.action_distribution(timestep, {}, "greedy")
    assert PLACE not in extras
    for role in policy.team.roles:
        distribution, action = found[role.name], actions[role.name]
        if role.action.choices:
            parts = distribution.probability.split(role.action.choices, -1)
            assert torch.equal(torch.stack([part.argmax(-1) for part in parts], -1), action.discrete)
            assert all(torch.allclose(part.sum(-1), torch.ones(())) for part in parts)
            mask = timestep.action_mask.get(role.name)
            assert mask is None or not distribution.probability[~mask].any()
        if role.action.continuous:
            assert torch.equal(distribution.mean, action.continuous)
            assert (distribution.std > 0).all()


@pytest.mark.parametrize("order", ["fixed", "random"])
def test_masked_choices_are_never_taken(order):
    policy, timestep = policy_of("multi_discrete", agent_order=order)
    (noise,) = policy.draw_noise(1, 400, torch.Generator().manual_seed(3))
    with torch.no_grad():
        actions, _, extras = policy.act(timestep, {}, noise, "sample")
    assert (PLACE in extras) == (order == "random")
    guard = actions["guard"].discrete
    first = timestep.action_mask["guard"][..., :3]
    assert not first.all()
    assert first.gather(-1, guard[..., :1]).all()
    assert extras["log_prob"].isfinite().all()


def test_another_team_of_the_same_spaces_is_acted_for():
    policy, timestep = policy_of()
    other = RemappedPolicy(policy.team, policy, "greedy")
    assert other.communicates
    with torch.no_grad():
        expected, found = (p.act(timestep, {}, {}, "greedy")[0] for p in (policy, other))
    assert all(torch.equal(expected[role].discrete, found[role].discrete) for role in expected)

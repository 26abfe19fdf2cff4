"""RemappedPolicy: acting for a team with other role names, and mismatches."""

from dataclasses import replace

import pytest
import torch

from coterie.core.errors import UserError
from coterie.policies.remapped import RemappedPolicy, team_mismatch
from coterie.policies.stochastic import StochasticPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep


def renamed(team):
    return replace(team, name="blue", roles=tuple(replace(r, name=f"blue_{r.name}") for r in team.roles))


def test_actions_are_those_of_the_inner_policy_under_other_names():
    team = make_team("discrete")
    inner = StochasticPolicy(team, SMALL, draw(), CPU)
    policy = RemappedPolicy(renamed(team), inner, "greedy")
    timestep = make_timestep(team, 4, (True, False, True, True))
    blue = replace(
        timestep,
        obs={f"blue_{name}": x for name, x in timestep.obs.items()},
        action_mask={f"blue_{name}": x for name, x in timestep.action_mask.items()},
    )
    expected, _, _ = inner.act(timestep, {}, None, "greedy")
    found, _, _ = policy.act(blue, {}, None, "sample")
    assert all(torch.equal(found[f"blue_{name}"].discrete, action.discrete) for name, action in expected.items())
    assert set(policy.action_distribution(blue, {}, "sample")) == {"blue_guard", "blue_scout"}


def test_a_team_with_other_spaces_is_an_error():
    team, other = make_team("discrete"), make_team("continuous")
    assert team_mismatch(team, renamed(team)) is None
    assert "role 'guard' has 2 agents" in team_mismatch(team, other)
    with pytest.raises(UserError, match="the policy was trained with"):
        RemappedPolicy(team, StochasticPolicy(other, SMALL, draw(), CPU), "greedy")

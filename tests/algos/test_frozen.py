"""A frozen team: its settings, the policy that it acts with, and messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.scripted import Frozen, FrozenConfig
from coterie.core.errors import UserError
from coterie.policies.stochastic import StochasticPolicy
from policy_cases import CPU, SMALL, draw, make_team, make_timestep

TEAM = make_team("discrete")


def learner(length: int | None = None) -> Frozen:
    context = AlgorithmContext(team=TEAM, num_envs=2, seed=0, device=CPU, rollout_length=length)
    return Frozen(FrozenConfig(rollout_length=7), context)


def other_policy(kind: str = "discrete", seed: int = 0) -> StochasticPolicy:
    """A policy of a team whose names differ."""
    team = make_team(kind)
    renamed = replace(team, name="blue", roles=tuple(replace(role, name=f"blue_{role.name}") for role in team.roles))
    return StochasticPolicy(renamed, SMALL, draw(seed), CPU)


def test_it_acts_with_the_policy_of_another_team_in_one_mode():
    algo, inner = learner(), other_policy()
    with pytest.raises(UserError, match=r"^team 'all': it is frozen and has no policy. Set teams.all.run=RUN.$"):
        _ = algo.policy
    algo.set_policy(inner, "greedy")
    timestep = make_timestep(TEAM, 4)
    found, _, _ = algo.policy.act(timestep, {}, None, "sample")
    renamed = replace(timestep, obs={f"blue_{name}": x for name, x in timestep.obs.items()})
    expected, _, _ = inner.act(renamed, {}, None, "greedy")
    assert all(torch.equal(found[name].discrete, expected[f"blue_{name}"].discrete) for name in found)


def test_a_policy_of_other_spaces_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"^team 'all': role 'guard' has 2 agents .* with teams.all.algo.team=TEAM.$"):
        learner().set_policy(other_policy("continuous"), "greedy")


def test_its_state_is_that_of_the_policy_and_updates_change_nothing():
    algo, other = learner(), learner()
    algo.set_policy(other_policy(seed=1), "greedy")
    other.set_policy(other_policy(seed=2), "greedy")
    state = algo.state_dict()
    assert set(state) == {"policy"}
    timestep = make_timestep(TEAM, 50)
    other.load_state_dict(state)
    assert other.update(None, 0.5) == {}  # pyright: ignore[reportArgumentType]
    chosen = (learned.policy.act(timestep, {}, None, "greedy")[0]["guard"].discrete for learned in (algo, other))
    assert torch.equal(*chosen)

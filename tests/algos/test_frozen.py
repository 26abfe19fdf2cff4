"""A frozen team: its settings, the policy that it acts with, and messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext
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


def test_settings_have_limits_and_cannot_be_changed():
    config = FrozenConfig()
    assert (config.run, config.team, config.checkpoint, config.rollout_length) == (None, None, "auto", 128)
    assert FrozenConfig(run=Path("runs/a")).run == Path.cwd() / "runs" / "a"
    assert [FrozenConfig(checkpoint=name).checkpoint for name in ("best", "last", "12")] == ["best", "last", "12"]
    assert [FrozenConfig(rollout_length=n).rollout_length for n in (1, 10**6)] == [1, 10**6]
    for name, values in {"rollout_length": (0, 10**6 + 1), "checkpoint": ("first", "", "1a"), "lr": (0.1,)}.items():
        for value in values:
            with pytest.raises(ValidationError, match=name):
                FrozenConfig(**{name: value})
    with pytest.raises(ValidationError, match="frozen"):
        config.team = "red"
    assert all(field.description for field in FrozenConfig.model_fields.values())


def test_rollouts_have_the_length_of_the_context_or_else_the_configured_one():
    assert (learner().rollout_length, learner(3).rollout_length) == (7, 3)
    supported = Frozen.capabilities
    assert (supported.actions, supported.images, supported.learns) == (ALL_ACTIONS, True, False)


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

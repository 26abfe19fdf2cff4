"""Reported action distributions equal the frequencies of sampled actions, with masks, hidden states and exploration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos import registry
from coterie.algos.algorithm import Algorithm, AlgorithmContext
from coterie.algos.replay.memory import no_memory_check
from coterie.core.specs import TeamSpec
from coterie.core.tree import tree_map
from coterie.core.types import Action, Timestep
from coterie.policies.base import InspectablePolicy, Mode

CPU = torch.device("cpu")
NUM_ENVS = 3000
STANDARD_ERROR = 0.5 / NUM_ENVS**0.5  # upper bound for a frequency


def algorithm(name: str, kind: str, **settings: Any) -> tuple[Timestep, TeamSpec, Algorithm]:
    """An algorithm whose policy is far from uniform, and a timestep in which all environments are equal."""
    env = env_of(Everything(kind, dead=0.0), NUM_ENVS)
    (team,) = env.spec.default_teams()
    cls = registry.algorithm(name)
    with no_memory_check():
        algo = cls(cls.Config(**settings), AlgorithmContext(team=team, num_envs=NUM_ENVS, seed=0, device=CPU))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for network in algo.policy.networks:
            for weight in network.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return tree_map(lambda x: x[:1].expand_as(x).clone(), env.reset(3)), team, algo


def frequencies(team: TeamSpec, actions: dict[str, Action]) -> dict[str, torch.Tensor]:
    """Frequency of each choice by role [n, sum A]."""
    found = {}
    for role in team.roles:
        discrete = actions[role.name].discrete
        if discrete is not None:
            one_hot = [
                torch.nn.functional.one_hot(discrete[..., k], size).float().mean(0)
                for k, size in enumerate(role.action.choices)
            ]
            found[role.name] = torch.cat(one_hot, -1)
    return found


CASES: list[tuple[str, str, Mode, dict[str, Any]]] = [
    ("ppo", "multi_discrete", "sample", {"rnn": "gru"}),
    ("ppo", "hybrid", "explore", {}),
    ("coma", "discrete", "sample", {}),
    ("coma", "discrete", "explore", {"epsilon_start": 0.6, "obs_last_action": True}),
    ("iql", "multi_discrete", "explore", {"epsilon_start": 0.4}),
    ("iql", "discrete", "sample", {}),
    ("maddpg", "discrete", "explore", {}),
    ("sac", "hybrid", "sample", {}),
]


@pytest.mark.parametrize(("name", "kind", "mode", "settings"), CASES)
def test_reported_probabilities_are_the_frequencies_of_actions(
    name: str, kind: str, mode: Mode, settings: dict[str, Any]
):
    timestep, team, algo = algorithm(name, kind, **settings)
    policy = algo.policy
    assert isinstance(policy, InspectablePolicy)
    with torch.inference_mode():
        hidden_state = policy.initial_hidden_state(NUM_ENVS)
        (noise,) = policy.draw_noise(1, NUM_ENVS, torch.Generator().manual_seed(2))
        reported = policy.action_distribution(timestep, hidden_state, mode)
        actions, _, _ = policy.act(timestep, hidden_state, noise, mode)
    for role, frequency in frequencies(team, actions).items():
        probability = reported[role].probability
        assert probability is not None
        assert torch.allclose(probability, probability[:1].expand_as(probability))
        assert (frequency - probability[0]).abs().max() < 5 * STANDARD_ERROR
        assert probability[0].max() > probability[0].min() + 0.1  # a uniform policy would not be a test
        mask = timestep.action_mask[role]
        assert not mask.all()
        assert probability[~mask].abs().max() == 0
        components = len(next(r for r in team.roles if r.name == role).action.choices)
        assert torch.allclose(probability.sum(-1), torch.tensor(float(components)), atol=1e-5)


def test_the_stored_log_probability_is_the_reported_one():
    timestep, team, algo = algorithm("ppo", "discrete", rnn="gru")
    timestep = replace(timestep, first=torch.zeros_like(timestep.first))
    with torch.inference_mode():
        hidden_state = {"h": torch.randn(NUM_ENVS, team.n, 128, generator=torch.Generator().manual_seed(4))}
        (noise,) = algo.policy.draw_noise(1, NUM_ENVS, torch.Generator().manual_seed(2))
        reported = algo.policy.action_distribution(timestep, hidden_state, "sample")
        actions, _, extras = algo.policy.act(timestep, hidden_state, noise, "sample")
        initial = algo.policy.initial_hidden_state(NUM_ENVS)
        without_history = algo.policy.action_distribution(timestep, initial, "sample")
    taken = torch.cat([reported[r.name].probability.gather(-1, actions[r.name].discrete) for r in team.roles], 1)
    assert torch.allclose(taken[..., 0].log(), extras["log_prob"], atol=1e-5)
    assert not torch.allclose(reported["guard"].probability, without_history["guard"].probability, atol=1e-2)


def test_continuous_actions_have_the_reported_mean_and_standard_deviation():
    timestep, _, algo = algorithm("ppo", "continuous", init_std=0.5)
    with torch.inference_mode():
        (noise,) = algo.policy.draw_noise(1, NUM_ENVS, torch.Generator().manual_seed(2))
        reported = algo.policy.action_distribution(timestep, {}, "sample")["guard"]
        action = algo.policy.act(timestep, {}, noise, "sample")[0]["guard"].continuous
    assert reported.probability is None
    assert (action.mean(0) - reported.mean[0]).abs().max() < 5 * float(reported.std.max()) / NUM_ENVS**0.5
    assert torch.allclose(action.std(0) / reported.std[0], torch.tensor(1.0), atol=0.1)

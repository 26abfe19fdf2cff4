"""Probes with several agents: rewards, death and negative controls."""

from __future__ import annotations

import pytest
import torch

from coterie.core.types import Action
from probeplay import make_env, probe_of, step_continuous, step_discrete


def test_roles_reward_each_agent_for_its_own_index():
    env = make_env("roles", agents=3)
    assert step_discrete(env, 0, 1, 2).reward.tolist() == [[1, 1, 1]]
    env.reset()
    assert step_discrete(env, 1, 1, 1).reward.tolist() == [[0, 1, 0]]
    obs = env.reset().obs["agent"]
    assert torch.equal(obs, obs[:, :1].expand_as(obs))


def test_additive_rewards_the_sum_of_values():
    rewards = []
    for joint in ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (2, 2)):
        env = make_env("additive")
        step = step_discrete(env, *joint)
        assert not step.reward.any()
        rewards.append(step.group_reward.item())
    assert rewards == [3, 4, 5, 0, 1, 3]


def test_an_irrelevant_teammate_does_not_change_the_reward():
    rewards = [step_discrete(make_env("irrelevant"), a, b).group_reward.item() for a in (0, 1) for b in (0, 1)]
    assert rewards == [-1, -1, 1, 1]


def test_the_team_of_a_dead_agent_is_rewarded_at_the_end():
    env = make_env("sacrifice")
    step, timestep = env.step({"agent": Action(torch.tensor([[[1], [0]]]))})
    assert (step.reward.tolist(), step.group_reward.tolist()) == ([[0, 0]], [[0]])
    assert (step.terminated.tolist(), step.episode_terminated.tolist()) == ([[True, False]], [False])
    assert timestep.alive.tolist() == [[False, True]]
    assert not timestep.obs["agent"][0, 0].any()
    assert timestep.obs["agent"][0, 1].tolist() == [0, 1, 0.25, 1]
    last = [step_discrete(env, 0, 0) for _ in range(3)]
    assert [step.group_reward.item() for step in last] == [0, 0, 1]
    assert last[-1].episode_terminated.item()
    assert last[-1].terminated.tolist() == [[False, True]]


def test_staying_gives_the_lure_and_later_choices_have_no_effect():
    env = make_env("sacrifice")
    steps = [step_discrete(env, 0, 1), step_discrete(env, 1, 1), step_discrete(env, 1, 0), step_discrete(env, 1, 1)]
    assert [step.reward.tolist() for step in steps] == [[[0.5, 0]], [[0, 0]], [[0, 0]], [[0, 0]]]
    assert not any(step.group_reward.any() for step in steps)
    assert steps[-1].terminated.tolist() == [[True, True]]


def test_ignoring_rewards_after_death_makes_staying_look_better():
    world = probe_of(make_env("sacrifice"))
    assert world.reference.control_return == 0.5  # the best return of an agent that counts its own rewards only
    assert world.best_value(world.reset(torch.zeros(1, 0)), 0.99).item() == pytest.approx(0.99**3)


def test_sum_penalizes_the_squared_distance_to_1():
    assert step_continuous(make_env("sum"), 0.75, 0.25).group_reward.item() == 0
    assert step_continuous(make_env("sum"), 1, 1).group_reward.item() == -1
    assert step_continuous(make_env("sum"), -1, 0.5).group_reward.item() == -2.25

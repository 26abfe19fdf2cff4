"""Probes of action and observation spaces: rewards, bounds and images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from coterie.core.types import Action
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from probeplay import make_env, step_continuous, step_discrete, world_state


def test_continuous_actions_are_scaled_and_clipped_to_the_space():
    env = make_env("continuous")
    step, _ = env.step({"agent": Action(continuous=torch.tensor([[[0.25]]]))})  # 0.5 of [-2, 2]
    assert step.reward.item() == 0
    env.reset()
    step, _ = env.step({"agent": Action(continuous=torch.tensor([[[7.0]]]))})
    assert step.reward.item() == -2.25
    assert step_continuous(make_env("continuous", target=-1), -1.0).reward.item() == 0


def test_multi_discrete_rewards_the_fraction_of_right_choices():
    env = make_env("multi_discrete")
    right = world_state(env)["right"][0].tolist()
    obs = env.reset(0).obs["agent"][0, 0].split([3, 2, 4])
    assert [int(part.argmax()) for part in obs] == right
    wrong = [(x + 1) % count for x, count in zip(right, (3, 2, 4), strict=True)]
    for picked, expected in ((right, 1), ([right[0], wrong[1], wrong[2]], 1 / 3), (wrong, 0)):
        env.reset(0)
        step, _ = env.step({"agent": Action(torch.tensor([[picked]]))})
        assert step.reward.item() == pytest.approx(expected)


def test_hybrid_rewards_choice_and_number():
    env = make_env("hybrid")
    x = env.reset(0).obs["agent"].item()
    choice = torch.tensor([[[int(x > 0)]]])
    for choices, number, expected in (
        (choice, x / 2, 1),
        (1 - choice, x / 2, 0),
        (choice, -x / 2, 0),
        (choice, 0, 0.75),
    ):
        env.reset(0)
        step, _ = env.step({"agent": Action(choices, torch.full((1, 1, 1), float(number)))})
        assert step.reward.item() == pytest.approx(expected)


def test_images_are_uint8_and_their_brightest_pixel_determines_the_choice():
    env = make_env("image", 200, size=20, channels=2)
    timestep = env.reset()
    space, obs = env.spec.roles[0].observation_space, timestep.obs["agent"]
    assert space == spaces.Box(0, 255, (20, 20, 2), np.uint8)
    assert (obs.dtype, tuple(obs.shape)) == (torch.uint8, (200, 1, 20, 20, 2))
    assert torch.equal(obs[..., 0], obs[..., 1])
    place = obs[:, 0, :, :, 0].flatten(1).argmax(1)
    quarter = 2 * (place // 20 >= 10) + (place % 20 >= 10)
    assert len(quarter.unique()) == 4
    assert (obs[:, 0, :, :, 0].flatten(1).amax(1) > 225).all()
    step, _ = env.step({"agent": Action(quarter[:, None, None])})
    assert step.reward.tolist() == [[1]] * 200
    env.reset()
    assert 0 < step_discrete(env, 0).reward.mean().item() < 1


def test_images_are_collected_as_uint8_and_resumed():
    env = make_env("image", 5, with_state=True)
    policies = {team.name: RandomPolicy(team, torch.device("cpu")) for team in env.spec.default_teams()}
    collector = Collector(env, policies, seed=1)
    rollouts, acted = collector.advance(6)
    obs = rollouts["agent"].obs["agent"]
    assert (obs.dtype, tuple(obs.shape)) == (torch.uint8, (7, 5, 1, 16, 16, 1))
    assert acted == 15  # every other timestep is a final one
    saved = collector.state_dict()
    other = Collector(make_env("image", 5, with_state=True), policies, seed=1)
    other.load_state_dict(saved)
    observations, other_observations = (which.advance(4)[0]["agent"].obs["agent"] for which in (collector, other))
    assert torch.equal(observations, other_observations)
    assert obs[0].float().std() > 0


def test_the_state_of_an_image_is_scaled_to_0_to_1():
    env = make_env("image", 2, with_state=True)
    timestep = env.reset()
    assert timestep.state["global"].shape == (2, env.spec.state_sizes["global"]) == (2, 256)
    assert torch.equal(timestep.state["global"], timestep.obs["agent"].flatten(1) / 255)

"""Probes with one agent: rewards, observations, masks and known values."""

from __future__ import annotations

import pytest
import torch

from coterie.core.types import Action
from probeplay import is_close_to, make_env, probe_of, step_discrete, world_state


def test_constant_gives_one_reward():
    step = step_discrete(make_env("constant", reward=3), 0)
    assert (step.reward.tolist(), step.episode_terminated.tolist()) == ([[3]], [True])


def test_delayed_rewards_the_last_step_and_shows_the_step_number():
    env = make_env("delayed", length=3)
    obs, rewards = [env.reset().obs["agent"][0, 0].tolist()], []
    values = []
    for _ in range(3):
        values.append(probe_of(env).best_value(world_state(env), 0.5).item())
        step, timestep = env.step({"agent": Action(torch.zeros(1, 1, 1, dtype=torch.int64))})
        obs.append(timestep.obs["agent"][0, 0].tolist())
        rewards.append(step.reward.item())
    assert obs[:3] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert rewards == [0, 0, 1]
    assert values == [0.25, 0.5, 1]


@pytest.mark.parametrize(("good", "expected"), [(1, [-1, 1]), (0, [1, -1])])
def test_action_rewards_the_good_choice(good: int, expected: list[float]):
    assert [step_discrete(make_env("action", good=good), choice).reward.item() for choice in (0, 1)] == expected


def test_both_rewards_choices_that_fit_the_observation():
    env = make_env("both", 8)
    x = env.reset().obs["agent"][:, 0, 0]
    assert set(x.tolist()) == {-1, 1}
    assert torch.equal(step_discrete(env, 1).reward[:, 0], x)
    x = env.reset().obs["agent"][:, 0, 0]
    assert torch.equal(step_discrete(env, 0).reward[:, 0], -x)


def test_endless_truncates_and_terminates_only_in_the_negative_control():
    values = []
    for ends in (False, True):
        env = make_env("endless", episode_limit=3, terminate_at_limit=ends)
        values.append(probe_of(env).best_value(world_state(env), 0.5).item())
        steps = [step_discrete(env, 0) for _ in range(3)]
        assert [step.reward.item() for step in steps] == [1, 1, 1]
        assert steps[-1].episode_terminated.item() is ends
        assert steps[-1].episode_truncated.item() is not ends
    assert values == [2, 1.75]


def test_masked_masks_the_best_choice_in_half_of_the_timesteps():
    env = make_env("masked", 4000)
    timestep = env.reset()
    mask, masked = timestep.action_mask["agent"][:, 0], timestep.obs["agent"][:, 0, 0] == 1
    assert mask[:, :2].all()
    assert torch.equal(mask[:, 2], ~masked)
    assert is_close_to(masked.double(), 0.5)
    step = step_discrete(env, 2)
    assert torch.equal(step.reward[:, 0], torch.where(masked, -1.0, 1.0))
    assert set(step_discrete(env, 1).reward[:, 0].tolist()) == {0.5}
    final = make_env("masked", 2, length=1)
    assert set(step_discrete(final, 0).reward[:, 0].tolist()) == {0}


def test_masked_reports_illegal_choices():
    env = make_env("masked", 4000)
    step_discrete(env, 2)
    illegal = step_discrete(env, 2).metrics["illegal"]
    assert is_close_to(illegal.double(), 0.5)
    env.reset()
    step_discrete(env, 1)
    assert not step_discrete(env, 1).metrics["illegal"].any()


def test_the_cue_is_shown_once_and_requested_later():
    env = make_env("memory", 6, delay=3, cues=3)
    timestep = env.reset()
    cue = timestep.obs["agent"][:, 0, :3].argmax(1)
    assert timestep.obs["agent"][:, 0, :3].sum(1).tolist() == [1] * 6
    assert len(cue.unique()) > 1
    answer = {"agent": Action(cue[:, None, None])}
    asks, rewards = [timestep.obs["agent"][0, 0, 3].item()], []
    for _ in range(4):
        step, timestep = env.step(answer)
        assert not timestep.obs["agent"][..., :3].any()
        asks.append(timestep.obs["agent"][0, 0, 3].item())
        rewards.append(step.reward[:, 0].tolist())
    assert asks[:4] == [0, 0, 0, 1]
    assert rewards == [[0] * 6, [0] * 6, [0] * 6, [1] * 6]


def test_memoryless_policies_are_no_better_than_guessing():
    # When asked, all environments have equal observations, so a memoryless policy gives one answer to all of them.
    env = make_env("memory", 4000)
    total = []
    for answer in (0, 1):
        env.reset(2)
        step_discrete(env, answer)
        total.append(step_discrete(env, answer).reward[:, 0].double())
    control_return = probe_of(env).reference.control_return
    assert control_return == 0
    assert all(is_close_to(rewards, control_return) for rewards in total)

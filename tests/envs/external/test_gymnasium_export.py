"""Environments of Coterie as vector environments of Gymnasium, with Gymnasium's own checker and wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import coterie
from coterie.core.errors import UserError
from coterie.core.types import Action
from coterie.envs.make import make


class Single(gymnasium.Env):
    """The only environment of a vector environment, for Gymnasium's checker, which takes single environments."""

    def __init__(self, env: Any):
        self.env = env
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.metadata, self.render_mode = env.metadata, env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        obs, infos = self.env.reset(seed=seed, options=options)
        return first(obs), infos

    def step(self, action: Any):
        obs, reward, terminated, truncated, infos = self.env.step(batched(action))
        return first(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos

    def render(self):
        return self.env.render()[0]


def first(batch: Any) -> Any:
    return {key: first(part) for key, part in batch.items()} if isinstance(batch, dict) else batch[0]


def batched(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: batched(part) for key, part in action.items()}
    return tuple(map(batched, action)) if isinstance(action, tuple) else np.asarray(action)[None]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*")  # its warnings are advice, such as on unbounded observations
@pytest.mark.parametrize(
    "name",
    ["particle/simple_spread", "probe/continuous", "probe/image", "probe/hybrid"],
)
def test_worlds_pass_gymnasium_s_checker(name: str):
    env = coterie.as_vector_env(name)
    check_env(Single(env))
    env.close()
    env.close()


@pytest.mark.parametrize("name", ["particle/simple_spread", "probe/multi_discrete", "probe/hybrid", "probe/image"])
def test_batches_are_in_the_spaces_and_of_the_documented_types(name: str):
    env = coterie.as_vector_env(name, num_envs=3, seed=1)
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    assert reward.shape == terminated.shape == truncated.shape == (3,)
    assert len(env.render()) == 3


def test_an_episode_ends_with_its_true_last_observation_and_the_next_step_starts_another():
    env, native = coterie.as_vector_env("particle/simple_spread", 2, seed=5), make("particle/simple_spread", {}, 2, 5)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.reset()
    native.reset(5)
    actions = {agent: np.array([1, 3]) for agent in ("agent_0", "agent_1", "agent_2")}
    taken = {"agent": Action(torch.tensor([1, 3])[:, None, None].expand(2, 3, 1).contiguous())}
    for t in range(27):
        obs, reward, terminated, truncated, infos = env.step(actions)
        step, timestep = native.step(taken)
        assert truncated.all() == (t == 24)
        assert not terminated.any()
        assert np.allclose(obs["agent_1"], timestep.obs["agent"][:, 1].numpy(), atol=1e-5)
        assert np.allclose(reward, step.reward.sum(1).numpy(), atol=1e-4)
        assert np.allclose(infos["agent_reward"]["agent_2"], step.reward[:, 2].numpy(), atol=1e-4)
        assert (reward == 0).all() == (t == 25)
        assert "final_obs" not in infos  # only SAME_STEP needs it


def test_masks_deaths_and_metrics_are_in_the_infos():
    env = coterie.as_vector_env("skirmish/3m", num_envs=4, seed=1)
    obs, infos = env.reset()
    agents = list(env.single_action_space.spaces)
    random, died, won = np.random.default_rng(0), False, []
    for _ in range(80):
        masks = infos["action_mask"]
        actions = {a: np.array([random.choice(np.flatnonzero(mask)) for mask in masks[a]]) for a in agents}
        obs, _, terminated, truncated, infos = env.step(actions)
        assert infos["_action_mask"].all()
        for agent in agents:
            dead = ~infos["alive"][agent]
            died |= bool(dead.any())
            assert not obs[agent][dead].any()
        ended = terminated | truncated
        assert ("won" in infos) == bool(ended.any())
        if ended.any():
            assert (infos["_won"] == ended).all()
            won += infos["won"][ended].tolist()
    assert died
    assert set(won) == {0.0}


def test_seeds_determine_everything_and_episodes_continue_the_stream():
    env, other = coterie.as_vector_env("particle/simple", 2, seed=3), coterie.as_vector_env("particle/simple", 2)
    start, second = env.reset()[0], env.reset()[0]
    assert not np.array_equal(start, second)
    assert not np.array_equal(start, other.reset()[0])
    assert np.array_equal(start, other.reset(seed=3)[0])
    assert np.array_equal(second, other.reset()[0])
    assert isinstance(env.single_action_space, spaces.Discrete)


def test_mistakes_are_named():
    with pytest.raises(UserError, match=r"has the teams adversary, agent, but .* coterie\.as_parallel_env"):
        coterie.as_vector_env("particle/simple_tag")
    env = coterie.as_vector_env("particle/simple_spread", num_envs=2)
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step({})
    env.reset()
    with pytest.raises(ValueError, match=r"no actions of \['agent_1', 'agent_2'\]"):
        env.step({"agent_0": np.zeros(2, int)})
    single = coterie.as_vector_env("particle/simple", num_envs=2)
    single.reset()
    with pytest.raises(ValueError, match=r"action of agent_0: \[1\] is not in Discrete\(5\)"):
        single.step([1])

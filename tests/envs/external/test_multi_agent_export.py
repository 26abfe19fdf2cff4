"""Environments exported through PyMARL's interface: round trips, PyMARL's loop, replays, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import coterie
from coterie.checks.environment.contract import check
from coterie.core.errors import UserError
from coterie.core.seeds import seed_of
from coterie.core.types import Action
from coterie.envs.contract.traces import random_actions
from coterie.envs.external.multi_agent_export import MultiAgentWorld
from coterie.envs.make import make

BATTLE, SPREAD = "squads:battle", "squads:spread"


def compare(name: str, original: str, seed: int, steps: int) -> tuple[int, list[str]]:
    """Steps an environment and its re-imported export with equal actions.

    Returns:
        The number of finished episodes, and the differences.
    """
    there = make(name, {}, num_envs=1, seed=seed, with_state=True)
    here = make(original, {}, num_envs=1, seed=seed_of(seed, "env", name, 0) >> 32, with_state=True)
    there_timestep, timestep, generator = there.reset(), here.reset(), torch.Generator().manual_seed(seed)
    theirs, own = there.spec.roles[0].name, here.spec.roles[0].name
    ended, wrong = 0, []
    for t in range(steps):
        pairs = {
            "obs": (there_timestep.obs[theirs], timestep.obs[own]),
            "mask": (
                there_timestep.action_mask[theirs],
                timestep.action_mask.get(own, there_timestep.action_mask[theirs]),
            ),
            **{key: (getattr(there_timestep, key), getattr(timestep, key)) for key in ("alive", "first", "acted")},
        }
        if timestep.state:
            pairs["state"] = there_timestep.state["global"], timestep.state["global"]
        action = random_actions(here.spec, timestep, generator)
        there_step, there_timestep = there.step({theirs: action[own]})
        step, timestep = here.step(action)
        pairs |= {key: (getattr(there_step, key), getattr(step, key)) for key in ENDS}
        reward_sum = step.group_reward[:, 0] + step.reward.sum(1)
        pairs["reward"] = there_step.group_reward[:, 0], reward_sum
        pairs |= {key: (there_step.metrics[key], step.metrics[key]) for key in here.spec.metrics}
        wrong += [f"{key} at {t}" for key, (a, b) in pairs.items() if not torch.equal(a, b)]
        ended += int(step.episode_terminated | step.episode_truncated)
    return ended, wrong


ENDS = ("terminated", "truncated", "episode_terminated", "episode_truncated")


def test_a_reimported_battle_equals_the_original():
    ended, wrong = compare(BATTLE, "skirmish/3m", 7, steps=100)
    assert ended >= 2
    assert not wrong


def test_a_reimported_environment_without_deaths_and_masks_equals_the_original():
    ended, wrong = compare(SPREAD, "particle/simple_spread", 3, steps=80)
    assert ended == 3
    assert not wrong


@pytest.mark.slow
def test_a_reimported_environment_keeps_the_contract():
    report = check(
        lambda num_envs, seed: make(BATTLE, {"limit": 12}, num_envs, seed, with_state=True), steps=15, num_envs=2
    )
    assert not [finding for finding in report.findings if finding.name != "slow"], report


# ------------------------------------------------------------------------------------------------------- PyMARL's calls


def episode(env: Any, random: np.random.Generator, seed: int | None = None) -> dict[str, Any]:
    """Plays an episode like PyMARL's runner and returns the contents of its batch."""
    env_info = env.get_env_info()
    env.reset() if seed is None else env.reset(seed=seed)
    batch: dict[str, Any] = {"obs": [], "state": [], "avail_actions": [], "reward": [], "terminated": []}
    terminated = False
    while True:
        assert [len(own) for own in env.get_obs()] == [env_info["obs_shape"]] * env_info["n_agents"]
        assert env.get_state().shape == (env_info["state_shape"],)
        for key, value in (("obs", env.get_obs()), ("state", env.get_state())):
            batch[key].append(value)
        batch["avail_actions"].append(env.get_avail_actions())
        if terminated:
            return batch
        actions = [int(random.choice(np.flatnonzero(mask))) for mask in batch["avail_actions"][-1]]
        reward, terminated, info = env.step(actions)
        batch["reward"].append(reward)
        batch["terminated"].append(terminated != info.get("episode_limit", False))
        batch["info"] = info


def test_pymarl_s_loop_plays_and_counts_battles():
    env = coterie.as_multiagent_env("skirmish/3m", seed=0)
    random, over = np.random.default_rng(0), []
    for _ in range(4):
        batch = episode(env, random)
        over.append(batch["info"])
        assert batch["terminated"] == [False] * (len(batch["reward"]) - 1) + [True]
        assert batch["avail_actions"][-1] == [[1] + [0] * 8] * 3  # all agents are dead
        assert not np.any(batch["obs"][-1])
        assert sum(batch["reward"]) < 20
    assert all(info["dead_allies"] == 3 and info["battle_won"] is False for info in over)
    assert env.get_stats() == {
        "battles_won": 0, "battles_game": 4, "battles_draw": 0, "win_rate": 0.0, "timeouts": 0, "restarts": 0,
    }  # fmt: skip
    env.close()


def test_truncation_is_distinguished_from_termination():
    env = coterie.as_multiagent_env("skirmish/3m", episode_limit=3)
    batch = episode(env, np.random.default_rng(0))
    assert batch["info"]["episode_limit"] is True
    assert batch["terminated"] == [False] * 3  # as PyMARL stores it
    assert env.get_stats()["timeouts"] == 1
    ends = coterie.as_multiagent_env("skirmish/3m", episode_limit=3, terminate_at_limit=True)
    assert "episode_limit" not in episode(ends, np.random.default_rng(0))["info"]


def test_different_roles_are_padded_and_rewards_are_summed_over_the_team():
    env = coterie.as_multiagent_env("particle/simple_speaker_listener", seed=5)
    env.reset()
    timestep = (world := make("particle/simple_speaker_listener", seed=5)).reset()
    speaker, listener = env.get_obs()
    assert (env.get_obs_size(), env.get_total_actions(), env.get_state_size()) == (11, 5, 18)
    assert speaker.tolist() == [*timestep.obs["speaker"][0, 0].tolist(), *[0] * 8]
    assert np.array_equal(listener, env.get_obs_agent(1))
    assert env.get_avail_agent_actions(0) == [1, 1, 1, 0, 0]
    assert env.get_avail_agent_actions(1) == [1] * 5
    reward, terminated, info = env.step([2, 1])
    step, _ = world.step({name: Action(torch.tensor([[[pick]]])) for name, pick in (("speaker", 2), ("listener", 1))})
    assert reward == float(step.reward.sum() + step.group_reward.sum()) != 0
    assert not terminated
    assert "episode_limit" not in info
    with pytest.raises(ValueError, match=r"agent 0 cannot take action 3. Choose from \[0, 1, 2\]"):
        env.step([3, 0])
    with pytest.raises(ValueError, match="3 actions for 2 agents"):
        env.step([0, 0, 0])


def test_external_environments_are_exported_with_observations_as_state():
    env = coterie.as_multiagent_env("lbforaging/Foraging-8x8-2p-2f-coop-v3", seed=2, max_episode_steps=6)
    batch = episode(env, np.random.default_rng(2))
    assert env.episode_limit == 6
    assert len(batch["reward"]) == 6
    assert batch["info"]["episode_limit"] is True
    assert np.array_equal(batch["state"][0], np.concatenate(batch["obs"][0]))


def test_episodes_can_be_seeded_at_construction_at_reset_and_by_seed():
    env, other = MultiAgentWorld("skirmish/3m", seed=3), MultiAgentWorld("skirmish/3m", seed=4)
    first, second = env.reset()[1], env.reset()[1]
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other.reset()[1])
    assert np.array_equal(first, other.reset(seed=3)[1])
    assert other.seed(3) == other.seed() == 3
    assert np.array_equal(first, other.reset()[1])
    assert np.array_equal(second, other.reset()[1])


@pytest.mark.slow
def test_a_replay_contains_the_played_episode(tmp_path: Path):
    env = coterie.as_multiagent_env("skirmish/3m", 0, str(tmp_path), "battle")
    random = np.random.default_rng(0)
    episode(env, random)
    batch = episode(env, random)
    last = env.render(size=320)
    assert env.save_replay() == tmp_path / "battle_0000.json"
    assert env.save_replay() == tmp_path / "battle_0001.json"
    info = json.loads((tmp_path / "battle_0000.json").read_text())
    assert (info["env"], info["rewards"]) == ("skirmish/3m", batch["reward"])
    assert len(info["actions"]) == len(batch["reward"])
    with Image.open(tmp_path / "battle_0000.gif") as picture:
        frames = getattr(picture, "n_frames", 1)
        picture.seek(frames - 1)
        shown = np.asarray(picture.convert("RGB")).astype(int)
    assert frames == len(batch["reward"]) + 1
    assert np.abs(shown - last).mean() < 3  # quantization to a palette
    env.reset()
    assert np.abs(shown - env.render(size=320)).mean() > 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("particle/simple_tag", "has the teams adversary, agent, but PyMARL's interface has one team"),
        ("probe/memory", "probe/memory has no step limit"),
        ("gym/Pendulum-v1", "one discrete action per agent, not Box.* of role agent"),
        ("skirmish/3n", "Did you mean"),
    ],
)
def test_unsupported_environments_raise_one_line_errors(name: str, message: str):
    with pytest.raises(UserError, match=message) as raised:
        coterie.as_multiagent_env(name)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="there is no window"):
        MultiAgentWorld("matrix/climbing").render("human")

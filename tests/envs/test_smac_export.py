"""Worlds of ours behind PyMARL's interface: the world to the bit, a loop like PyMARL's, replays, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import coterie
from coterie.envs.check import check
from coterie.envs.export.multiagent import MultiAgentWorld
from coterie.envs.make import make
from coterie.envs.paths import random_actions
from coterie.errors import UserError
from coterie.seeds import seed_of
from coterie.types import Action

BATTLE, SPREAD = "squads:battle", "squads:spread"


def compared(name: str, ours: str, seed: int, steps: int, reward: str = "shaped") -> tuple[int, list[str]]:
    """Steps the exported world that was brought in again and the world itself with the same choices: how many episodes
    ended, and what differed.
    """
    params = {"reward": reward} if name == BATTLE else {}
    there = make(name, params, copies=1, seed=seed, with_state=True)
    here = make(ours, {}, copies=1, seed=seed_of(seed, "env", name, 0) >> 32, with_state=True)
    there_row, row, generator = there.reset(), here.reset(), torch.Generator().manual_seed(seed)
    theirs, own = there.spec.roles[0].name, here.spec.roles[0].name
    ended, wrong = 0, []
    for t in range(steps):
        pairs = {
            "obs": (there_row.obs[theirs], row.obs[own]),
            "mask": (there_row.action_mask[theirs], row.action_mask.get(own, there_row.action_mask[theirs])),
            **{key: (getattr(there_row, key), getattr(row, key)) for key in ("alive", "first", "acted")},
        }
        if row.state:
            pairs["state"] = there_row.state["global"], row.state["global"]
        action = random_actions(here.spec, row, generator)
        there_step, there_row = there.step({theirs: action[own]})
        step, row = here.step(action)
        pairs |= {key: (getattr(there_step, key), getattr(step, key)) for key in ENDS}
        paid = step.group_reward[:, 0] + step.reward.sum(1)
        pairs["reward"] = there_step.group_reward[:, 0], paid
        pairs |= {key: (there_step.metrics[key], step.metrics[key]) for key in here.spec.metrics}
        wrong += [f"{key} at {t}" for key, (a, b) in pairs.items() if not torch.equal(a, b)]
        ended += int(step.episode_terminated | step.episode_truncated)
    return ended, wrong


ENDS = ("terminated", "truncated", "episode_terminated", "episode_truncated")


@pytest.mark.parametrize("seed", [0, 7])
def test_a_battle_exported_and_brought_in_again_is_the_same_to_the_bit(seed: int):
    ended, wrong = compared(BATTLE, "skirmish/3m", seed, steps=150)
    assert ended >= 3
    assert not wrong


def test_the_comparison_sees_what_differs():
    ended, wrong = compared(BATTLE, "skirmish/3m", 0, steps=60, reward="sparse")
    assert ended
    assert {text.split()[0] for text in wrong} == {"reward"}


def test_a_world_without_deaths_and_masks_is_the_same_to_the_bit():
    ended, wrong = compared(SPREAD, "particle/simple_spread", 3, steps=80)
    assert ended == 3
    assert not wrong


@pytest.mark.parametrize(("name", "short"), [(BATTLE, {"limit": 12}), (SPREAD, {})])
def test_what_is_brought_in_again_keeps_the_contract(name: str, short: dict[str, int]):
    report = check(lambda copies, seed: make(name, short, copies, seed, with_state=True), steps=20, copies=2)
    assert not [finding for finding in report.findings if finding.rule != "slow"], report


# ------------------------------------------------------------------------------------------------------------ the calls


def episode(env: Any, random: np.random.Generator, seed: int | None = None) -> dict[str, Any]:
    """An episode as PyMARL's runner plays it: what its batch would hold."""
    info = env.get_env_info()
    env.reset() if seed is None else env.reset(seed=seed)
    batch: dict[str, Any] = {"obs": [], "state": [], "avail_actions": [], "reward": [], "terminated": []}
    terminated = False
    while True:
        assert [len(own) for own in env.get_obs()] == [info["obs_shape"]] * info["n_agents"]
        assert env.get_state().shape == (info["state_shape"],)
        for key, value in (("obs", env.get_obs()), ("state", env.get_state())):
            batch[key].append(value)
        batch["avail_actions"].append(env.get_avail_actions())
        if terminated:
            return batch
        actions = [int(random.choice(np.flatnonzero(row))) for row in batch["avail_actions"][-1]]
        reward, terminated, told = env.step(actions)
        batch["reward"].append(reward)
        batch["terminated"].append(terminated != told.get("episode_limit", False))
        batch["info"] = told


def test_pymarl_s_loop_plays_battles_and_counts_them():
    env = coterie.as_multiagent_env("skirmish/3m", seed=0)
    random, over = np.random.default_rng(0), []
    for _ in range(4):
        batch = episode(env, random)
        over.append(batch["info"])
        assert batch["terminated"] == [False] * (len(batch["reward"]) - 1) + [True]
        assert batch["avail_actions"][-1] == [[1] + [0] * 8] * 3  # nobody is left
        assert not np.any(batch["obs"][-1])
        assert sum(batch["reward"]) < 20
    assert all(info["dead_allies"] == 3 and info["battle_won"] is False for info in over)
    assert env.get_stats() == {
        "battles_won": 0, "battles_game": 4, "battles_draw": 0, "win_rate": 0.0, "timeouts": 0, "restarts": 0,
    }  # fmt: skip
    env.close()


def test_a_limit_is_told_apart_from_an_end():
    env = coterie.as_multiagent_env("skirmish/3m", episode_limit=3)
    batch = episode(env, np.random.default_rng(0))
    assert batch["info"]["episode_limit"] is True
    assert batch["terminated"] == [False] * 3  # as PyMARL stores it
    assert env.get_stats()["timeouts"] == 1
    ends = coterie.as_multiagent_env("skirmish/3m", episode_limit=3, limit_ends=True)
    assert "episode_limit" not in episode(ends, np.random.default_rng(0))["info"]


def test_roles_that_differ_are_padded_and_the_reward_is_the_team_s():
    env = coterie.as_multiagent_env("particle/simple_speaker_listener", seed=5)
    env.reset()
    row = (world := make("particle/simple_speaker_listener", seed=5)).reset()
    speaker, listener = env.get_obs()
    assert (env.get_obs_size(), env.get_total_actions(), env.get_state_size()) == (11, 5, 18)
    assert speaker.tolist() == [*row.obs["speaker"][0, 0].tolist(), *[0] * 8]
    assert np.array_equal(listener, env.get_obs_agent(1))
    assert env.get_avail_agent_actions(0) == [1, 1, 1, 0, 0]
    assert env.get_avail_agent_actions(1) == [1] * 5
    reward, terminated, info = env.step([2, 1])
    step, _ = world.step({name: Action(torch.tensor([[[pick]]])) for name, pick in (("speaker", 2), ("listener", 1))})
    assert reward == float(step.reward.sum() + step.group_reward.sum()) != 0
    assert not terminated
    assert "episode_limit" not in info
    with pytest.raises(ValueError, match=r"agent 0 cannot take action 3: it has \[0, 1, 2\]"):
        env.step([3, 0])
    with pytest.raises(ValueError, match="3 actions for 2 agents"):
        env.step([0, 0, 0])


def test_the_dead_have_nothing_but_action_0():
    env, random = coterie.as_multiagent_env("skirmish/3m", seed=1), np.random.default_rng(1)
    batch = episode(env, random)
    for seen, available in zip(batch["obs"], batch["avail_actions"], strict=True):
        for own, row in zip(seen, available, strict=True):
            assert own.any() == (row[0] == 0)  # who lives cannot do nothing
    with pytest.raises(RuntimeError, match="call reset"):
        env.step([0, 0, 0])


def test_outside_environments_go_out_as_well_with_their_observations_for_a_state():
    env = coterie.as_multiagent_env("lbforaging/Foraging-8x8-2p-2f-coop-v3", seed=2, max_episode_steps=6)
    batch = episode(env, np.random.default_rng(2))
    assert env.episode_limit == 6
    assert len(batch["reward"]) == 6
    assert batch["info"]["episode_limit"] is True
    assert np.array_equal(batch["state"][0], np.concatenate(batch["obs"][0]))


def test_seeds_decide_an_episode_at_the_constructor_at_reset_and_beforehand():
    env, other = MultiAgentWorld("skirmish/3m", seed=3), MultiAgentWorld("skirmish/3m", seed=4)
    first, second = env.reset()[1], env.reset()[1]
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other.reset()[1])
    assert np.array_equal(first, other.reset(seed=3)[1])
    assert other.seed(3) == other.seed() == 3
    assert np.array_equal(first, other.reset()[1])
    assert np.array_equal(second, other.reset()[1])


def test_a_replay_is_the_episode_that_was_played(tmp_path: Path):
    env = coterie.as_multiagent_env("skirmish/3m", 0, str(tmp_path), "battle")
    random = np.random.default_rng(0)
    episode(env, random)
    batch = episode(env, random)
    last = env.render(size=320)
    assert env.save_replay() == tmp_path / "battle_0000.json"
    assert env.save_replay() == tmp_path / "battle_0001.json"
    told = json.loads((tmp_path / "battle_0000.json").read_text())
    assert (told["env"], told["rewards"], len(told["actions"])) == (
        "skirmish/3m",
        batch["reward"],
        len(batch["reward"]),
    )
    with Image.open(tmp_path / "battle_0000.gif") as picture:
        frames = getattr(picture, "n_frames", 1)
        picture.seek(frames - 1)
        shown = np.asarray(picture.convert("RGB")).astype(int)
    assert frames == len(batch["reward"]) + 1
    assert np.abs(shown - last).mean() < 3  # a palette's difference
    env.reset()
    assert np.abs(shown - env.render(size=320)).mean() > 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("particle/simple_tag", "particle/simple_tag has the teams adversary, agent, and PyMARL's interface has one"),
        ("probe/memory", "probe/memory has no limit of steps"),
        ("gym/Pendulum-v1", "one discrete choice an agent, this is Box.* of role agent"),
        ("skirmish/3n", "did you mean"),
    ],
)
def test_what_the_interface_cannot_say_is_refused_in_one_line(name: str, words: str):
    with pytest.raises(UserError, match=words) as raised:
        coterie.as_multiagent_env(name)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="there is no window"):
        MultiAgentWorld("matrix/climbing").render("human")

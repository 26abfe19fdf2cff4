"""Returns and lengths of episodes, compared with a loop over environments and steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.metrics import undeclared
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.training.episodes import EpisodeTracker, FinishedEpisodes


def role(name: str, group: str, agents: int) -> RoleSpec:
    names = tuple(f"{name}_{i}" for i in range(agents)) if agents > 1 else (name,)
    return RoleSpec(name, group, names, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))


SPEC = EnvSpec("env", (role("hunter", "red", 2), role("prey", "blue", 1)), {}, has_group_reward=True, metrics=("win",))


def reference(reward, group_reward, acted, episode_end, win):
    """Returns finished episodes by environment and time: (step, env, returns, group returns, length, win)."""
    episodes = []
    for env in range(reward.shape[1]):
        own, group, length = np.zeros(3), np.zeros(2), 0
        for t in range(reward.shape[0]):
            own, group, length = own + reward[t, env], group + group_reward[t, env], length + int(acted[t, env])
            if episode_end[t, env]:
                episodes.append((t, env, own, group, length, win[t, env]))
                own, group, length = np.zeros(3), np.zeros(2), 0
    return episodes


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_envs=st.integers(1, 5),
    rollouts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    often=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_episodes_equal_those_of_a_loop_however_steps_are_split(
    seed: int, num_envs: int, rollouts: list[int], often: float
) -> None:
    draw = np.random.default_rng(seed)
    steps = sum(rollouts)
    episode_end = draw.random((steps, num_envs)) < often
    episode_end[1:] &= ~episode_end[:-1]  # a final timestep ends nothing
    truncated = episode_end & (draw.random((steps, num_envs)) < 0.5)
    acted = np.concatenate([np.ones((1, num_envs), bool), ~episode_end[:-1]])
    reward = draw.normal(size=(steps, num_envs, 3)) * acted[..., None]
    group_reward = draw.normal(size=(steps, num_envs, 2)) * acted[..., None]
    win = draw.random((steps, num_envs))
    tracker, found, at = EpisodeTracker(SPEC, num_envs, torch.device("cpu")), [], 0
    for length in rollouts:
        part = slice(at, at + length)
        saved = tracker.state_dict()
        tracker = EpisodeTracker(SPEC, num_envs, torch.device("cpu"))  # as after resuming
        tracker.load_state_dict(saved)
        done = tracker.add(
            reward=torch.from_numpy(reward[part]), group_reward=torch.from_numpy(group_reward[part]),
            acted=torch.from_numpy(acted[part]), episode_end=torch.from_numpy(episode_end[part]),
            episode_truncated=torch.from_numpy(truncated[part]),
            metrics=[{"win": torch.from_numpy(win[t])} for t in range(at, at + length)],
        )  # fmt: skip
        if len(done):
            found.append(done)
        expected = [e for e in reference(reward, group_reward, acted, episode_end, win) if at <= e[0] < at + length]
        assert done.env_index.tolist() == [e[1] for e in expected]
        assert done.length.tolist() == [e[4] for e in expected]
        assert done.truncated.tolist() == [bool(truncated[e[0], e[1]]) for e in expected]
        for e, own, group in zip(expected, done.returns, done.group_returns, strict=True):
            assert own.numpy() == pytest.approx(e[2], abs=1e-9)
            assert group.numpy() == pytest.approx(e[3], abs=1e-9)
        if expected:
            assert done.metrics["win"].tolist() == [e[5] for e in expected]
        at += length
    if found:
        assert len(FinishedEpisodes.concatenate(found)) == int(episode_end.sum())


FINISHED = FinishedEpisodes(
    returns=torch.tensor([[1.0, 2.0, 10.0], [3.0, 4.0, 20.0]], dtype=torch.float64),
    group_returns=torch.tensor([[100.0, -100.0], [300.0, -300.0]], dtype=torch.float64),
    length=torch.tensor([5, 7]),
    truncated=torch.tensor([False, True]),
    env_index=torch.tensor([0, 1]),
    metrics={"win": torch.tensor([0.0, 1.0])},
)


def test_a_team_earns_its_agents_rewards_and_its_groups_once() -> None:
    red, blue = SPEC.default_teams()
    assert FINISHED.team_return(red).tolist() == [103.0, 307.0]
    assert FINISHED.team_return(blue).tolist() == [-90.0, -280.0]
    both = SPEC.team("both", ("hunter", "prey"))
    assert FINISHED.team_return(both).tolist() == [13.0, 27.0]


def test_the_summary_names_teams_roles_and_agents() -> None:
    red, blue = SPEC.default_teams()
    summary = FINISHED.summary("eval", {"red": red, "blue": blue})
    assert summary == {
        "eval/red/return_mean": 205.0,
        "eval/red/return_std": 102.0,
        "eval/red/return_error": pytest.approx(102.0),
        "eval/red/group_return_mean": 200.0,
        "eval/red/return_mean/hunter": 5.0,
        "eval/red/return_mean/hunter_0": 2.0,
        "eval/red/return_mean/hunter_1": 3.0,
        "eval/blue/return_mean": -185.0,
        "eval/blue/return_std": 95.0,
        "eval/blue/return_error": pytest.approx(95.0),
        "eval/blue/group_return_mean": -200.0,
        "eval/blue/return_mean/prey": 15.0,
        "eval/length_mean": 6.0,
        "eval/episodes": 2,
        "eval/metric/win": 0.5,
        "eval/metric_error/win": pytest.approx(0.5),
    }


def test_the_only_team_is_not_named() -> None:
    summary = FINISHED.summary("rollout", {"both": SPEC.team("both", ("hunter", "prey"))})
    assert summary["rollout/return_mean"] == 20.0
    assert summary["rollout/truncated"] == 0.5
    assert summary["rollout/return_mean/prey"] == 15.0
    groups = {name: value for name, value in summary.items() if "group" in name}
    assert groups == {
        "rollout/group_return_mean": 0.0,
        "rollout/group_return_mean/red": 200.0,
        "rollout/group_return_mean/blue": -200.0,
    }
    assert undeclared(summary) == []


def members(summary: dict[str, float]) -> dict[str, float]:
    return {name.split("/", 2)[2]: value for name, value in summary.items() if name.startswith("rollout/return_mean/")}


def test_members_of_roles_that_only_get_group_rewards_have_no_return() -> None:
    """Otherwise their zeros look like failure. A zero of a single agent of a rewarded role is a result."""
    both = {"both": SPEC.team("both", ("hunter", "prey"))}
    unrewarded = replace(FINISHED, returns=torch.zeros(2, 3, dtype=torch.float64))
    assert members(unrewarded.summary("rollout", both)) == {}
    assert unrewarded.mean_by_agent(both["both"]) == dict.fromkeys(("hunter_0", "hunter_1", "prey"))
    assert unrewarded.summary("rollout", both)["rollout/group_return_mean/red"] == 200.0
    one = replace(FINISHED, returns=torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]], dtype=torch.float64))
    assert members(one.summary("rollout", both)) == {"hunter": 0.0, "hunter_0": 0.0, "hunter_1": 0.0}
    assert one.mean_by_agent(both["both"]) == {"hunter_0": 0.0, "hunter_1": 0.0, "prey": None}
    assert one.rewarded_roles(both.values()) == {"hunter"}


def test_a_role_that_has_been_rewarded_before_keeps_its_zeros() -> None:
    both = {"both": SPEC.team("both", ("hunter", "prey"))}
    unrewarded = replace(FINISHED, returns=torch.zeros(2, 3, dtype=torch.float64))
    assert members(unrewarded.summary("rollout", both, {"prey"})) == {"prey": 0.0}


def test_zeros_are_returns_in_environments_without_group_rewards() -> None:
    spec = replace(SPEC, has_group_reward=False)
    both = {"both": spec.team("both", ("hunter", "prey"))}
    nothing = replace(FINISHED, returns=torch.zeros(2, 3, dtype=torch.float64), group_returns=torch.zeros(2, 2))
    summary = nothing.summary("rollout", both)
    assert members(summary) == dict.fromkeys(("hunter", "hunter_0", "hunter_1", "prey"), 0.0)
    assert not any("group" in name for name in summary)
    assert nothing.mean_by_group(both["both"]) == {}


def test_selected_episodes_keep_their_order() -> None:
    selected = FINISHED.select(torch.tensor([False, True]))
    assert selected.env_index.tolist() == [1]
    assert selected.metrics["win"].tolist() == [1.0]
    assert FinishedEpisodes.concatenate([selected, FINISHED]).length.tolist() == [7, 5, 7]


def test_concatenated_episodes_keep_the_labels_that_all_parts_have() -> None:
    both = replace(FINISHED, labels={"red": torch.tensor([0, 1]), "blue": torch.tensor([2, 3])})
    one = replace(FINISHED, labels={"blue": torch.tensor([4, 5])})
    joined = FinishedEpisodes.concatenate([both, one])
    assert {team: label.tolist() for team, label in joined.labels.items()} == {"blue": [2, 3, 4, 5]}
    assert FinishedEpisodes.concatenate([both, FINISHED]).labels == {}

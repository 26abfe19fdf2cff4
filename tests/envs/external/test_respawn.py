"""Agents whose next life begins in the step that ends their last: flags, slots, wrappers, learning targets."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import pytest
import torch

import coterie
from coterie.checks.environment.contract import check
from coterie.core.types import Step, Timestep
from coterie.envs.contract.traces import random_actions
from coterie.envs.make import make
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from learners import collect_rollout, targets_of
from preset_learners import preset_learner
from tinyruns import shorten_checks

CPU = torch.device("cpu")

ARENA, CROWD = "pettingzoo_worlds:Arena", "pettingzoo_worlds:Crowd"


def played(name: str, steps: int, **params: Any) -> Iterator[tuple[Timestep, Step, Timestep]]:
    """Plays random actions in one environment; yields the timestep before each step, the step, and the one after."""
    env, generator = make(name, params), torch.Generator().manual_seed(0)
    timestep = env.reset(0)
    for _ in range(steps):
        step, after = env.step(random_actions(env.spec, timestep, generator))
        yield timestep, step, after
        timestep = after


def test_a_terminated_agent_that_stays_in_the_environment_begins_a_new_life_at_once():
    """Agents in the order of the spec: fighter_0 lives two steps, fighter_1 three, the guard all twelve."""
    path = list(played(ARENA, 11))
    agents = make(ARENA).spec.agents
    lives = {"fighter_0": 2, "fighter_1": 3}
    for now, (_, step, after) in enumerate(path, 1):
        dies = [now % lives[agent] == 0 if agent in lives else False for agent in agents]
        assert step.terminated[0].tolist() == dies
        assert step.reward[0].tolist() == [float(died) for died in dies]
        assert after.alive.all()
        assert after.first[0].tolist() == dies
        ages = torch.cat([after.obs[role.name][0, :, 0] for role in make(ARENA).spec.roles]).tolist()
        assert ages == [now % lives[agent] if agent in lives else now for agent in agents]


def test_the_step_that_ends_the_episode_begins_no_life():
    _, step, after = list(played(ARENA, 12))[-1]
    assert step.episode_truncated.item()
    assert not after.first.any()
    assert not after.acted.item()


@pytest.mark.parametrize("name", [ARENA, CROWD])
def test_lives_that_follow_at_once_keep_the_contract_of_environments(name: str):
    params = {"max_agents": 3} if name == CROWD else {}
    report = check(lambda num_envs, seed: make(name, params, num_envs, seed), 30, 2)
    assert [finding for finding in report.findings if finding.severity == "error"] == []


def test_a_new_agent_takes_the_slot_that_another_left_in_the_same_step_if_no_other_is_free():
    """One ant joins per step and lives three steps, so that from the third on each takes the slot of the one before."""
    for now, (_, step, after) in enumerate(played(CROWD, 11, max_agents=3), 1):
        assert after.alive[0].tolist() == [now >= k for k in range(3)]
        new = [k == now % 3 for k in range(3)]
        assert after.first[0].tolist() == new
        assert step.terminated[0].tolist() == [k == now % 3 and now >= 3 for k in range(3)]
        assert after.obs["ant"][0, now % 3, 1] == 0


def test_agents_that_the_environment_leaves_in_its_list_after_their_end_stay_dead():
    """Fighter k ends after k + 2 steps and remains terminated. Only the first such end is taken for a new life."""
    path = list(played(ARENA, 24, revives=False))
    fighters = [k for k, agent in enumerate(make(ARENA).spec.agents) if agent != "guard"]
    assert [step.terminated[0, fighters].tolist() for _, step, _ in path[:5]] == [
        [False, False], [True, False], [True, True], [False, False], [False, False],
    ]  # fmt: skip
    second = path[13:]
    assert [step.terminated[0, fighters].tolist() for _, step, _ in second[:4]] == [
        [False, False], [True, False], [False, True], [False, False],
    ]  # fmt: skip
    assert not second[4][2].alive[0, fighters].any()
    assert sum(step.reward[0, fighters].sum().item() for _, step, _ in second) == 2


def test_frames_are_stacked_and_actions_repeated_within_one_life_only():
    for now, (_, _, after) in enumerate(played(ARENA, 11, wrappers={"frame_stack": 2}), 1):
        ages = after.obs["fighter"][0, 0, ::2].tolist()
        assert ages == ([0, 0] if now % 2 == 0 else [0, 1])


def test_a_sticky_action_does_not_reach_the_next_life():
    """With probability 1, an action is repeated for the whole life, so that each life has one."""
    env = make("pettingzoo_worlds:Arena", {"wrappers": {"sticky_actions": 0.99}})
    (instance,) = env.backend._envs.instances  # pyright: ignore[reportAttributeAccessIssue]
    taken: list[int] = []
    inner = instance.inner
    step = inner.step
    inner.step = lambda actions: (taken.append(int(actions[1])), step(actions))[1]
    timestep, generator = env.reset(0), torch.Generator().manual_seed(0)
    chosen = []
    for _ in range(11):
        action = random_actions(env.spec, timestep, generator)
        chosen.append(int(action["fighter"].discrete[0, 0, 0]))
        _, timestep = env.step(action)
    assert taken[::2] == chosen[::2], "the first action of each life of two steps is the policy's"
    assert taken[1::2] == taken[:-1:2]


@pytest.mark.parametrize(("name", "rnn"), [("mappo", "gru"), ("mat", "none"), ("qmix", "gru"), ("masac", "none")])
def test_algorithms_of_every_kind_learn_from_lives_that_follow_at_once(name: str, rnn: str):
    env = make(ARENA, {"teams": "shared"}, 8)
    algorithm = preset_learner(name, env, rnn)
    collector = Collector(env, {"all": algorithm.behavior_policy}, seed=0)
    for k in range(2):
        metrics = algorithm.update(collect_rollout(algorithm, collector), k / 2)
        assert all(isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_a_return_ends_with_its_life(name: str):
    """A fighter of lives of two steps gets 1 when it dies. With lambda 1, its targets are gamma and 1 in turn."""
    env = make(ARENA, {"fighters": 1}, 2)
    team = next(team for team in env.spec.default_teams() if team.name == "fighter")
    learner = preset_learner(name, env, "none", team, gamma=0.9, gae_lambda=1.0, normalize_value=False)
    policies = {t.name: learner.policy if t == team else RandomPolicy(t, CPU) for t in env.spec.default_teams()}
    rollout = Collector(env, policies, seed=0).advance(10)[0]["fighter"]
    target = targets_of(learner, rollout).batch.target.reshape(10, 2)
    torch.testing.assert_close(target, torch.tensor([0.9, 1.0] * 5)[:, None].expand(10, 2))


@pytest.mark.parametrize("revives", [True, False])
def test_check_env_names_agents_that_are_not_removed(revives: bool, monkeypatch: pytest.MonkeyPatch):
    shorten_checks(monkeypatch)
    found = {finding.name for finding in coterie.check_env(ARENA, revives=revives).findings}
    assert ("agents-not-removed" in found) == (not revives)

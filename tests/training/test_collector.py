"""Collection: consecutive rollouts, finished episodes, and environments that cannot be restored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.core.types import TIME_LEFT, Step
from coterie.kernels import native
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from coterie.training.rollout_builder import mask_rewards, truncate_before_lost
from coterie.training.trajectory import inference_context
from tinyruns import all_finite
from worlds import Counter

CPU = torch.device("cpu")


def collector(num_envs: int = 3, **settings: Any) -> Collector:
    env = Counter(num_envs, 0, "cpu", **settings)
    return Collector(env, {team.name: RandomPolicy(team, CPU) for team in env.spec.default_teams()}, seed=1)


def test_a_rollout_starts_with_the_last_timestep_of_the_previous_one() -> None:
    collect = collector()
    one, _ = collect.advance(4)
    two, _ = collect.advance(4)
    assert one["walkers"].rollout_length == 4
    assert one["walkers"].num_envs == 3
    assert torch.equal(one["walkers"].obs["walker"][-1], two["walkers"].obs["walker"][0])
    assert torch.equal(one["walkers"].first[-1], two["walkers"].first[0])


def test_the_successor_of_an_acted_timestep_is_the_next_timestep() -> None:
    rollout = collector(limit=3).advance(9)[0]["walkers"]
    age = rollout.state["global"][:, 0, 0]
    assert age.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert rollout.acted[:, 0].tolist() == [True, True, True, False, True, True, True, False, True, True]
    assert rollout.episode_truncated[:, 0].tolist() == [age == 2 for age in age[:-1].tolist()]


@pytest.mark.parametrize("rollouts", [(9,), (4, 5), (3, 6)])
def test_rollouts_contain_the_fraction_of_the_step_limit_that_is_left(rollouts: tuple[int, ...]) -> None:
    """Wherever rollouts start; a final timestep that starts one is the end of an episode that is over."""
    collect = collector(limit=4)
    parts = [collect.advance(length)[0]["walkers"].state[TIME_LEFT][:, 0, 0] for length in rollouts]
    left = torch.cat([*(part[:-1] for part in parts), parts[-1][-1:]])
    assert left.tolist() == [1, 0.75, 0.5, 0.25, 0, 1, 0.75, 0.5, 0.25, 0]
    assert [part[-1] for part in parts[:-1]] == [part[0] for part in parts[1:]]


def test_there_is_no_time_left_without_a_limit() -> None:
    assert TIME_LEFT not in collector(staggered=True).advance(3)[0]["walkers"].state


def test_only_acted_timesteps_count_as_steps() -> None:
    assert int(collector(limit=3).advance(8)[1]) == 3 * 6


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e6])
def test_masked_entries_of_rollouts_are_zero_and_do_not_count(fill: float) -> None:
    collect = collector(limit=6, agents_can_die=True, fill=fill)
    rollout = collect.advance(14)[0]["walkers"]
    assert not rollout.alive.all()
    assert all_finite([rollout.obs, rollout.reward, rollout.group_reward])
    assert rollout.obs["walker"][~rollout.alive].abs().max() == 0
    assert rollout.reward[~rollout.alive[:-1]].abs().max() == 0
    assert rollout.reward[~rollout.acted[:-1]].abs().max() == 0
    assert rollout.group_reward[~rollout.acted[:-1]].abs().max() == 0
    finished = collect.pop_finished()
    assert finished is not None
    assert finished.returns.tolist() == [[6.0, 8.0]] * 6
    assert finished.group_returns.tolist() == [[3.0]] * 6
    assert collect.pop_finished() is None


def observed_by_the_second(collect: Collector, *rollouts: int) -> list[bool]:
    """Returns the timesteps in which walker_1 observes anything in environment 0, over several rollouts."""
    timesteps = [collect.advance(steps)[0]["walkers"].obs["walker"][:-1, 0, 1] for steps in rollouts]
    assert all_finite(timesteps)
    return (torch.cat(timesteps) != 0).any(-1).tolist()


@pytest.mark.parametrize("rollouts", [(7,), (2, 5), (3, 4), (1,) * 7])
def test_an_agent_truncated_alone_is_observed_once_more_wherever_rollouts_start(rollouts: tuple[int, ...]) -> None:
    settings: dict[str, Any] = {"limit": 6, "agents_can_die": True, "fill": float("nan")}
    assert observed_by_the_second(collector(**settings, recalled=True), *rollouts) == [True] * 3 + [False] + [True] * 3
    assert observed_by_the_second(collector(**settings), *rollouts) == [True] * 2 + [False] * 2 + [True] * 3


def test_an_agent_truncated_alone_is_observed_once_more_after_resuming() -> None:
    settings: dict[str, Any] = {"limit": 6, "agents_can_die": True, "fill": float("nan"), "recalled": True}
    one, other, control = (collector(**settings) for _ in range(3))
    one.advance(2)
    state = one.state_dict()
    other.load_state_dict(state)
    assert observed_by_the_second(other, 3) == [True, False, True]
    control.load_state_dict(state | {"truncated_agents": None})
    assert observed_by_the_second(control, 3) == [False, False, True]
    one.restart()
    assert observed_by_the_second(one, 5) == [True] * 3 + [False, True]


def test_rewards_are_masked_where_agents_are_dead_or_do_not_act() -> None:
    reward = torch.tensor([[[1.0, torch.nan], [torch.inf, 2.0]]])
    acted, alive = torch.tensor([[True, False]]), torch.tensor([[[True, False], [True, True]]])
    assert mask_rewards(reward, acted, alive).tolist() == [[[1.0, 0.0], [0.0, 0.0]]]


def test_a_collector_resumes_from_a_saved_state() -> None:
    whole, parts = collector(), collector()
    whole.advance(7)
    parts.advance(7)
    other = collector()
    other.load_state_dict(parts.state_dict())
    one, two = whole.advance(7)[0]["walkers"], other.advance(7)[0]["walkers"]
    for name in ("obs", "reward", "action", "first", "acted"):
        assert str(getattr(one, name)) == str(getattr(two, name))
    finished, again = whole.pop_finished(), other.pop_finished()
    assert finished is not None
    assert again is not None
    assert finished.returns.tolist() == again.returns.tolist()


def test_an_environment_that_cannot_be_restored_starts_new_episodes_with_new_seeds() -> None:
    seeds, timesteps = [], []
    for steps in (7, 14):
        before = collector(exact=False)
        before.advance(steps)
        state = before.state_dict()
        assert state["env"] == {}
        again = collector(exact=False)
        again.load_state_dict(state)
        assert len(again.finished) == 1  # finished episodes that were not returned yet
        rollout = again.advance(3)[0]["walkers"]
        assert rollout.first[0].all()
        assert isinstance(again.env, Counter)
        seeds += again.env.seeds
        timesteps.append(rollout.obs["walker"][0].tolist())
    fresh = collector(exact=False).advance(1)[0]["walkers"].obs["walker"][0].tolist()
    assert None not in seeds
    assert len(set(seeds)) == 2
    assert timesteps[0] != timesteps[1] != fresh != timesteps[0]


@pytest.mark.parametrize(
    ("num_envs", "units", "pytorch", "kernels"),
    [(3, 8, 1, 1), (3, 800, 1, 1), (3, 1024, 1, 2), (3, 4096, 2, 2), (4096, 8, 2, 2)],
)
def test_one_thread_steps_and_acts_if_a_batch_is_little_work(
    num_envs: int, units: int, pytorch: int, kernels: int
) -> None:
    env = Counter(num_envs, 0, "cpu")
    policies = [RandomPolicy(team, CPU) for team in env.spec.default_teams()]
    policies[0].networks = (torch.nn.Linear(units, units),)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with inference_context(env, policies):
            assert (torch.get_num_threads(), native.num_threads()) == (pytorch, kernels)
            assert torch.is_inference_mode_enabled()
        assert (torch.get_num_threads(), native.num_threads()) == (2, 2)
    finally:
        torch.set_num_threads(before)


def test_of_weights_with_a_set_per_agent_kernels_count_one_set_per_agent() -> None:
    env = Counter(3, 0, "cpu")
    policies = [RandomPolicy(team, CPU) for team in env.spec.default_teams()]
    agents = policies[0].team.n
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for units, kernels in ((800, 1), (2048, 2)):
            policies[0].networks = (torch.nn.ParameterList([torch.zeros(agents, units, units)]),)
            assert 3 * agents * agents * units**2 > 1 << 22  # two threads if every agent read all sets
            with inference_context(env, policies):
                assert native.num_threads() == kernels
    finally:
        torch.set_num_threads(before)


def test_a_lost_step_truncates_the_living_agents_of_the_step_before() -> None:
    no = torch.zeros(3, 1, dtype=torch.bool)
    lost, alive = torch.tensor([[False], [False], [True]]), torch.tensor([True, False, True]).expand(3, 1, 3)
    outcome = Step(
        reward=torch.zeros(3, 1, 3),
        group_reward=torch.zeros(3, 1, 1),
        terminated=torch.tensor([False, False, True]).expand(3, 1, 3),
        truncated=no.unsqueeze(-1).expand(3, 1, 3),
        episode_terminated=no,
        episode_truncated=no,
        metrics={},
    )
    changed = truncate_before_lost(outcome, lost, alive)
    assert changed.episode_truncated[:, 0].tolist() == [False, True, False]
    assert changed.truncated[:, 0].tolist() == [[False] * 3, [True, False, False], [False] * 3]
    ended = truncate_before_lost(replace(outcome, episode_terminated=~no), lost, alive)
    assert not ended.episode_truncated.any()
    assert not ended.truncated.any()

"""Collection: windows that follow one upon the other, statistics, and environments that cannot be saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.collect import Collector, due, stepping
from coterie.policy import RandomPolicy
from tinyruns import all_finite
from worlds import Counter

CPU = torch.device("cpu")


def collector(copies: int = 3, **settings: Any) -> Collector:
    env = Counter(copies, 0, "cpu", **settings)
    return Collector(env, {team.name: RandomPolicy(team, CPU) for team in env.spec.default_teams()}, seed=1)


def test_a_window_begins_with_the_row_that_the_one_before_looked_ahead_to() -> None:
    collect = collector()
    one, _ = collect.advance(4)
    two, _ = collect.advance(4)
    assert one["walkers"].horizon == 4
    assert one["walkers"].copies == 3
    assert torch.equal(one["walkers"].obs["walker"][-1], two["walkers"].obs["walker"][0])
    assert torch.equal(one["walkers"].first[-1], two["walkers"].first[0])


def test_the_true_successor_of_an_acted_row_is_the_row_after_it() -> None:
    window = collector(limit=3).advance(9)[0]["walkers"]
    age = window.state["global"][:, 0, 0]
    assert age.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert window.acted[:, 0].tolist() == [True, True, True, False, True, True, True, False, True, True]
    assert window.episode_truncated[:, 0].tolist() == [age == 2 for age in age[:-1].tolist()]


def test_only_acted_rows_are_steps() -> None:
    assert int(collector(limit=3).advance(8)[1]) == 3 * 6


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 1e6])
def test_masked_places_are_zero_in_windows_and_count_for_nothing(fill: float) -> None:
    collect = collector(limit=6, mortal=True, fill=fill)
    window = collect.advance(14)[0]["walkers"]
    assert not window.alive.all()
    assert all_finite([window.obs, window.reward, window.group_reward])
    assert window.obs["walker"][~window.alive].abs().max() == 0
    assert window.reward[~window.alive[:-1]].abs().max() == 0
    assert window.reward[~window.acted[:-1]].abs().max() == 0
    assert window.group_reward[~window.acted[:-1]].abs().max() == 0
    finished = collect.statistics()
    assert finished is not None
    assert finished.returns.tolist() == [[6.0, 8.0]] * 6
    assert finished.group_returns.tolist() == [[3.0]] * 6
    assert collect.statistics() is None


def shown_to_the_second(collect: Collector, *windows: int) -> list[bool]:
    """In which rows walker_1 sees anything in copy 0, window after window."""
    rows = [collect.advance(steps)[0]["walkers"].obs["walker"][:-1, 0, 1] for steps in windows]
    assert all_finite(rows)
    return (torch.cat(rows) != 0).any(-1).tolist()


@pytest.mark.parametrize("windows", [(7,), (2, 5), (3, 4), (1,) * 7])
def test_who_was_cut_alone_is_seen_once_more_wherever_windows_begin(windows: tuple[int, ...]) -> None:
    settings: dict[str, Any] = {"limit": 6, "mortal": True, "fill": float("nan")}
    assert shown_to_the_second(collector(**settings, recalled=True), *windows) == [True] * 3 + [False] + [True] * 3
    assert shown_to_the_second(collector(**settings), *windows) == [True] * 2 + [False] * 2 + [True] * 3


def test_who_was_cut_alone_is_seen_once_more_by_who_takes_up_there() -> None:
    settings: dict[str, Any] = {"limit": 6, "mortal": True, "fill": float("nan"), "recalled": True}
    one, other, older = (collector(**settings) for _ in range(3))
    one.advance(2)
    state = one.state_dict()
    other.load_state_dict(state)
    assert shown_to_the_second(other, 3) == [True, False, True]
    older.load_state_dict({name: value for name, value in state.items() if name != "cut"})
    assert shown_to_the_second(older, 3) == [False, False, True]
    one.restart()
    assert shown_to_the_second(one, 5) == [True] * 3 + [False, True]


def test_rewards_are_due_to_those_who_live_and_act() -> None:
    reward = torch.tensor([[[1.0, torch.nan], [torch.inf, 2.0]]])
    acted, alive = torch.tensor([[True, False]]), torch.tensor([[[True, False], [True, True]]])
    assert due(reward, acted, alive).tolist() == [[[1.0, 0.0], [0.0, 0.0]]]


def test_a_collector_takes_up_where_another_was_saved() -> None:
    whole, parts = collector(), collector()
    whole.advance(7)
    parts.advance(7)
    other = collector()
    other.load_state_dict(parts.state_dict())
    one, two = whole.advance(7)[0]["walkers"], other.advance(7)[0]["walkers"]
    for name in ("obs", "reward", "action", "first", "acted"):
        assert str(getattr(one, name)) == str(getattr(two, name))
    joined, again = whole.statistics(), other.statistics()
    assert joined is not None
    assert again is not None
    assert joined.returns.tolist() == again.returns.tolist()


def test_an_environment_that_cannot_be_saved_begins_new_episodes_from_seeds_of_their_own() -> None:
    seeds, rows = [], []
    for steps in (7, 14):
        before = collector(exact=False)
        before.advance(steps)
        state = before.state_dict()
        assert state["env"] == {}
        again = collector(exact=False)
        again.load_state_dict(state)
        assert len(again.finished) == 1  # episodes that ended and were not told yet
        window = again.advance(3)[0]["walkers"]
        assert window.first[0].all()
        assert isinstance(again.env, Counter)
        seeds += again.env.seeds
        rows.append(window.obs["walker"][0].tolist())
    fresh = collector(exact=False).advance(1)[0]["walkers"].obs["walker"][0].tolist()
    assert None not in seeds
    assert len(set(seeds)) == 2
    assert rows[0] != rows[1] != fresh != rows[0]


@pytest.mark.parametrize(("copies", "units", "alone"), [(3, 8, True), (3, 4096, False), (4096, 8, False)])
def test_one_thread_steps_and_acts_where_a_row_of_all_copies_is_little_work(
    copies: int, units: int, alone: bool
) -> None:
    env = Counter(copies, 0, "cpu")
    policies = [RandomPolicy(team, CPU) for team in env.spec.default_teams()]
    policies[0].networks = (torch.nn.Linear(units, units),)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with stepping(env, policies):
            assert torch.get_num_threads() == (1 if alone else 2)
            assert torch.is_inference_mode_enabled()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

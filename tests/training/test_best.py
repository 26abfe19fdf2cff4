"""The choice of the best checkpoints."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie.core.errors import UserError
from coterie.training.best import Best, BestChoice, best_rules


def choice(setting: str = "auto", min_episodes: int = 20, **more: Any) -> BestChoice:
    teams = more.pop("teams", ["red", "blue"])
    found = best_rules(
        setting,
        min_episodes,
        teams=teams,
        learners=more.pop("learners", teams),
        env_metrics=["won"],
        has_group_reward=False,
        ratings=more.pop("ratings", {}),
    )
    return BestChoice(found, task=0)


def entry(red: float, blue: float = 0.0, episodes: int = 20, won: float = 0.0) -> dict[str, float]:
    return {
        "eval/red/return_mean": red,
        "eval/blue/return_mean": blue,
        "eval/metric/won": won,
        "eval/episodes": episodes,
    }


BOTH = ("red", "blue")


def test_every_team_has_its_own_best_and_the_run_follows_the_first() -> None:
    best = choice()
    assert best.add(entry(1, 5), task=0, trained=BOTH) == Best(True, BOTH)
    assert best.add(entry(2, 4), task=0, trained=BOTH) == Best(True, ("red",))
    assert best.add(entry(1, 6), task=0, trained=BOTH) == Best(False, ("blue",))
    assert not best.add(entry(2, 6), task=0, trained=BOTH)  # not better


def test_nothing_is_the_best_before_training_or_with_too_few_episodes() -> None:
    best = choice()
    assert not best.add(entry(100, 100), task=0, trained=())
    assert not best.add(entry(99, 99, episodes=19), task=0, trained=BOTH)
    assert not best.only()
    assert best.add(entry(1, 1), task=0, trained=["blue"]) == Best(False, ("blue",))
    assert best.only() == Best(False, ("blue",))


@pytest.mark.parametrize(
    ("setting", "metric", "team"),
    [
        ("blue/return_mean", "eval/blue/return_mean", "blue"),
        ("eval/blue/return_mean", "eval/blue/return_mean", "blue"),
        ("metric/won", "eval/metric/won", None),
        ("blue/metric/won", "eval/metric/won", "blue"),
    ],
)
def test_the_setting_names_a_metric(setting: str, metric: str, team: str | None) -> None:
    rule = choice(setting).rules.run
    assert (rule.metric, rule.team) == (metric, team)


def test_the_chosen_metric_also_chooses_the_best_of_its_team() -> None:
    best = choice("-blue/metric/won")
    assert best.rules.describe() == {"": "-eval/metric/won", "red": "eval/red/return_mean", "blue": "-eval/metric/won"}
    assert best.add(entry(1, 1, won=0.5), task=0, trained=BOTH) == Best(True, BOTH)
    assert not best.add(entry(1, 9, won=0.7), task=0, trained=BOTH)
    assert best.add(entry(1, 0, won=0.2), task=0, trained=BOTH) == Best(True, ("blue",))


def test_a_single_team_may_be_named_or_not() -> None:
    for setting in ("return_mean", "red/return_mean"):
        found = choice(setting, teams=["red"]).rules
        assert (found.run.metric, found.run.team, found.teams) == ("eval/return_mean", "red", {})


@pytest.mark.parametrize("setting", ["green/return_mean", "red/retrun_mean", "metric/lost", "return_mean"])
def test_a_metric_that_is_never_logged_is_refused(setting: str) -> None:
    with pytest.raises(UserError, match=rf"eval\.best={setting}: the best checkpoint waits for the metric"):
        choice(setting)


def test_self_play_rates_the_run_by_the_sum_and_each_team_by_its_own_rating() -> None:
    rating = {"red": 10.0, "blue": 20.0}
    functions = {name: (lambda name=name: rating[name]) for name in rating}
    best = choice(ratings=functions)
    assert best.add(entry(0), task=0, trained=BOTH) == Best(True, BOTH)
    rating["red"] = 15.0
    assert best.add(entry(0), task=0, trained=BOTH) == Best(True, ("red",))
    assert choice("red/elo", ratings=functions).rules.run.metric == "selfplay/red/elo"


def test_another_task_starts_again_and_the_state_is_restored() -> None:
    best = choice()
    best.add(entry(5, 5), task=0, trained=BOTH)
    other = choice()
    other.restore({"best": best.state_dict()}, best_steps=100)
    assert not other.add(entry(4, 4), task=0, trained=BOTH)
    assert other.add(entry(1, 1), task=1, trained=BOTH) == Best(True, BOTH)


@pytest.mark.parametrize(("best_steps", "kept"), [(100, True), (0, False)])
def test_the_value_of_an_older_run_counts_unless_it_is_that_of_step_0(best_steps: int, kept: bool) -> None:
    best = choice()
    best.restore({"best": 5.0, "task": 0}, best_steps)
    assert best.add(entry(4), task=0, trained=BOTH).of_run == (not kept)
    best.restore({"best": -math.inf, "task": 0}, best_steps)
    assert best.add(entry(9), task=0, trained=BOTH).of_run

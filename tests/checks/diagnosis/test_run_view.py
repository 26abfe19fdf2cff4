"""Series, teams and phrases of the view of a run."""

from __future__ import annotations

import math

from coterie.checks.diagnosis.run_view import Series, plain, show, view_run
from runviews import CLIPPED, LEARNING, STUCK, view


def test_a_series_has_a_start_an_end_and_medians() -> None:
    series = Series(tuple(range(20)), (*[1.0, 3.0], *[5.0] * 16, *[7.0, 9.0]))
    assert (series.start(), series.end(), series.last(), series.max()) == (2.0, 8.0, 9.0, 9.0)
    assert (series.median(), series.median(since=0.9)) == (5.0, 8.0)
    assert math.isnan(Series().median())


def test_metrics_and_settings_belong_to_teams() -> None:
    settings = {"algo.name": "ppo", "algo.lr": 1.0, "teams.red.algo.name": "ppo", "teams.red.algo.lr": 2.0, "steps": 9}
    rows = [
        {"steps": 1, "loss/red/policy": 1.0, "loss/blue/policy": 2.0, "time/wall_s": 3.0},
        {"steps": 2, "eval/green/return_mean": 4.0, "loss/red/policy": None},
    ]
    run = view_run(settings, rows, ["red", "blue", "green"], manifest={"random": {"red": 7.0}})
    assert [(team.name, team.number("lr"), team.key("lr", 0.5)) for team in run.teams] == [
        ("red", 2.0, "teams.red.algo.lr=0.5 (now 2)"),
        ("blue", 1.0, "algo.lr=0.5 (now 1)"),
    ]
    assert [team.series("loss/policy").values for team in run.teams] == [(1.0,), (2.0,)]
    assert run.series("time/wall_s").values == (3.0,)
    assert (run.steps, run.total) == (2, 9)
    assert not any(team.alone for team in run.teams)
    assert run.teams[0].random_return == 7.0
    assert math.isnan(run.teams[1].random_return)


def test_a_run_is_stuck_if_its_return_stays() -> None:
    stuck, learning = view(STUCK, CLIPPED).teams[0], view(LEARNING, CLIPPED).teams[0]
    assert (stuck.is_stuck, learning.is_stuck) == (True, False)
    assert (stuck.improvement, learning.improvement) == (0.0, 9.0)
    against_itself = view(STUCK, CLIPPED, selfplay__opponents="uniform").teams[0]
    assert not against_itself.is_stuck
    assert stuck.progress() == " while the return went from 5 to 5"


def test_a_warm_start_is_compared_with_the_random_policy() -> None:
    rows = [{"steps": k, "loss/policy": 0.0, "rollout/return_mean": 5.0, "rollout/return_std": 1.0} for k in range(9)]
    run = view_run({"algo.name": "ppo", "steps": 9}, rows, ["agent"], manifest={"random": {"agent": 2.0}})
    assert run.teams[0].improvement == 3.0
    assert not run.teams[0].is_stuck


def test_settings_can_be_typed_and_numbers_read() -> None:
    assert [plain(x) for x in (None, True, 0.01, 20_000, 1e-8, "std")] == [
        "null",
        "true",
        "0.01",
        "20000",
        "1e-08",
        "std",
    ]
    assert [show(x) for x in (0.01, 20_000.0, 999.7, 1e12, math.nan)] == [
        "0.01",
        "20,000",
        "1e+03",
        "1,000,000,000,000",
        "unknown",
    ]

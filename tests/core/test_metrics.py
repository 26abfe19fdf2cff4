"""Metric declarations."""

from __future__ import annotations

import pytest

from coterie.core import metrics
from coterie.core.metrics import Metric, by_team, declare, lookup, undeclared


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(metrics, "_declared", {})
    declare(
        Metric("steps", "steps", "Environment steps."),
        Metric("eval/return_mean", "reward", "Mean return of evaluation episodes.", better="up"),
        Metric("rollout/return_mean", "reward", "Mean return of training episodes.", better="up"),
        Metric("rollout/metric", "", "An environment's own metric."),
        Metric("loss/value", "", "Value loss.", better="down", combine="sum"),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("steps", "steps"),
        ("eval/return_mean", "eval/return_mean"),
        ("eval/adversary/return_mean", "eval/return_mean"),
        ("rollout/return_mean/adversary_0", "rollout/return_mean"),
        ("rollout/adversary/return_mean/adversary_0", "rollout/return_mean"),
        ("rollout/metric/win", "rollout/metric"),
        ("rollout/good/metric/win", "rollout/metric"),
    ],
)
def test_lookup_ignores_teams_and_agents(name, expected):
    metric = lookup(name)
    assert metric is not None
    assert metric.name == expected


@pytest.mark.parametrize("name", ["", "eval", "return_mean", "evil/return_mean", "eval/a/b/return_mean", "steps/x/y/z"])
def test_lookup_of_an_undeclared_name_is_none(name):
    assert lookup(name) is None


def test_undeclared_keeps_the_order():
    assert undeclared(["loss/x", "steps", "eval/a/return_mean", "b"]) == ["loss/x", "b"]


def test_an_equal_declaration_is_allowed_but_not_a_different_one():
    declare(Metric("loss/value", "", "Value loss.", better="down", combine="sum"))
    with pytest.raises(ValueError, match="declared twice and differently"):
        declare(Metric("loss/value", "", "Value loss."))


@pytest.mark.parametrize("name", ["", "Loss/x", "loss//x", "loss/", "loss x", "/loss"])
def test_a_malformed_name_is_an_error(name):
    with pytest.raises(ValueError, match="metric name"):
        Metric(name, "", "")


def test_invalid_better_and_combine_are_errors():
    with pytest.raises(ValueError, match="better is 'higher'"):
        Metric("a/b", "", "", better="higher")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="combine is 'median'"):
        Metric("a/b", "", "", combine="median")  # type: ignore[arg-type]


def test_values_by_team_exclude_agents_and_roles():
    row = {
        "steps": 3,
        "eval/return_mean": 1.0,
        "eval/return_mean/agent_0": 2.0,
        "eval/red/return_mean": 3.0,
        "eval/red/return_mean/a": 4.0,
        "evals/blue/return_mean": 5.0,
        "rollout/red/return_mean": 6.0,
        "eval/length_mean": 7.0,
    }
    assert by_team(row, "eval/return_mean") == {"": 1.0, "red": 3.0}
    assert by_team(row, "rollout/return_mean") == {"red": 6.0}
    assert by_team(row, "loss/value") == {}

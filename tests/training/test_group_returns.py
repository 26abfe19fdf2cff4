"""Returns of groups and of their members: in the log, in evaluations and in what commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.__main__ import main
from coterie.commands import train as training
from coterie.core.metrics import undeclared
from tinyruns import assert_same, checkpoint_state, log_entries, stop_at, train

WORLDS = ("coop/pushblock", "probe/sum", "skirmish/3m_duel")
"""Built-in worlds whose agents get group rewards only: one group, roles, and two teams."""


def evaluated(env: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """Returns the report of the random policy, and what the command prints without `--json`."""
    command = ["evaluate", "algo=random", f"env={env}", "threads=1", "device=cpu", "--episodes", "4", *words]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert main(command) == 0
    return report, capsys.readouterr().out


def report_agents(report: dict[str, Any]) -> list[str]:
    return [agent for team in report["teams"].values() for agent in team["return_by_agent"]]


@pytest.mark.parametrize("env", WORLDS)
def test_an_evaluation_shows_the_group_and_no_zeros_of_members(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    report, text = evaluated(env, capsys)
    for team in report["teams"].values():
        assert team["return_mean"] == pytest.approx(sum(team["return_by_group"].values()))
        assert len(team["return_by_group"]) >= 1
        assert set(team["return_by_agent"].values()) == {None}
    assert "no rewards of their own, only those of their groups" in text
    assert "group rewards" in text
    assert not any(line.split()[:1] == [agent] for line in text.splitlines() for agent in report_agents(report))


def test_an_evaluation_shows_own_and_group_rewards_apart(capsys: pytest.CaptureFixture[str]) -> None:
    report, text = evaluated("worlds:counter", capsys)  # five steps of 1, 2 and, for the group, 0.5
    team = report["teams"]["walkers"]
    assert (team["return_by_group"], team["return_by_agent"]) == ({"walkers": 2.5}, {"walker_0": 5.0, "walker_1": 10.0})
    assert team["return_mean"] == 17.5
    assert "return per agent, own rewards" in text
    assert "return of group rewards" in text


def test_an_evaluation_without_group_rewards_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    report, text = evaluated("foraging/8x8-2p-2f", capsys, "env.episode_limit=2")
    (team,) = report["teams"].values()
    assert team["return_by_group"] == {}
    assert None not in team["return_by_agent"].values()
    assert "group" not in text


@pytest.mark.parametrize("env", ["coop/pushblock", "worlds:counter"])
def test_the_log_has_the_return_of_the_group(env: str, tmp_path: Path) -> None:
    settings = ("env.pay=0",) if env == "worlds:counter" else ("env.episode_limit=5",)
    train(tmp_path / "run", f"env={env}", *settings, "algo=poca")
    rows = log_entries(tmp_path / "run")
    names = {name for row in rows for name in row}
    assert undeclared(names) == []
    for row in rows:
        for area in ("rollout", "eval"):
            assert row.get(f"{area}/group_return_mean") == row.get(f"{area}/return_mean")
    assert {"rollout/group_return_mean", "eval/group_return_mean"} <= names
    assert not any(name.startswith(("rollout/return_mean/", "eval/return_mean/")) for name in names)


def test_the_log_has_own_and_group_rewards_apart(tmp_path: Path) -> None:
    train(tmp_path / "run", "env=worlds:counter")
    for row in log_entries(tmp_path / "run"):
        for area in (area for area in ("rollout", "eval") if f"{area}/episodes" in row):
            found = {name.removeprefix(f"{area}/"): x for name, x in row.items() if "return_mean" in name}
            assert found == {
                "return_mean": 17.5,
                "group_return_mean": 2.5,
                "return_mean/walker": 15.0,
                "return_mean/walker_0": 5.0,
                "return_mean/walker_1": 10.0,
            }


def test_a_run_remembers_who_was_rewarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that gets nothing for a while keeps its zeros in the log, also in a resumed run."""
    settings = ("env=partial_rewards:once", "steps=160", "eval.every=40")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, *settings)
    with monkeypatch.context() as patched:
        stop_at(patched, 80)
        train(parts, *settings)
    training.resume(parts, [])
    rows = log_entries(whole)
    assert log_entries(parts) == rows
    assert_same(checkpoint_state(whole), checkpoint_state(parts))
    shown = [row.get("rollout/return_mean/walker_0") for row in rows if "rollout/episodes" in row]
    assert shown == [None, 2.5, 2.5, 0.0, 0.0]
    evaluations = [row.get("eval/return_mean/walker_0") for row in rows if "eval/episodes" in row]
    assert len(evaluations) > 2
    assert evaluations == [None, *[0.0] * (len(evaluations) - 1)]

"""Evaluation of a run with other settings, numbers of agents and opponents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.__main__ import main
from tinyruns import train

LINE = ("env=particle/simple_line", "env.agents=2", "env.episode_limit=5")
TAG = ("env=particle/simple_tag", "algo=ippo", "env.episode_limit=5")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generalization")
    train(folder / "shared", *LINE, "algo=ippo", "algo.obs_agent_id=false")
    train(folder / "recurrent", *LINE, "algo=mappo", "algo.obs_agent_id=false", "algo.rnn=gru")
    train(folder / "ids", *LINE, "algo=ippo", "algo.obs_agent_id=true")
    train(folder / "separate", *LINE, "algo=ippo", "algo.share_params=none")
    train(folder / "tag", *TAG)
    train(folder / "rps", "env=matrix/rock_paper_scissors", "algo=ippo", "selfplay.opponents=latest")
    return folder


def evaluated(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["evaluate", str(run), "--episodes", "4", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def refused(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["evaluate", str(run), "--episodes", "4", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "checkpoint:" not in line]
    assert len(lines) == 1
    return lines[0]


def test_other_parameters_change_the_environment(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluated(runs / "shared", capsys, "env.episode_limit=7")
    assert report["teams"]["agent"]["length_mean"] == 7
    assert report["overrides"] == ["env.episode_limit=7"]
    assert evaluated(runs / "shared", capsys)["teams"]["agent"]["length_mean"] == 5


@pytest.mark.parametrize("name", ["shared", "recurrent"])
def test_a_shared_policy_acts_for_other_numbers_of_agents(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = evaluated(runs / name, capsys, "env.agents=4")
    assert list(report["teams"]["agent"]["return_by_agent"]) == [f"agent_{i}" for i in range(4)]
    same = coterie.evaluate(runs / name, episodes=4, **{"env.agents": 4})
    assert same["teams"] == report["teams"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ids", "reads the number of each agent. Train with algo.obs_agent_id=false"),
        ("separate", "has parameters for each of them. Train with algo.share_params=role algo.obs_agent_id=false"),
    ],
)
def test_a_policy_of_a_fixed_number_of_agents_is_refused(
    name: str, why: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(runs / name, capsys, "env.agents=4")
    assert "env.agents=4: role 'agent' has 4 agents there, but its policy was trained with 2 and " + why in line


def test_spaces_that_do_not_fit_are_refused_with_role_and_sizes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(runs / "tag", capsys, "env.obstacles=4")
    assert "env.obstacles=4: role 'adversary' observes 20 numbers" in line
    assert "its policy was trained on an agent that observes 16 numbers" in line
    line = refused(runs / "shared", capsys, "--env", "particle/simple")
    assert "env=particle/simple: role 'agent' observes" in line


def test_opponents_are_random_scripted_or_of_another_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = evaluated(runs / "tag", capsys)["teams"]["adversary"]
    random = evaluated(runs / "tag", capsys, "teams.agent.algo=random")["teams"]["adversary"]
    scripted = evaluated(runs / "tag", capsys, "teams.agent.algo=scripted")["teams"]["adversary"]
    frozen = ("teams.agent.algo=frozen", f"teams.agent.run={runs / 'tag'}")
    again = evaluated(runs / "tag", capsys, *frozen)["teams"]["adversary"]
    assert set(random) == set(scripted) == set(own)
    assert again == own  # the same policy plays the opponent


def test_a_side_of_self_play_is_replaced(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for team in ("row", "column"):
        report = evaluated(runs / "rps", capsys, f"teams.{team}.algo=random")
        assert set(report["teams"]) == {"row", "column"}


def test_an_untrained_opponent_is_a_warning(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(runs / "tag"), "--episodes", "4", "teams.agent.algo=mappo"]) == 0
    assert "teams.agent.algo=mappo: learns, and its networks are not trained here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algo.lr=1", "algo.lr: cannot be combined with a run, which has its own. Only env=NAME, env.KEY=..."),
        ("teams.prey.algo=random", "teams.prey"),
        ("env.obstacle=4", "env.obstacle: no such setting. Did you mean 'env.obstacles'"),
    ],
)
def test_other_settings_are_refused_in_one_line(
    word: str, message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(runs / "tag", capsys, word)


def test_sampled_parameters_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", *LINE, "algo=ippo", "randomize.speed=0.5")
    report = evaluated(tmp_path / "run", capsys, "randomize.speed=1.0")
    assert report["overrides"] == ["randomize.speed=1.0"]


def test_errors_and_intervals_are_those_of_the_mean(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    team = evaluated(runs / "tag", capsys)["teams"]["adversary"]
    low, high = team["return_interval"]
    assert (low + high) / 2 == pytest.approx(team["return_mean"])
    assert (high - low) / 2 == pytest.approx(1.959964 * team["return_error"])
    assert main(["evaluate", str(runs / "tag"), "--episodes", "4"]) == 0
    shown = capsys.readouterr().out
    assert "95% interval" in shown
    assert " to " in shown
    assert "adversary_0" in shown

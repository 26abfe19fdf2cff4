"""Runs of two teams with algorithms of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import run
from coterie.errors import UserError
from coterie.metrics import undeclared
from tinyruns import assert_same, rows_of, state_of, tiny, train

pytestmark = pytest.mark.usefixtures("without_curves")

TAG = ("env=particle/simple_tag", "algo=mappo", "steps=160")


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    train(tmp_path / "trained", *TAG)
    return tmp_path / "trained"


def names_of(out: Path) -> set[str]:
    return {name for row in rows_of(out) for name in row}


def learners_of(out: Path) -> dict[str, Any]:
    return state_of(out)["algorithms"]


def test_both_teams_learn_and_metrics_bear_their_names(trained: Path) -> None:
    names = names_of(trained)
    for team in ("adversary", "agent"):
        for name in ("loss/{}/policy", "policy/{}/entropy", "eval/{}/return_mean", "rollout/{}/return_mean"):
            assert name.format(team) in names
    assert "eval/return_mean" not in names
    assert undeclared(sorted(names)) == []
    assert {"optimiser", "critic"} <= learners_of(trained)["agent"].keys() & learners_of(trained)["adversary"].keys()


def test_a_team_learns_against_one_that_acts_at_random(tmp_path: Path) -> None:
    train(tmp_path / "run", *TAG, "teams.agent.algo=random")  # whose horizon is another
    names = names_of(tmp_path / "run")
    assert "loss/adversary/policy" in names
    assert "eval/agent/return_mean" in names
    assert not any(name.startswith("loss/agent") for name in names)
    assert undeclared(sorted(names)) == []


def test_teams_that_all_act_at_random_are_logged(tmp_path: Path) -> None:
    settings = ("env=particle/simple_tag", "algo=random", "algo.horizon=30", "steps=400")
    out = tmp_path / "run"
    run.train(run_config(out, *settings))
    assert {"rollout/adversary/return_mean", "eval/agent/return_mean"} <= names_of(out)
    assert undeclared(sorted(names_of(out))) == []


def run_config(out: Path, *settings: str) -> Any:
    from coterie.config import resolve

    known = [s for s in tiny(*settings) if not s.startswith(("algo.hidden", "algo.epochs", "algo.minibatches"))]
    return resolve([*known, f"out={out}"])


def test_a_frozen_team_acts_as_it_was_trained_and_does_not_change(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, *TAG, f"teams.agent.run={trained}", "teams.agent.algo.checkpoint=last")
    assert_same(learners_of(out)["agent"]["policy"], learners_of(trained)["agent"]["policy"])
    assert "loss/adversary/policy" in names_of(out)
    assert undeclared(sorted(names_of(out))) == []
    with pytest.raises(UserError, match="has done its 160 steps"):
        run.resume(out, [])
    run.resume(out, ["steps=320"])
    assert_same(learners_of(out)["agent"]["policy"], learners_of(trained)["agent"]["policy"])


def test_another_team_of_a_run_can_be_frozen_by_name(trained: Path, tmp_path: Path) -> None:
    settings = ("teams.adversary.run=" + str(trained), "teams.adversary.algo.team=adversary")
    train(tmp_path / "run", *TAG, *settings)
    assert "loss/agent/policy" in names_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("teams.agent.run={}", "teams.agent.algo.team=adversary"), "name the right one with teams.agent.algo.team"),
        (("teams.agent.run={}", "teams.agent.algo.team=wolf"), "has no team 'wolf': choose from adversary, agent"),
        (
            ("teams.agent.run={}", "env.obstacles=3"),
            r"observe \(16,\) .* trained with .* observe \(14,\)",
        ),
    ],
)
def test_a_wrong_frozen_run_is_one_line(settings: tuple[str, ...], message: str, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        train(tmp_path / "run", *TAG, *(setting.format(trained) for setting in settings))
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_teams_whose_windows_do_not_fit_together_get_longer_ones(tmp_path: Path) -> None:
    """A policy gradient beside values from a replay, as their presets have them, and a line that says what was done."""
    from coterie.build import algorithms, known_teams
    from coterie.config import resolve

    config = resolve([*TAG, "algo.horizon=128", "teams.agent.algo=qmix", "device=cpu"]).config
    learners = algorithms(config, known_teams(config, torch.device("cpu")), torch.device("cpu"))
    assert (learners["adversary"].horizon, learners["agent"].horizon) == (130, 26)
    assert "windows of 130 rows, not 128: a multiple of the shortest of all teams" in learners["adversary"].notes
    assert not any("rows, not" in line for line in learners["agent"].notes)
    train(tmp_path / "run", *TAG, "teams.agent.algo.horizon=15")
    assert {"loss/agent/policy", "loss/adversary/policy"} <= names_of(tmp_path / "run")


def test_one_team_of_both_sides(tmp_path: Path) -> None:
    train(tmp_path / "run", *TAG, "teams.all.roles=[adversary,agent]")
    names = names_of(tmp_path / "run")
    assert {"eval/return_mean", "eval/return_mean/adversary", "eval/return_mean/adversary_0", "loss/policy"} <= names
    assert undeclared(sorted(names)) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            (*TAG, "env.actions=continuous", "teams.agent.algo=qmix"),
            r"^algo=qmix does not .* choose another algorithm, teams\.agent\.algo=NAME \(coterie list algos\)$",
        ),
        (
            ("env=particle/simple_spread", "env.actions=continuous", "algo=coma"),
            r"^algo=coma does not .* choose another algorithm, algo=NAME \(",
        ),
    ],
)
def test_an_algorithm_that_does_not_fit_says_the_key_that_chooses_another(
    settings: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", *settings)

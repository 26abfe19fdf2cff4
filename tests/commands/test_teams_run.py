"""Runs of two teams with different algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.commands import train as training
from coterie.core.errors import UserError
from coterie.core.metrics import undeclared
from tinyruns import assert_same, checkpoint_state, log_entries, tiny, tiny_run, train

TAG = ("env=particle/simple_tag", "algo=mappo", "steps=160")


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return tiny_run(tmp_path / "trained", *TAG)


def names_of(out: Path) -> set[str]:
    return {name for row in log_entries(out) for name in row}


def algorithm_states(out: Path) -> dict[str, Any]:
    return checkpoint_state(out)["algorithms"]


@pytest.mark.slow
def test_both_teams_learn_and_metrics_contain_their_names(trained: Path) -> None:
    names = names_of(trained)
    for team in ("adversary", "agent"):
        for name in ("loss/{}/policy", "policy/{}/entropy", "eval/{}/return_mean", "rollout/{}/return_mean"):
            assert name.format(team) in names
    assert "eval/return_mean" not in names
    assert undeclared(sorted(names)) == []
    assert {"optimizer", "critic"} <= algorithm_states(trained)["agent"].keys() & algorithm_states(trained)[
        "adversary"
    ].keys()


@pytest.mark.slow
def test_a_team_learns_against_the_random_policy(tmp_path: Path) -> None:
    train(tmp_path / "run", *TAG, "teams.agent.algo=random")  # with another rollout length
    names = names_of(tmp_path / "run")
    assert "loss/adversary/policy" in names
    assert "eval/agent/return_mean" in names
    assert not any(name.startswith("loss/agent") for name in names)
    assert undeclared(sorted(names)) == []


@pytest.mark.slow
def test_runs_without_learning_teams_are_logged(tmp_path: Path) -> None:
    settings = ("env=particle/simple_tag", "algo=random", "algo.rollout_length=30", "steps=400")
    out = tmp_path / "run"
    training.train(run_config(out, *settings))
    assert {"rollout/adversary/return_mean", "eval/agent/return_mean"} <= names_of(out)
    assert undeclared(sorted(names_of(out))) == []


def run_config(out: Path, *settings: str) -> Any:
    from coterie.assembly.resolve import resolve

    known = [
        s for s in tiny(*settings) if not s.startswith(("algo.hidden_sizes", "algo.epochs", "algo.num_minibatches"))
    ]
    return resolve([*known, f"out={out}"])


@pytest.mark.slow
def test_a_frozen_team_keeps_its_policy(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, *TAG, f"teams.agent.run={trained}", "teams.agent.algo.checkpoint=last")
    assert_same(algorithm_states(out)["agent"]["policy"], algorithm_states(trained)["agent"]["policy"])
    assert "loss/adversary/policy" in names_of(out)
    assert undeclared(sorted(names_of(out))) == []
    training.resume(out, ["steps=320"])
    assert_same(algorithm_states(out)["agent"]["policy"], algorithm_states(trained)["agent"]["policy"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("teams.agent.run={}", "teams.agent.algo.team=adversary"),
            "name the right team with teams.agent.algo.team=TEAM",
        ),
        (("teams.agent.run={}", "teams.agent.algo.team=wolf"), "has no team 'wolf'. Choose from adversary, agent"),
        (("teams.agent.run={}", "env.obstacles=3"), r"observe \(16,\) .* trained with .* observe \(14,\)"),
    ],
)
def test_an_unsuitable_frozen_run_is_refused_in_one_line(
    settings: tuple[str, ...], message: str, trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        train(tmp_path / "run", *TAG, *(setting.format(trained) for setting in settings))
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_rollout_lengths_are_rounded_up_to_a_common_multiple(tmp_path: Path) -> None:
    """MAPPO and QMIX with lengths of which one is no multiple of the other, and a note about the change."""
    from coterie.assembly.environment import load_teams
    from coterie.assembly.learners import make_algorithms
    from coterie.assembly.resolve import resolve

    lengths = ["algo.rollout_length=128", "teams.agent.algo=qmix", "teams.agent.algo.rollout_length=26"]
    config = resolve([*TAG, *lengths, "device=cpu"]).config
    learners = make_algorithms(config, load_teams(config, torch.device("cpu")), torch.device("cpu"))
    assert (learners["adversary"].rollout_length, learners["agent"].rollout_length) == (130, 26)
    assert "rollout_length is 130, not 128: a multiple of the shortest of all teams" in learners["adversary"].notes
    assert not any("rollout_length is" in line for line in learners["agent"].notes)
    train(tmp_path / "run", *TAG, "teams.agent.algo.rollout_length=15")
    assert {"loss/agent/policy", "loss/adversary/policy"} <= names_of(tmp_path / "run")


@pytest.mark.slow
def test_one_team_can_contain_both_sides(tmp_path: Path) -> None:
    train(tmp_path / "run", *TAG, "teams.all.roles=[adversary,agent]")
    names = names_of(tmp_path / "run")
    assert {"eval/return_mean", "eval/return_mean/adversary", "eval/return_mean/adversary_0", "loss/policy"} <= names
    assert undeclared(sorted(names)) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            (*TAG, "env.actions=continuous", "teams.agent.algo=qmix"),
            r"^teams\.agent\.algo: qmix does not .* with teams\.agent\.algo=NAME \(coterie list algos\)\.$",
        ),
        (
            ("env=particle/simple_spread", "env.actions=continuous", "algo=coma"),
            r"^algo: coma does not .* Choose another algorithm with algo=NAME \(",
        ),
    ],
)
def test_an_unsupported_team_error_names_the_setting_of_the_algorithm(
    settings: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", *settings)

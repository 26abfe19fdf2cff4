"""All examples run with few steps."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

import coterie
from places import ROOT

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "policy_client")  # needs a server
WRITTEN = {
    "own_world": ["meeting.gif", "runs/own_world_make/ippo"],
    "own_algorithm": ["runs/own_algorithm"],
    "own_network": ["runs/own_network"],
    "own_replay": ["runs/own_replay"],
    "own_gymnasium": ["runs/own_gymnasium_Lander/ppo"],
    "own_multiagentenv": ["runs/own_multiagentenv_Beam/vdn"],
    "own_pettingzoo": ["runs/own_pettingzoo_Corridor/ippo"],
    "recurrent": ["runs/particle/simple_reference/mappo"],
    "seeds": ["seeds.png", "runs/seeds/2/curves.png"],
    "train_and_load": ["runs/particle/simple_spread/mappo"],
    "two_teams": ["runs/particle/simple_tag/mappo", "runs/particle/simple_tag/ippo"],
}
"""Files that each example writes into the current folder."""


def test_every_example_has_expected_files():
    assert {path.stem for path in EXAMPLES} == set(WRITTEN)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_writes_its_results(
    example: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
):
    if any(name.endswith("curves.png") for name in WRITTEN[example.stem]):
        request.getfixturevalue("curves")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(example.parent))
    monkeypatch.setattr(sys, "argv", [str(example), "200"])
    monkeypatch.setattr("coterie.core.process.MAX_DEFAULT_THREADS", 1)  # so little work is slower with more
    few = {"eval.episodes": 4, "eval.num_envs": 4, "eval.min_episodes": 1}
    train, evaluate = coterie.train, coterie.evaluate
    monkeypatch.setattr(coterie, "train", lambda **given: train(**few | given))
    monkeypatch.setattr(coterie, "evaluate", lambda run, episodes: evaluate(run, episodes=4))
    threads = torch.get_num_threads()
    runpy.run_path(str(example), run_name="__main__")
    torch.set_num_threads(threads)
    assert capsys.readouterr().out
    for name in WRITTEN[example.stem]:
        assert (tmp_path / name).exists()


@pytest.mark.slow
@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("algo", ["own_algorithm:ActorCritic", "own_replay:QLearner"])
def test_an_example_algorithm_solves_a_probe(
    algo: str, mistaken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The control has a learning rate that is too small to learn anything."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    run = coterie.train(
        algo=algo,
        env="probe/action",
        steps=500 if mistaken else 2500,
        out=tmp_path / "run",
        threads=1,
        progress="off",
        num_envs=16,
        **{"algo.lr": 1e-9 if mistaken else 1e-2, "eval.every": 0},
    )
    best = coterie.evaluate(run, episodes=64)["teams"]["agent"]["return_mean"] > 0.9
    assert best != mistaken

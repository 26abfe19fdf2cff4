"""A run that was stopped and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
from pathlib import Path

import pytest

from coterie import run
from tinyruns import Process, assert_same, is_run, rows_of, state_of, stop_at, tiny, train

pytestmark = pytest.mark.usefixtures("without_curves")

SPREAD = ("env=particle/simple_spread",)
TAG = ("env=particle/simple_tag",)
GRU = ("algo.memory=gru", "algo.memory_size=6")
CASES = {
    "feed-forward": (*SPREAD, "algo=mappo"),
    "own critic, unshared, observation normalisation": (
        *(*SPREAD, "algo=ippo", "algo.share=none", "algo.normalise_obs=true"),
        *("algo.lr_schedule=linear", "algo.entropy_schedule=linear"),
    ),
    "gru": (*SPREAD, *GRU, "algo=mappo"),
    "lstm in sequences": (*SPREAD, "algo=ippo", "algo.memory=lstm", "algo.memory_size=6", "algo.sequence=5"),
    "state critic, continuous": (*SPREAD, "algo=mappo", "algo.critic=state", "env.actions=continuous"),
    "two teams": (*TAG, "algo=mappo", "algo.normalise_obs=true"),
    "two teams, horizons of their own": (
        *(*TAG, "algo=mappo", *GRU),
        *("teams.adversary.algo.horizon=10", "teams.agent.algo.horizon=40"),
    ),
    "two teams of two kinds": (
        *(*TAG, "algo=mappo"),
        *("teams.agent.algo=ippo", "teams.agent.algo.hidden=[5]", "teams.agent.algo.horizon=20"),
    ),
    "statistics pending": (*SPREAD, "algo=mappo", "log.every=3"),
    "greedy evaluation": (*SPREAD, "algo=mappo", "eval.mode=greedy"),
}


ALL_AT_ONCE = (*CASES["two teams, horizons of their own"], "log.every=3", "checkpoint.every=1", "steps=400")


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_with_the_same_bits(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, "steps=400", *CASES[case])
    with monkeypatch.context() as patch:
        stop_at(patch, 130)  # between two evaluations, within a window of the longer horizon
        train(parts, "steps=400", *CASES[case])
    assert state_of(parts)["steps"] < 200
    with monkeypatch.context() as patch:
        stop_at(patch, 290)
        run.resume(parts, [])
    run.resume(parts, [])
    assert_same(state_of(whole), state_of(parts))
    assert rows_of(whole) == rows_of(parts)
    assert state_of(parts)["steps"] >= 400
    assert (whole / "checkpoints" / "best").read_text() == (parts / "checkpoints" / "best").read_text()


def test_a_finished_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, *SPREAD, "steps=480")
    train(parts, *SPREAD, "steps=240")  # where an evaluation is due anyway
    run.resume(parts, ["steps=480"])
    for state in (one := state_of(whole), other := state_of(parts)):
        assert state["steps"] >= 480
    assert_same(one["algorithms"], other["algorithms"])
    assert_same(one["collector"], other["collector"])
    assert rows_of(whole) == rows_of(parts)


def test_a_checkpoint_holds_every_generator(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    train(one, *SPREAD, "steps=80")
    train(other, *SPREAD, "steps=80", "seed=1")
    for read in (lambda s: s["collector"]["env"]["generator"], lambda s: s["algorithms"]["agent"]["shuffle"]):
        assert read(state_of(one)).tolist() != read(state_of(other)).tolist()
    assert rows_of(one) != rows_of(other)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_between_two_windows_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = (*SPREAD, *GRU, "algo=mappo", "steps=1600", "eval.every=800", "log.tensorboard=true")
    process = Process(tmp_path, "train", *tiny(*settings), f"out={parts}")
    process.wait_for(lambda: (parts / "metrics.jsonl").exists() and len(rows_of(parts)) > 2)
    process.signal(number)
    code, said = process.end()
    assert code == 128 + number
    assert f"coterie resume {parts}" in said
    assert {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[number] in said
    assert "Traceback" not in said
    assert 0 < state_of(parts)["steps"] < 1600
    train(whole, *settings)
    run.resume(parts, [])
    assert_same(state_of(whole), state_of(parts))
    assert rows_of(whole) == rows_of(parts)


@pytest.mark.slow
def test_a_run_killed_at_twenty_random_moments_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    train(whole, *ALL_AT_ONCE)
    draw = random.Random(0)
    kills = runs = 0
    while kills < 20:
        out, done = tmp_path / f"run{runs}", False
        runs += 1
        while not done:
            words = ("resume", out) if is_run(out) else ("train", *tiny(*ALL_AT_ONCE), f"out={out}")
            if not is_run(out):
                assert not (out / "metrics.jsonl").exists()
                shutil.rmtree(out, ignore_errors=True)  # killed before it was a run
            if kills % 2:  # by the clock
                killed = Process(tmp_path, *words).kill_after(draw.uniform(0, 1))
            else:  # in the middle of writing
                killed = Process(tmp_path, *words, die_at=draw.randint(1, 150)).end()[0] == -signal.SIGKILL
            kills += killed
            done = not killed
        assert_same(state_of(whole), state_of(out))
        assert rows_of(whole) == rows_of(out)
    assert kills >= 20


@pytest.mark.slow
def test_a_run_killed_before_any_change_of_a_file_resumes(tmp_path: Path) -> None:
    """Every change on the way from one checkpoint to the next, so that no moment of writing one is left out."""
    settings = (*SPREAD, "algo=mappo", "checkpoint.every=1")
    whole, start = tmp_path / "whole", tmp_path / "start"
    train(whole, *settings, "steps=160")
    train(start, *settings, "steps=120")
    config = start / "config.yaml"
    config.write_text(config.read_text().replace("steps: 120", "steps: 160"))
    for change in itertools.count(1):
        out = tmp_path / f"change{change}"
        shutil.copytree(start, out)
        code, said = Process(tmp_path, "resume", out, die_at=change).end()
        if code == 0:
            break
        assert code == -signal.SIGKILL, said
        code, said = Process(tmp_path, "resume", out).end()
        assert code == 0 or "has done its 160 steps" in said  # it was killed when all was written
        assert_same(state_of(whole)["algorithms"], state_of(out)["algorithms"])
        assert_same(state_of(whole)["collector"], state_of(out)["collector"])
        shutil.rmtree(out)
    assert change > 10

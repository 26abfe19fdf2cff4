"""A run that was stopped and resumed is bit-identical to an uninterrupted one."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

import pytest

from coterie.commands import train as training
from tinyruns import (
    GRU,
    Process,
    assert_resumes_exactly,
    assert_same,
    checkpoint_state,
    folders_of_kills,
    is_run,
    log_entries,
    tiny,
    train,
)

SPREAD, TAG = "env=particle/simple_spread", "env=particle/simple_tag"
OWN_LENGTHS = ("teams.adversary.algo.rollout_length=10", "teams.agent.algo.rollout_length=40")
CASES = {
    "decentralized critic, unshared, normalized observations, lstm in sequences": (
        *(SPREAD, "algo=ippo", "algo.share_params=none", "algo.normalize_obs=true"),
        *("algo.rnn=lstm", "algo.rnn_size=6", "algo.sequence_length=5"),
        *("algo.lr_schedule=linear", "algo.entropy_schedule=linear"),
    ),
    "state critic, continuous, metrics pending, greedy evaluation": (
        *(SPREAD, "env.actions=continuous", "algo=mappo", "algo.critic=state", "log.every=3", "eval.mode=greedy"),
    ),
    "two teams, different algorithms and rollout lengths": (
        *(TAG, "algo=mappo", *GRU, *OWN_LENGTHS, "teams.agent.algo=ippo", "teams.agent.algo.hidden_sizes=[5]"),
    ),
}
COMBINED = (TAG, "algo=mappo", *GRU, *OWN_LENGTHS, "log.every=3", "checkpoint.every=1", "steps=240")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_bit_identical(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It stops between two evaluations, within the longer rollout.
    assert_resumes_exactly(tmp_path, monkeypatch, 130, *CASES[case], "steps=280")
    assert checkpoint_state(tmp_path / "halves")["steps"] >= 280


@pytest.mark.slow
def test_extending_a_finished_run_is_bit_identical(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, SPREAD, "steps=480")
    train(parts, SPREAD, "steps=240")  # where an evaluation is due anyway
    training.resume(parts, ["steps=480"])
    for state in (one := checkpoint_state(whole), other := checkpoint_state(parts)):
        assert state["steps"] >= 480
    assert_same(one["algorithms"], other["algorithms"])
    assert_same(one["collector"], other["collector"])
    assert log_entries(whole) == log_entries(parts)


def test_a_checkpoint_contains_every_generator(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    train(one, SPREAD, "steps=80")
    train(other, SPREAD, "steps=80", "seed=1")
    for read in (lambda s: s["collector"]["env"]["generator"], lambda s: s["algorithms"]["agent"]["shuffle"]):
        assert read(checkpoint_state(one)).tolist() != read(checkpoint_state(other)).tolist()
    assert log_entries(one) != log_entries(other)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_after_a_rollout_and_suggests_how_to_resume(number: signal.Signals, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    board = number == signal.SIGTERM
    settings = (SPREAD, *GRU, "algo=mappo", "steps=800", "eval.every=800", f"log.tensorboard={board}".lower())
    process = Process(tmp_path, "train", *tiny(*settings), f"out={parts}")
    process.wait_for(lambda: (parts / "metrics.jsonl").exists() and len(log_entries(parts)) > 2)
    process.signal(number)
    code, output = process.end()
    assert code == 128 + number
    assert f"coterie resume {parts}" in output
    assert {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[number] in output
    assert "Traceback" not in output
    assert 0 < checkpoint_state(parts)["steps"] < 800
    if board:
        train(whole, *settings)
        training.resume(parts, [])
        assert_same(checkpoint_state(whole), checkpoint_state(parts))
        assert log_entries(whole) == log_entries(parts)


@pytest.mark.slow
def test_a_run_killed_at_four_random_moments_is_bit_identical(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    train(whole, *COMBINED)
    draw = random.Random(0)
    kills = runs = 0
    while kills < 4:
        out, done = tmp_path / f"run{runs}", False
        runs += 1
        while not done:
            words = ("resume", out) if is_run(out) else ("train", *tiny(*COMBINED), f"out={out}")
            if not is_run(out):
                assert not (out / "metrics.jsonl").exists()
                shutil.rmtree(out, ignore_errors=True)  # killed before the run folder was complete
            if kills % 2:  # after a random time
                killed = Process(tmp_path, *words).kill_after(draw.uniform(0, 1))
            else:  # while writing
                killed = Process(tmp_path, *words, die_at=draw.randint(1, 150)).end()[0] == -signal.SIGKILL
            kills += killed
            done = not killed
        assert_same(checkpoint_state(whole), checkpoint_state(out))
        assert log_entries(whole) == log_entries(out)


@pytest.mark.slow
def test_a_run_killed_before_any_file_change_can_be_resumed(tmp_path: Path) -> None:
    """Covers every file change between two checkpoints."""
    settings = (SPREAD, "algo=mappo", "checkpoint.every=1")
    whole, start = tmp_path / "whole", tmp_path / "start"
    train(whole, *settings, "steps=160")
    train(start, *settings, "steps=120")
    config = start / "config.yaml"
    config.write_text(config.read_text().replace("steps: 120", "steps: 160"))
    out = tmp_path / "run"
    shutil.copytree(start, out)
    kills = folders_of_kills(tmp_path, out, "resume", out)
    for killed in kills:
        training.resume(killed, [])
        assert_same(checkpoint_state(whole)["algorithms"], checkpoint_state(killed)["algorithms"])
        assert_same(checkpoint_state(whole)["collector"], checkpoint_state(killed)["collector"])
    assert len(kills) > 10

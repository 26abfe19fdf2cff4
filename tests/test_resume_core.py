"""Runs of every family of algorithms, stopped twice and resumed, end with the same bits; replay memories included."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie import replay, run
from coterie.config import resolve
from coterie.errors import UserError
from tinyruns import assert_same, rows_of, state_of, stop_at

SPREAD = "env=particle/simple_spread"
CLOSE = (
    *("copies=4", "threads=1", "device=cpu", "steps=400", "eval.every=120", "eval.episodes=4", "eval.copies=4"),
    *("log.tensorboard=false", "progress=off", "algo.horizon=10", "algo.hidden=[8]"),
)
REPLAY = ("algo.learning_starts=40", "algo.batch=4", "algo.replay=200", "algo.updates=2")
GRU = ("algo.memory=gru", "algo.memory_size=4")
CASES = {
    "coma, recurrent, last actions": (SPREAD, "algo=coma", *GRU, "algo.last_action=true", "algo.critic_hidden=[8]"),
    "poca, lstm": ("env=coop/baton", "algo=poca", "algo.memory=lstm", "algo.memory_size=4", "algo.embedding=8"),
    "qmix, recurrent, whole episodes": (SPREAD, "algo=qmix", *REPLAY, *GRU, "algo.last_action=true", "algo.sequence=9"),
    "qmix, recurrent, stored state": (
        *(SPREAD, "algo=qmix", *REPLAY, *GRU, "algo.sequence_start=window", "algo.burn_in=2", "algo.sequence=8"),
        *("algo.priority_exponent=0.6", "algo.horizon=10"),
    ),
    "iql, priorities, on disk": (
        *(SPREAD, "algo=iql", *REPLAY, "algo.memory=none", "algo.last_action=false", "algo.priority_exponent=0.6"),
        *("algo.replay_store=disk", "algo.normalise_obs=true"),
    ),
    "maddpg, recurrent": (SPREAD, "algo=maddpg", *REPLAY, *GRU),
    "td3, continuous, drifting noise": (
        SPREAD,
        "env.actions=continuous",
        "algo=td3",
        *REPLAY,
        "algo.noise=ornstein_uhlenbeck",
    ),
    "masac": (SPREAD, "algo=masac", *REPLAY),
    "sac, recurrent, continuous": (SPREAD, "env.actions=continuous", "algo=sac", *REPLAY, *GRU),
    "gym": ("env=gym/CartPole-v1", "algo=ddqn", *REPLAY),
}


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    monkeypatch.setattr(replay, "_SEGMENT_BYTES", 1)  # a segment a window: many within a tiny replay


def train(out: Path, *settings: str) -> None:
    given = {setting.partition("=")[0] for setting in settings}
    run.train(resolve([*(s for s in CLOSE if s.partition("=")[0] not in given), *settings, f"out={out}"]))


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_with_the_same_bits(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, *CASES[case])
    with monkeypatch.context() as patch:
        stop_at(patch, 130)  # between two evaluations, with the replay half full
        train(parts, *CASES[case])
    assert state_of(parts)["steps"] < 200
    with monkeypatch.context() as patch:
        stop_at(patch, 290)  # after the ring has gone round
        run.resume(parts, [])
    run.resume(parts, [])
    assert_same(state_of(whole), state_of(parts))
    assert rows_of(whole) == rows_of(parts)
    assert state_of(parts)["steps"] >= 400


def test_a_policy_is_evaluated_without_the_replay_it_learned_from(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, *CASES["qmix, recurrent, whole episodes"])
    segments = list((out / "checkpoints" / "segments").iterdir())
    assert segments
    for segment in segments:
        segment.unlink()
    found = run.evaluate_run(out, 4, checkpoint="last")
    assert found["teams"]["agent"]["length_mean"] == 25


def test_a_run_says_what_its_replay_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "one", *CASES["masac"], "steps=40", "progress=lines")
    said = capfd.readouterr()
    assert "replay of 200 steps: " in said.out + said.err
    train(tmp_path / "two", SPREAD, "algo=mappo", "steps=40", "progress=lines")  # the control: nothing is replayed
    said = capfd.readouterr()
    assert "replay of" not in said.out + said.err


def test_a_replay_that_cannot_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"algo\.replay=1000000000000 does not fit: .*; give algo\.replay="):
        train(tmp_path / "run", SPREAD, "algo=masac", "algo.replay=1000000000000")
    assert not (tmp_path / "run").exists()

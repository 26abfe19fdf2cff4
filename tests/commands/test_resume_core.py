"""Resumed runs of every family of algorithms are bit-identical, replay buffers included."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.algos.replay import checkpoint
from coterie.assembly.resolve import resolve
from coterie.commands import evaluate as evaluation
from coterie.commands import train as training
from coterie.core.errors import UserError
from tinyruns import assert_same, checkpoint_state, log_entries, stop_at

pytestmark = pytest.mark.slow

SPREAD = "env=particle/simple_spread"
SETTINGS = (
    *("num_envs=4", "threads=1", "device=cpu", "steps=200", "eval.every=120", "eval.episodes=4", "eval.num_envs=4"),
    *("log.tensorboard=false", "progress=off", "algo.rollout_length=10", "algo.hidden_sizes=[8]"),
)
REPLAY = ("algo.learning_starts=40", "algo.batch_size=4", "algo.buffer_size=200", "algo.gradient_steps=2")
GRU = ("algo.rnn=gru", "algo.rnn_size=4")
CASES = {
    "coma, recurrent, last actions": (
        SPREAD,
        "algo=coma",
        *GRU,
        "algo.obs_last_action=true",
        "algo.critic_hidden_sizes=[8]",
    ),
    "mat, random orders": (SPREAD, "algo=mat", "algo.epochs=2", "algo.agent_order=random", "algo.embedding_size=8"),
    "sable": (SPREAD, "algo=sable", "algo.epochs=2", "algo.embedding_size=8"),
    "magpo, recurrent, random orders": (
        *(SPREAD, "algo=magpo", *GRU, "algo.epochs=2", "algo.agent_order=random", "algo.embedding_size=8"),
        *("algo.sequence_length=5", "algo.num_minibatches=2"),
    ),
    "poca, lstm": (
        "env=coop/baton",
        "algo=poca",
        "algo.epochs=2",
        "algo.rnn=lstm",
        "algo.rnn_size=4",
        "algo.embedding_size=8",
    ),
    "qmix, recurrent, whole episodes": (
        SPREAD,
        "algo=qmix",
        *REPLAY,
        *GRU,
        "algo.obs_last_action=true",
        "algo.sequence_length=9",
    ),
    "qmix, recurrent, stored state": (
        *(
            SPREAD,
            "algo=qmix",
            *REPLAY,
            *GRU,
            "algo.sequence_start=rollout",
            "algo.burn_in=2",
            "algo.sequence_length=8",
        ),
        *("algo.priority_alpha=0.6", "algo.rollout_length=10"),
    ),
    "happo, recurrent": (
        SPREAD,
        "algo=happo",
        "algo.epochs=2",
        *GRU,
        "algo.sequence_length=5",
        "algo.num_minibatches=2",
    ),
    "pqn_qmix, recurrent, last actions": (
        *(SPREAD, "algo=pqn_qmix", *GRU, "algo.obs_last_action=true", "algo.sequence_length=5"),
        "algo.num_minibatches=2",
    ),
    "iql, priorities, on disk": (
        *(SPREAD, "algo=iql", *REPLAY, "algo.rnn=none", "algo.obs_last_action=false", "algo.priority_alpha=0.6"),
        *("algo.buffer_storage=disk", "algo.normalize_obs=true"),
    ),
    "maddpg, recurrent": (SPREAD, "algo=maddpg", *REPLAY, *GRU),
    "td3, continuous, drifting noise": (
        SPREAD,
        "env.actions=continuous",
        "algo=td3",
        *REPLAY,
        "algo.noise=ornstein_uhlenbeck",
    ),
    "hasac, recurrent": (SPREAD, "algo=hasac", *REPLAY, *GRU),
    "sac, recurrent, continuous": (SPREAD, "env.actions=continuous", "algo=sac", *REPLAY, *GRU),
}

STOPPED_TWICE = ("qmix, recurrent, whole episodes", "qmix, recurrent, stored state", "iql, priorities, on disk")
"""Cases of each kind of replay buffer, which are also stopped after the buffer has wrapped around."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", 1)  # one segment per rollout, so that a tiny buffer has many


def train(out: Path, *settings: str) -> None:
    given = {setting.partition("=")[0] for setting in settings}
    training.train(resolve([*(s for s in SETTINGS if s.partition("=")[0] not in given), *settings, f"out={out}"]))


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_bit_identical(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    steps = 280 if case in STOPPED_TWICE else 200
    train(whole, *CASES[case], f"steps={steps}")
    with monkeypatch.context() as patch:
        stop_at(patch, 130)  # between two evaluations, with the buffer half full
        train(parts, *CASES[case], f"steps={steps}")
    assert 120 < checkpoint_state(parts)["steps"] < steps
    if case in STOPPED_TWICE:
        with monkeypatch.context() as patch:
            stop_at(patch, 210)  # after the ring buffer has wrapped around
            training.resume(parts, [])
        assert 200 < checkpoint_state(parts)["steps"] < steps
    training.resume(parts, [])
    assert_same(checkpoint_state(whole), checkpoint_state(parts))
    assert log_entries(whole) == log_entries(parts)
    assert checkpoint_state(parts)["steps"] >= steps


def test_a_policy_can_be_evaluated_without_its_replay_buffer(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, *CASES["qmix, recurrent, whole episodes"])
    segments = list((out / "checkpoints" / "segments").iterdir())
    assert segments
    for segment in segments:
        segment.unlink()
    found = evaluation.evaluate_run(out, 4, checkpoint="last")
    assert found["teams"]["agent"]["length_mean"] == 25


def test_a_run_reports_the_size_of_its_replay_buffer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "one", *CASES["hasac, recurrent"], "steps=40", "progress=lines")
    output = capfd.readouterr()
    assert "replay buffer of 200 steps: " in output.out + output.err
    train(tmp_path / "two", SPREAD, "algo=mappo", "steps=40", "progress=lines")  # negative control
    output = capfd.readouterr()
    assert "replay buffer of" not in output.out + output.err


def test_a_replay_buffer_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"algo\.buffer_size=1000000000000 does not fit: .* Set algo\.buffer_size="):
        train(tmp_path / "run", SPREAD, "algo=masac", "algo.buffer_size=1000000000000")
    assert not (tmp_path / "run").exists()

"""Resumed runs of every family of algorithms are bit-identical, replay buffers included."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.algos.replay import checkpoint
from coterie.commands import evaluate as evaluation
from coterie.core.errors import UserError
from tinyruns import GRU, assert_resumes_exactly, train

pytestmark = pytest.mark.slow

SPREAD = "env=particle/simple_spread"
BUFFER = ("algo.learning_starts=40", "algo.batch_size=4", "algo.buffer_size=200", "algo.gradient_steps=2")
CASES = {
    "coma, recurrent, last actions": (SPREAD, "algo=coma", *GRU, "algo.obs_last_action=true"),
    "magpo, recurrent, random orders": (
        *(SPREAD, "algo=magpo", *GRU, "algo.agent_order=random", "algo.embedding_size=8", "algo.sequence_length=5"),
    ),
    "poca, lstm": ("env=coop/baton", "algo=poca", "algo.rnn=lstm", "algo.rnn_size=4", "algo.embedding_size=8"),
    "qmix, recurrent, whole episodes": (
        *(SPREAD, "algo=qmix", *BUFFER, *GRU, "algo.obs_last_action=true", "algo.sequence_length=9"),
    ),
    "qmix, recurrent, stored state": (
        *(SPREAD, "algo=qmix", *BUFFER, *GRU, "algo.sequence_start=rollout", "algo.burn_in=2"),
        *("algo.sequence_length=8", "algo.priority_alpha=0.6"),
    ),
    "iql, priorities, on disk": (
        *(SPREAD, "algo=iql", *BUFFER, "algo.rnn=none", "algo.obs_last_action=false", "algo.priority_alpha=0.6"),
        *("algo.buffer_storage=disk", "algo.normalize_obs=true"),
    ),
    "td3, continuous, drifting noise": (
        *(SPREAD, "env.actions=continuous", "algo=td3", *BUFFER, "algo.noise=ornstein_uhlenbeck"),
    ),
    "masac, recurrent": (SPREAD, "algo=masac", *BUFFER, *GRU),
}
"""States that only a whole run has: of each kind of collection, order, noise and replay buffer. Those of every class of
learners are restored in `test_every.py`."""

STOPPED_TWICE = ("qmix, recurrent, whole episodes", "qmix, recurrent, stored state", "iql, priorities, on disk")
"""Cases of each kind of replay buffer, which are also stopped after the buffer has wrapped around."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", 1)  # one segment per rollout, so that a tiny buffer has many


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_bit_identical(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It stops between two evaluations, with the buffer half full.
    stops, steps = ((130, 210), 280) if case in STOPPED_TWICE else ((130,), 200)
    assert_resumes_exactly(tmp_path, monkeypatch, stops, *CASES[case], f"steps={steps}")


def test_a_policy_can_be_evaluated_without_its_replay_buffer(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, *CASES["qmix, recurrent, whole episodes"], "steps=120")
    segments = list((out / "checkpoints" / "segments").iterdir())
    assert segments
    for segment in segments:
        segment.unlink()
    found = evaluation.evaluate_run(out, 4, checkpoint="last")
    assert found["teams"]["agent"]["length_mean"] == 25


def test_a_run_reports_the_size_of_its_replay_buffer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "one", *CASES["masac, recurrent"], "steps=40", "progress=lines")
    output = capfd.readouterr()
    assert "replay buffer of 200 steps: " in output.out + output.err
    train(tmp_path / "two", SPREAD, "algo=mappo", "steps=40", "progress=lines")  # negative control
    output = capfd.readouterr()
    assert "replay buffer of" not in output.out + output.err


def test_a_replay_buffer_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"algo\.buffer_size=1000000000000 does not fit: .* Set algo\.buffer_size="):
        train(tmp_path / "run", SPREAD, "algo=masac", "algo.buffer_size=1000000000000")
    assert not (tmp_path / "run").exists()

"""A study of real runs, started as users start it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from coterie.assembly.resolve import resolve
from coterie.runs.folder import runs_below
from tinyruns import Process

COMMAND = (
    *("tune", "algo=ippo", "env=probe/both", "steps=16000", "num_envs=32", "algo.rollout_length=10", "eval.every=8000"),
    *("algo.epochs=4", "algo.num_minibatches=1", "eval.episodes=32", "eval.num_envs=32", "algo.hidden_sizes=[8]"),
    *("log.tensorboard=false", "device=cpu", "threads=1"),
    *("algo.lr=1e-6", "algo.lr=choice(1e-6,3e-2)", "--seeds", "1", "--trials", "3", "--out", "study", "--json"),
)
"""A learning rate of 1e-6 learns nothing; one of 3e-2 finds the optimal return of 1. A trial is long enough
to be killed while it runs."""


@pytest.mark.slow
def test_a_killed_study_continues_and_beats_the_default(tmp_path: Path):
    process = Process(tmp_path, *COMMAND)
    process.wait_for((tmp_path / "study" / "trial001" / "seed1000" / "metrics.jsonl").exists)
    process.signal(signal.SIGKILL)
    process.end()
    code, output = Process(tmp_path, *COMMAND).end()
    assert code == 0, output
    assert "trial 1 continues" in output
    (report,) = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [(trial["state"], trial["reason"]) for trial in report["trials"]] == [("finished", None)] * 3
    assert report["default"]["value"] < 0.6
    assert report["best"]["value"] > 0.9
    assert report["best"]["settings"] == {"algo.lr": 0.03}
    assert len(runs_below(tmp_path / "study")) == 3  # ordinary runs
    assert vars(resolve([], tmp_path / "study" / "best.yaml").config.algo.params)["lr"] == 0.03

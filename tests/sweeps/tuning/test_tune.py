"""A study of real runs, started as users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.assembly.resolve import resolve
from coterie.runs.folder import runs_below
from sweeps import wait_for

COMMAND = (
    *("tune", "algo=ippo", "env=probe/both", "steps=16000", "num_envs=32", "algo.rollout_length=10", "eval.every=8000"),
    *(
        "algo.epochs=4",
        "algo.num_minibatches=1",
        "eval.episodes=32",
        "eval.num_envs=32",
        "algo.hidden_sizes=[8]",
        "log.tensorboard=false",
        "device=cpu",
    ),
    *("algo.lr=1e-6", "algo.lr=choice(1e-6,3e-2)", "--seeds", "1", "--trials", "3", "--out", "study", "--json"),
)
"""A learning rate of 1e-6 learns nothing; one of 3e-2 finds the optimal return of 1. A trial is long enough
to be killed while it runs."""


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *COMMAND],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_killed_study_continues_and_beats_the_default(tmp_path: Path):
    process = _start(tmp_path)
    wait_for(tmp_path / "study" / "trial001" / "seed1000" / "metrics.jsonl", process)
    process.kill()
    process.communicate()
    process = _start(tmp_path)
    out, messages = process.communicate(timeout=300)
    assert process.returncode == 0, messages
    assert "trial 1 continues" in messages
    report = json.loads(out)
    assert [(trial["state"], trial["reason"]) for trial in report["trials"]] == [("finished", None)] * 3
    assert report["default"]["value"] < 0.6
    assert report["best"]["value"] > 0.9
    assert report["best"]["settings"] == {"algo.lr": 0.03}
    assert len(runs_below(tmp_path / "study")) == 3  # ordinary runs
    assert vars(resolve([], tmp_path / "study" / "best.yaml").config.algo.params)["lr"] == 0.03

"""Ctrl-C in a terminal in which a run trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.__main__ import main
from tinyruns import checkpoint_state, tiny


def _accept_ctrl_c() -> None:
    """Restores the default handler: background processes of a shell ignore Ctrl-C, and so do their children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
def test_ctrl_c_prints_the_summary_and_leaves_a_checkpoint(tmp_path: Path):
    out = tmp_path / "run"
    words = tiny("steps=10M", "eval.every=200", "checkpoint.every=5M", "progress=lines", f"out={out}")
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie", "train", *words],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, preexec_fn=_accept_ctrl_c,
    )  # fmt: skip
    assert process.stderr is not None
    start = []
    for line in process.stderr:
        start.append(line)
        if " / 10,000,000 steps" in line and not line.startswith("0 /"):
            break
    process.send_signal(signal.SIGINT)
    output = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 130
    steps = checkpoint_state(out)["steps"]
    assert 0 < steps < 10_000_000
    assert f"run: {out}\n" in start
    assert f"watch in a browser: coterie watch {out}\n" in start
    assert f"{steps:,} of 10,000,000 steps in " in output
    for line in (
        f"metrics      {out / 'metrics.jsonl'}",
        f"checkpoints  {out / 'checkpoints'}",
        f"continue     coterie resume {out}",
        f"Ctrl-C: stopped at {steps:,} of 10,000,000 steps, checkpoint saved. Resume with: coterie resume {out}",
    ):
        assert line in output.splitlines()
    assert "evaluation return" in output
    assert main(["evaluate", str(out), "--episodes", "4"]) == 0

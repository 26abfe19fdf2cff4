"""Ctrl-C in a terminal in which a run trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from coterie.__main__ import main
from sweeps import update_environment
from tinyruns import Process, checkpoint_state, tiny


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
    assert "team return" in output
    assert f"curves       {out / 'curves.png'}" in output.splitlines()
    assert (out / "curves.png").stat().st_size > 1000
    assert main(["evaluate", str(out), "--episodes", "4"]) == 0


STOPPING = """
import os, signal

def make(when="reset", number=15):
    import gymnasium
    class Env(gymnasium.Wrapper):
        def reset(self, **kwargs):
            if when == "reset" and os.path.exists(os.environ["MANIFEST"]):
                os.kill(os.getpid(), int(number))
                os.kill(os.getpid(), int(number))  # as `timeout` does, to the process and to its group
            return super().reset(**kwargs)
    if when == "make":
        os.kill(os.getpid(), int(number))
    return Env(gymnasium.make("CartPole-v1"))
"""
"""Module of an environment that sends a signal to its process while it is made, or at a reset once the run exists."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "when", "is_new"),
    [
        (signal.SIGINT, "make", True),
        (signal.SIGTERM, "reset", True),
        (signal.SIGHUP, "reset", False),
    ],
)
def test_a_run_that_is_stopped_before_it_trains_removes_what_it_created(
    number: signal.Signals, when: str, is_new: bool, tmp_path: Path
):
    (tmp_path / "stopping.py").write_text(STOPPING)
    out = tmp_path / "new" / "run" if is_new else tmp_path / "run"
    if not is_new:
        out.mkdir()
    before = files(tmp_path)
    words = tiny("env=stopping:make", f"env.when={when}", f"env.number={int(number)}", "algo=ippo", f"out={out}")
    prepare = partial(update_environment, {"MANIFEST": str(out / "manifest.json")})
    code, output = Process(tmp_path, "train", *words, prepare=prepare).end()
    assert code == (130 if number == signal.SIGINT else -number), output
    assert files(tmp_path) == before
    assert "Traceback" not in output
    if when == "reset":
        name = "Ctrl-C" if number == signal.SIGINT else number.name
        assert f"coterie: {name}: the run was stopped before the first checkpoint. Nothing of it is kept." in output


def files(folder: Path) -> list[Path]:
    """Files and folders, besides compiled modules and the output of commands."""
    return sorted(p for p in folder.rglob("*") if "__pycache__" not in p.parts and not p.name.startswith("output-"))

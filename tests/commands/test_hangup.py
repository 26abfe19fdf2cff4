"""A terminal that is closed while a run trains, as by a lost ssh connection."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from coterie.runs.activity import last_rows
from tinyruns import checkpoint_state, tiny

SECONDS = 90


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["progress=auto"], ["progress=lines", "env=gym/CartPole-v1", "algo=ippo", "workers.count=2"]]
)
def test_a_closed_terminal_stops_the_run_with_a_checkpoint(more: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", *tiny("steps=10M", "eval.every=5M", "checkpoint.every=5M", *more, f"out={out}")]
    pid, terminal = pty.fork()
    if pid == 0:  # leader of a session whose terminal is the other end
        os.execve(sys.executable, [sys.executable, "-m", "coterie", *command], {**os.environ, "OMP_NUM_THREADS": "1"})
    shown = b""
    end = time.monotonic() + SECONDS
    while max((row["steps"] for row in last_rows(out / "metrics.jsonl")), default=0) == 0:
        assert time.monotonic() < end, shown.decode(errors="replace")
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)
    os.close(terminal)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        assert time.monotonic() < end
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert 0 < checkpoint_state(out)["steps"] < 10_000_000

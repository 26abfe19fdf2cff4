"""A terminal that is closed while a run trains, as by a lost ssh connection."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from coterie.runs.activity import last_rows
from tinyruns import Process, checkpoint_state, tiny


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [["progress=auto"], ["progress=lines", "env=gym/CartPole-v1", "algo=ippo", "workers.count=2"]]
)
def test_a_closed_terminal_stops_the_run_with_a_checkpoint(more: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", *tiny("steps=10M", "eval.every=5M", "checkpoint.every=5M", *more, f"out={out}")]
    ours, theirs = os.openpty()
    process = Process(tmp_path, *words, terminal=Path(os.ttyname(theirs)))

    def has_trained() -> bool:
        while select.select([ours], [], [], 0)[0]:
            os.read(ours, 65536)  # a terminal that nobody reads would block the run
        return any(row["steps"] for row in last_rows(out / "metrics.jsonl"))

    process.wait_for(has_trained)
    os.close(theirs)
    os.close(ours)
    assert process.end()[0] == 128 + signal.SIGHUP
    assert 0 < checkpoint_state(out)["steps"] < 10_000_000

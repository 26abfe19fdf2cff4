"""Ranks that `torchrun` starts again."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]

_WORDS = (
    *("algo=mappo", "env=particle/simple_spread", "num_envs=4", "rollout_length=25", "steps=3000", "device=cpu"),
    *("threads=1", "eval.every=0", "checkpoint.every=200", "checkpoint.policy_seconds=0", "algo.hidden_sizes=[16]"),
    *("log.tensorboard=false", "progress=off"),
)


@pytest.fixture
def kill_runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("kill_runs")


def _start(run: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, "-m", "coterie", "train", *_WORDS, f"out={run}"], env=environment)


def _process_of(rank: int, launcher: int) -> int:
    """Returns the number of the process of a rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    of_rank = f"RANK={rank}".encode()
    (found,) = (int(pid) for pid in children if of_rank in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_are_started_again_end_the_run_with_the_same_bits(
    kill_runs: ModuleType, tmp_path: Path, rank: int
) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    assert _start(reference).wait() == 0
    with _start(run) as launcher:
        until = time.monotonic() + 120
        while not (run / "checkpoints" / "last").exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(_process_of(rank, launcher.pid), signal.SIGKILL)
    assert launcher.returncode == 0
    assert kill_runs.differences(reference, run) == []

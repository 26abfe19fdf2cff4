"""Forked jobs, and when they are not forked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tinyruns
from sweeps import sweep

GATE = """
import sys
from coterie.cli.job_gate import job_gate
gate = job_gate()
assert not gate.is_safe()  # nothing is imported yet
gate.preload()
import torch
print(gate.is_safe())
{work}
print(gate.is_safe())
"""
WORK = {
    "threads of PyTorch": "torch.set_num_threads(2); x = torch.ones(600, 600); x @ x; (x + 1).sum()",
    "a thread of Python": "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=1).start()",
    "nothing": "from coterie.sweeps.sweep import plan; plan(['seed=0,1', 'algo=mappo,qmix'])",
}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs are forked on Linux only")
@pytest.mark.parametrize("kind", WORK)
def test_jobs_are_not_forked_after_threads_have_run(kind: str):
    script = GATE.format(work=WORK[kind])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.split() == ["True", str(kind == "nothing")], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs are forked on Linux only")
def test_a_forked_job_has_two_threads_and_the_bits_of_a_command(tmp_path: Path):
    """A forked process whose parent had used PyTorch's threads would wait forever in its first large product."""
    settings = ("threads=2", "num_envs=64", "algo.hidden_sizes=[256]", "steps=1280")
    code, outcomes, messages = sweep(tmp_path, *settings, "seed=0,1", "out=forked")
    assert code == 0, messages
    assert [outcome["exit_code"] for outcome in outcomes] == [0, 0]
    words = [*tinyruns.tiny(*settings), "seed=1", f"out={tmp_path}/alone"]
    subprocess.run([sys.executable, "-m", "coterie", "train", *words], check=True, timeout=200, capture_output=True)
    one, other = tmp_path / "forked" / "seed1", tmp_path / "alone"
    assert tinyruns.log_entries(one) == tinyruns.log_entries(other)
    tinyruns.assert_same(tinyruns.checkpoint_state(one), tinyruns.checkpoint_state(other))

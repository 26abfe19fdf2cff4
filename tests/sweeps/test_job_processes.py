"""Forked jobs, and when they are not forked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tinyruns
from sweeps import sweep

GATE = """
import os, threading
from coterie.cli.job_gate import job_gate
gate = job_gate()
print("nothing is imported", gate.is_safe())
gate.preload()
import torch
from coterie.sweeps.sweep import plan
plan(["seed=0,1", "algo=mappo,qmix"])
print("nothing has run", gate.is_safe())
end, before = threading.Event(), len(os.listdir("/proc/self/task"))
thread = threading.Thread(target=end.wait)
thread.start()
print("a thread of Python", gate.is_safe())
end.set()
thread.join()
while len(os.listdir("/proc/self/task")) > before:
    pass
print("it has ended", gate.is_safe())
torch.set_num_threads(2)
x = torch.ones(600, 600)
x @ x
(x + 1).sum()
print("threads of PyTorch", gate.is_safe())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs are forked on Linux only")
def test_jobs_are_not_forked_after_threads_have_run():
    done = subprocess.run([sys.executable, "-c", GATE], capture_output=True, text=True, timeout=200, check=False)
    found = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines())
    assert found == {
        "nothing is imported": "False",
        "nothing has run": "True",
        "a thread of Python": "False",
        "it has ended": "True",
        "threads of PyTorch": "False",
    }, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs are forked on Linux only")
def test_a_forked_job_has_two_threads_and_the_bits_of_a_command(tmp_path: Path):
    """A forked process whose parent had used PyTorch's threads would wait forever in its first large product."""
    settings = ("threads=2", "num_envs=64", "algo.hidden_sizes=[256]", "steps=1280")
    code, outcomes, messages = sweep(tmp_path, *settings, "seed=0,1", "out=forked")
    assert code == 0, messages
    assert [outcome["exit_code"] for outcome in outcomes] == [0, 0]
    words = [*tinyruns.tiny(*settings), "seed=1", f"out={tmp_path}/alone"]
    code, printed = tinyruns.Process(tmp_path, "train", *words).end()
    assert code == 0, printed
    one, other = tmp_path / "forked" / "seed1", tmp_path / "alone"
    assert tinyruns.log_entries(one) == tinyruns.log_entries(other)
    tinyruns.assert_same(tinyruns.checkpoint_state(one), tinyruns.checkpoint_state(other))

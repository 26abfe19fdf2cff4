"""One thread a test process: small tensors gain nothing by more, and results stay the same on any machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch starts its threads, also in subprocesses
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # runs that set more threads share the cores with other tests

import pytest
import torch

import tinyruns
from coterie.envs.workers import processes

torch.set_num_threads(1)
processes.PRELOADED[:] = tinyruns._IMPORTED  # one server forks workers and the runs of other tests alike


@pytest.fixture
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw no curves, which takes longer than the rest of a tiny one."""
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])

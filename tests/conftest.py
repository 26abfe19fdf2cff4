"""One PyTorch thread per test process: small tensors do not benefit from more, and results depend on the number."""

import gc
import os
import tempfile
from collections.abc import Generator

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="coterie-state-")  # the key that signs the runs of the tests
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch starts its threads, also in subprocesses
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # runs that set more threads share the cores with other tests

import pytest
import torch

import tinyruns
from coterie.commands import train as training
from coterie.envs.external.workers import processes

torch.set_num_threads(1)
processes.PRELOADED[:] = tinyruns.PRELOADED_MODULES  # one fork server for workers and for runs in other processes


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempts modules and test items from garbage collection, which takes 0.4 s each time with all of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _without_curves() -> Generator[None, None, None]:
    """Disables the curves of runs, which take several times as long as the rest of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "draw_curves", tinyruns.draw_nothing)
        yield


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enables the curves of runs."""
    monkeypatch.setattr(training, "draw_curves", tinyruns.DRAW_CURVES)

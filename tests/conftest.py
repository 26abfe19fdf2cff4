"""One PyTorch thread per test process: small tensors do not benefit from more, and results depend on the number."""

import gc
import os
import shutil
import tempfile
from collections.abc import Generator

from places import TEMPORARY

os.environ.setdefault("TMPDIR", str(TEMPORARY))  # also in subprocesses
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="coterie-state-")  # the key that signs the runs of the tests
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch starts its threads, also in subprocesses
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # runs that set more threads share the cores with other tests

import pytest
import torch

import tinyruns
from coterie.commands import train as training
from coterie.envs.external.workers import processes
from coterie.kernels import switch

LONGEST = [
    "test_defaults.py",
    "test_docs.py",
    "test_rank_kills.py",
    "test_graphed_steps.py",
    "test_benchmark.py",
    "test_resume.py",
    "test_tune.py",
    "test_ray_sweep.py",
    "test_ray_workers.py",
    "test_hostile_runs.py",
    "test_probes.py",
    "test_grouping.py",
    "test_python_environments.py",
    "test_job_runs.py",
    "test_algorithms.py",
    "test_check_algorithm.py",
    "test_kills.py",
    "test_fuzz.py",
    "test_poca.py",
    "test_messages.py",
    "test_sac.py",
    "test_pettingzoo.py",
    "test_diagnose.py",
    "test_ddpg.py",
    "test_coma_probes.py",
    "test_qlearning.py",
    "test_resume_core.py",
    "test_faults.py",
    "test_processes.py",
    "test_provenance.py",
    "test_selfplay_callback.py",
    "test_curriculum.py",
    "test_job_processes.py",
    "test_check_env.py",
    "test_check.py",
    "test_every.py",
    "test_ppo.py",
    "test_mistakes.py",
    "test_battle.py",
    "test_checkpoints.py",
    "test_league.py",
    "test_examples.py",
    "test_grids.py",
    "test_cloning.py",
    "test_particle_mpe2.py",
    "test_coma.py",
    "test_rewarded.py",
    "test_app.py",
    "test_answers.py",
    "test_gymnasium_vector.py",
    "test_api.py",
]
"""Test files that take longest, in about descending order. They run first, so that no worker waits for one at the end.
The order of the others makes no difference."""

torch.set_num_threads(1)
tinyruns.disable_flushing()
tinyruns.cache_git()
tinyruns.cache_yaml()
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


@pytest.hookimpl(trylast=True)  # after a random order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {name: k for k, name in enumerate(LONGEST)}
    if config.getoption("random_order_enabled"):  # the longest ones are in random order, too
        place = dict.fromkeys(place, 0)
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture(autouse=True, scope="session")
def _without_curves() -> Generator[None, None, None]:
    """Disables the curves of runs, which take several times as long as the rest of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "draw_curves", tinyruns.draw_nothing)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels", choices=("on", "off"), default="on", help="what kernels=auto stands for")
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="what device=auto stands for")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before CUDA is initialized, also in subprocesses
    elif not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: PyTorch finds no GPU")
    switch.AUTO_IS_ON = config.getoption("--kernels") == "on"
    switch.configure("auto")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enables the curves of runs."""
    monkeypatch.setattr(training, "draw_curves", tinyruns.DRAW_CURVES)

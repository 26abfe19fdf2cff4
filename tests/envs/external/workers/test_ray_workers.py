"""Ray workers: results identical to serial stepping, every kind of failure, and no remaining processes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import coterie
import faultyworlds
from coterie.assembly.resolve import resolve
from coterie.config import callables
from coterie.config.schema import WorkersConfig
from coterie.core.errors import UserError, WorkersFailedError
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.traces import first_difference
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, DoubleBufferedEnv
from coterie.envs.external.workers import ray_workers
from coterie.envs.external.workers.ray_actor import START, RayActor
from coterie.envs.external.workers.worker_loop import FAILED
from coterie.envs.make import make
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from gymnasium_worlds import results
from places import HELPERS
from tinyruns import Process, assert_same, tiny
from workerfaults import alive, lead_session, step_hanging_ray_worker, wait_for

pytestmark = pytest.mark.slow

COUNTING, OBEDIENT = "gym/faultyworlds:Counting-v0", "gym/faultyworlds:Obedient-v0"
HANGS, RAISES, WRONG_SHAPE = 3, 4, 6


@pytest.fixture(scope="module")
def nodes() -> Iterator[subprocess.Popen[str]]:
    """A cluster of two nodes with one core each, found by this process as `auto`. A local Ray is started by a trainer
    that is killed, and by sweeps.
    """
    folder = tempfile.mkdtemp(prefix="coterie-test-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listens on this machine only
        os.mkdir(f"{folder}/ray")
        with subprocess.Popen(
            [sys.executable, str(HELPERS / "raycluster.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline().startswith("127.0.0.1:")
            with ray_workers.connect("auto", 2) as connection:  # kept open for all tests
                connection.wait_until_ready()
                yield process
    shutil.rmtree(folder)


@pytest.mark.usefixtures("nodes")
def test_double_buffered_ray_workers_have_the_results_of_serial_stepping_and_each_half_replaces_its_own(caplog: Any):
    """States are interchangeable with those of serial stepping. The halves have unequal numbers of environments."""
    workers = WorkersConfig(count=1, kind="ray", address="auto", overlap=True, restarts=1)
    envs = [make("gym/CartPole-v1", {}, 5, 3, workers=given) for given in (None, workers)]
    assert [isinstance(env, DoubleBufferedEnv) for env in envs] == [False, True]
    (team,) = envs[0].spec.default_teams()
    collectors = [Collector(env, {team.name: RandomPolicy(team, env.device)}, 0) for env in envs]
    for length in (20, 1, 20):
        one, other = (collector.advance(length)[0]["agent"] for collector in collectors)
        assert first_difference(one, other) is None
    states = [env.state_dict() for env in envs]
    assert_same(*states)
    for env in envs:
        commanded(env, 0, 0, 0, 0, 0)
    expected = results(envs[0], 12)
    results(envs[1], 7)
    for env, state in zip(envs, reversed(states), strict=True):
        env.load_state_dict(state)
        commanded(env, 0, 0, 0, 0, 0)
        assert first_difference(results(env, 12), expected) is None
    os.kill(envs[1].parts[1].backend.pids[0], signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue]
    step, timestep = commanded(envs[1], 0, 0, 0, 0, 0)
    assert step.lost is not None
    assert step.lost.tolist() == [False, False, False, True, True]
    assert timestep.first[3:].all()
    assert "environments 3 to 4" in caplog.text
    assert "process ended" in caplog.text
    assert commanded(envs[1], 0, 0, 0, 0, 0)[0].lost is None
    for env in envs:
        env.close()


def commanded(env: VectorEnv, *actions: int) -> tuple[Step, Timestep]:
    """Steps environments that fail according to their actions."""
    return env.step({"agent": Action(torch.tensor(actions).reshape(-1, 1, 1), None)})


@contextmanager
def ray_env(name: str, num_envs: int, **settings: Any) -> Iterator[VectorEnv]:
    """Environments of two workers in the cluster, which are closed even if a test fails."""
    config = WorkersConfig(count=2, kind="ray", address="auto", **settings)
    env = BackendVectorEnv(ray_workers.ray_backend(name, {}, num_envs, config), 3, "cpu")
    try:
        yield env
    finally:
        env.close()


@pytest.mark.usefixtures("nodes")
def test_failed_workers_are_replaced_up_to_the_limit(caplog: Any):
    """A worker hangs, and a worker raises. Code that no module has, and observations so large that they are sent by
    Ray's object store.
    """

    class Local(faultyworlds.Obedient):
        observation_space = Box(-np.inf, np.inf, (30_000,), np.float64)

        def _observation(self) -> np.ndarray:
            return np.tile([self._id, self._episode, self._age], 10_000)

    with ray_env(callables.name_of(Local), 4, timeout=5.0, restarts=1) as env:
        env.reset()
        before = commanded(env, 0, 0, 0, 0)[1].obs["agent"][:, 0]
        step, timestep = commanded(env, 0, HANGS, 0, 0)
        after = timestep.obs["agent"][:, 0]
        assert torch.equal(after, after[:, :3].repeat(1, 10_000))
        assert step.lost is not None
        assert step.lost.tolist() == timestep.first[:, 0].tolist() == [True, True, False, False]
        assert after[:, 2].tolist() == step.reward[:, 0].tolist() == [0, 0, *(before[2:, 2] + 1).tolist()]
        assert after[:, 1].tolist() == [1.0] * 4
        assert (after[:, 0] != before[:, 0]).tolist() == [True, True, False, False]  # new seeds
        assert timestep.acted.all()
        assert "within 5 s" in caplog.text.splitlines()[-1]
        assert commanded(env, 0, 0, 0, 0)[0].lost is None
        with pytest.raises(UserError, match=r"an observation with shape \(5,\)"):  # which is no failure of a worker
            commanded(env, 0, 0, 0, WRONG_SHAPE)
        with pytest.raises(
            WorkersFailedError, match=r"failed 2 times.*environments 2 to 3 of .*the ball has no weight"
        ):
            commanded(env, 0, 0, 0, RAISES)


def test_training_survives_a_dead_node(nodes: subprocess.Popen[str], caplog: Any):
    with ray_env(OBEDIENT, 2, timeout=20.0) as env:
        env.reset()
        commanded(env, 0, 0)
        assert nodes.stdin is not None
        assert nodes.stdout is not None
        nodes.stdin.write("kill\n")
        nodes.stdin.flush()
        assert nodes.stdout.readline() == "killed\n"
        lost, until = torch.zeros(2, dtype=torch.bool), time.monotonic() + 60
        while not lost.any() and time.monotonic() < until:
            step, timestep = commanded(env, 0, 0)
            lost = lost if step.lost is None else step.lost
        assert lost.sum() == 1
        assert timestep.obs["agent"][lost, 0, 2].tolist() == [0.0]
        assert (timestep.obs["agent"][~lost, 0, 2] > 1).all()
        assert "replaced a worker" in caplog.text
        assert commanded(env, 0, 0)[1].obs["agent"][lost, 0, 2].tolist() == [1.0]


def test_different_versions_are_an_error_of_the_worker():
    versions = json.dumps({"coterie": "99.1", "Python": "3.99"}).encode()
    reply = RayActor().do(START + versions + b"\n")
    assert isinstance(reply, bytes)
    assert reply[:1] == FAILED
    assert f"has coterie {coterie.__version__}, the trainer 99.1. Install the same version there" in reply.decode()


def test_ctrl_c_ends_the_workers_in_the_cluster(nodes: subprocess.Popen[str], tmp_path: Path):
    """A terminal sends it to the trainer and all processes of its group."""
    run = tmp_path / "run"
    words = tiny("algo=ippo", f"env={COUNTING}", "num_envs=2", "steps=1G", "eval.every=0", f"out={run}")
    workers = ("workers.count=1", "workers.kind=ray", "workers.address=auto")
    variables = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    trainer = Process(tmp_path, "train", *words, *workers, prepare=partial(lead_session, variables))
    try:
        log = run / "metrics.jsonl"  # a run that is stopped before its first update leaves nothing
        trainer.wait_for(lambda: log.exists() and "loss/policy" in log.read_text())
        actors = [pid for pid in family(nodes.pid) if name_of(pid).startswith("ray::RayActor")]
        assert len(actors) == 1  # there is no evaluation
        os.killpg(trainer.pid, signal.SIGINT)
        assert trainer.end()[0] == 130
    finally:
        with suppress(ProcessLookupError):
            os.killpg(trainer.pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in actors))
    assert coterie.load(run) is not None


def test_no_worker_and_no_ray_survive_a_killed_trainer(tmp_path: Path):
    """A trainer in a process of its own with a local Ray and a hanging worker, ended by SIGKILL."""
    trainer = Process(tmp_path, prepare=step_hanging_ray_worker)
    trainer.wait_for((tmp_path / "folder").exists)
    folder = Path((tmp_path / "folder").read_text())
    trainer.wait_for((tmp_path / "hangs").exists)
    started = family(trainer.pid)
    assert sum(name_of(pid).startswith("ray::RayActor") for pid in started) == 1
    assert folder.is_dir()
    trainer.signal(signal.SIGKILL)
    assert trainer.end()[0] == -signal.SIGKILL
    wait_for(lambda: not any(alive(pid) for pid in started) and not folder.exists())


def test_an_unavailable_ray_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_workers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs Ray, which is not installed: .*pip install -e '\S+\[ray\]'"):
        make("gym/CartPole-v1", {}, 2, workers=WorkersConfig(count=1, kind="ray"))


def test_an_invalid_address_is_an_error():
    with pytest.raises(UserError, match="expected local, auto or host:port"):
        resolve(["algo=ppo", "env=gym/CartPole-v1", "workers.kind=ray", "workers.address=ray://head"])


def family(pid: int) -> list[int]:
    """All descendants of a process."""
    parents = {int(entry): parent_of(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""

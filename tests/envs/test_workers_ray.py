"""Workers on Ray: the same bits as without them, every way in which one can fail, and nothing that is left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.__main__ import main
from coterie.collect import Collector
from coterie.envs.hosting.halves import Halves
from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.hosting.opening import opened
from coterie.envs.make import make
from coterie.envs.paths import difference, random_actions
from coterie.envs.vector import VectorEnv
from coterie.envs.workers import cluster
from coterie.errors import UserError, WorkersFailedError
from coterie.policy import RandomPolicy
from coterie.schema import WorkersConfig
from coterie.types import Action, Row, Step
from tinyruns import assert_same

HERE = Path(__file__).parent
COUNTING, OBEDIENT, WIDE = (f"gym/faultyworlds:{name}-v0" for name in ("Counting", "Obedient", "Wide"))
EXITS, KILLED, HANGS, RAISES, NAN = range(1, 6)


@pytest.fixture(scope="module", autouse=True)
def local() -> Iterator[None]:
    """One local Ray for all tests that use one."""
    with cluster.line_to("local", 2) as line:
        line.wait()
        yield


@pytest.fixture(scope="module")
def nodes() -> Iterator[subprocess.Popen[str]]:
    """A cluster of three nodes, two of them with one core each, where this process finds it as `auto`."""
    folder = tempfile.mkdtemp(prefix="coterie-test-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # it listens to this machine alone
        os.mkdir(f"{folder}/ray")
        with subprocess.Popen(
            [sys.executable, str(HERE / "raycluster.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline().startswith("127.0.0.1:")
            yield process
    shutil.rmtree(folder)


def on_ray(name: str, copies: int, count: int, **config: Any) -> HostedEnv:
    return HostedEnv(cluster.on_ray(name, {}, copies, WorkersConfig(count=count, kind="ray", **config)), 3, "cpu")


def alone(name: str, copies: int) -> HostedEnv:
    layout, instance = opened(name, {})
    return HostedEnv(Alone(instance, layout, copies), 3, "cpu")


def played(env: HostedEnv, row: Row, steps: int) -> list[Row | Step]:
    """Everything that random actions bring."""
    generator = torch.Generator().manual_seed(0)
    found: list[Row | Step] = []
    for _ in range(steps):
        step, row = env.step(random_actions(env.spec, row, generator))
        found += [step, row]
    return found


@pytest.mark.parametrize(("name", "copies", "workers"), [("gym/CartPole-v1", 5, 2), (WIDE, 5, 1)])
def test_workers_on_ray_give_the_same_bits_as_none(name: str, copies: int, workers: int):
    envs = [alone(name, copies), on_ray(name, copies, workers)]
    rows = [env.reset() for env in envs]
    assert difference(*rows) is None
    for a, b in zip(*(played(env, row, 40) for env, row in zip(envs, rows, strict=True)), strict=True):
        assert difference(a, b) is None
    if envs[0].spec.exact_resume:  # a state goes on whoever stepped before
        for one, other in (envs, envs[::-1]):
            state = one.state_dict()
            expected = played(one, rows[0], 12)
            other.load_state_dict(state)
            assert all(difference(a, b) is None for a, b in zip(played(other, rows[0], 12), expected, strict=True))
    for env in envs:
        env.close()


def test_halves_on_ray_are_acted_on_in_turn_and_give_the_same_bits():
    found, states = [], []
    for workers in (None, WorkersConfig(count=1, kind="ray", overlap=True)):
        env = make("gym/CartPole-v1", {}, 5, 3, workers=workers)
        assert isinstance(env, Halves) == (workers is not None)
        (team,) = env.spec.default_teams()
        collector = Collector(env, {team.name: RandomPolicy(team, env.device)}, 0)
        found.append([collector.advance(rows)[0]["agent"] for rows in (20, 1, 20)])
        states.append(env.state_dict())
        env.close()
    assert all(difference(one, other) is None for one, other in zip(*found, strict=True))
    assert_same(*states)


def test_a_worker_of_one_half_on_ray_that_fails_costs_its_own_copies_alone(caplog: Any):
    env = make(OBEDIENT, {}, 4, 3, workers=WorkersConfig(count=1, kind="ray", overlap=True, timeout=5.0, restarts=1))
    env.reset()
    commanded(env, 0, 0, 0, 0)
    step, row = commanded(env, 0, 0, 0, EXITS)
    assert step.lost is not None
    assert step.lost.tolist() == [False, False, True, True]
    assert row.obs["agent"][:, 0, 2].tolist() == [2.0, 2.0, 0.0, 0.0]
    assert "copies 2 to 3" in caplog.text
    assert "process ended" in caplog.text
    step, row = commanded(env, 0, 0, 0, 0)
    assert step.lost is None
    assert row.obs["agent"][:, 0, 2].tolist() == [3.0, 3.0, 1.0, 1.0]
    env.close()


def commanded(env: VectorEnv, *actions: int) -> tuple[Step, Row]:
    """A step of copies that do as they are told."""
    return env.step({"agent": Action(torch.tensor(actions).reshape(-1, 1, 1), None)})


def test_workers_that_fail_are_replaced_until_they_are_too_many(caplog: Any):
    env = on_ray(OBEDIENT, copies=4, count=2, timeout=5.0, restarts=3)
    number = env.reset().obs["agent"][:, 0, 0]
    age = torch.zeros(4)
    for fault, copy, words in ((EXITS, 1, "process ended"), (HANGS, 2, "within 5 s"), (NAN, 0, "NaN or infinite")):
        for told in (0, fault):
            step, row = commanded(env, *(told if k == copy else 0 for k in range(4)))
            age += 1
        gone = torch.arange(4) // 2 == copy // 2
        age[gone] = 0
        assert step.lost is not None
        assert torch.equal(step.lost, gone)
        assert row.obs["agent"][:, 0, 2].tolist() == age.tolist()  # the others go on
        assert row.obs["agent"][:, 0, 1].tolist() == [1.0] * 4
        assert (row.obs["agent"][:, 0, 0] != number).tolist() == gone.tolist()  # another seed
        assert torch.equal(row.first[:, 0], gone)
        assert row.acted.all()
        assert step.reward[:, 0].tolist() == age.tolist()
        assert words in caplog.text.splitlines()[-1]
        number = row.obs["agent"][:, 0, 0]
        assert commanded(env, 0, 0, 0, 0)[0].lost is None
        age += 1
    with pytest.raises(WorkersFailedError, match=r"failed 4 times.*copies 2 to 3 of .*the ball has no weight"):
        commanded(env, 0, 0, 0, RAISES)
    env.close()


def test_other_versions_elsewhere_are_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "versions", lambda: {"coterie": "99.1", "Python": "3.99"})
    with pytest.raises(UserError, match=f"has coterie {coterie.__version__}, the trainer 99.1: install the same there"):
        on_ray(COUNTING, 1, 1)


def test_a_run_that_fails_too_often_says_why_and_leaves_a_checkpoint(tmp_path: Path, capfd: Any):
    code = main(
        ["train", "algo=ppo", f"env={COUNTING}", "env.fault=killed", "env.episode=40", "copies=1", "steps=2000",
         "workers.count=1", "workers.kind=ray", "workers.restarts=0", "horizon=10", "device=cpu", "eval.every=0",
         "log.tensorboard=false", f"out={tmp_path / 'run'}", "progress=off"]
    )  # fmt: skip
    assert code == 3
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "its process ended" in said
    assert "workers.restarts=0" in said
    assert coterie.load(tmp_path / "run") is not None


def test_a_node_that_dies_is_done_without(nodes: subprocess.Popen[str], caplog: Any):
    env = on_ray(OBEDIENT, copies=2, count=2, address="auto", timeout=20.0)
    env.reset()
    commanded(env, 0, 0)
    assert nodes.stdin is not None
    assert nodes.stdout is not None
    nodes.stdin.write("kill\n")
    nodes.stdin.flush()
    assert nodes.stdout.readline() == "killed\n"
    lost = torch.zeros(2, dtype=torch.bool)
    until = time.monotonic() + 60
    while not lost.any() and time.monotonic() < until:
        step, row = commanded(env, 0, 0)
        lost = lost if step.lost is None else step.lost
    assert lost.sum() == 1
    assert row.obs["agent"][lost, 0, 2].tolist() == [0.0]
    assert (row.obs["agent"][~lost, 0, 2] > 1).all()
    assert "is replaced" in caplog.text
    assert commanded(env, 0, 0)[1].obs["agent"][lost, 0, 2].tolist() == [1.0]
    env.close()


def test_ctrl_c_leaves_no_worker_in_the_cluster(nodes: subprocess.Popen[str], tmp_path: Path):
    """As a terminal sends it: to the trainer and all that it started in its group."""
    words = [
        *("train", "algo=ppo", f"env={COUNTING}", "copies=2", "steps=1G", "workers.count=1", "workers.kind=ray"),
        *("workers.address=auto", "horizon=10", "device=cpu", "eval.every=0", "log.tensorboard=false", "progress=off"),
        f"out={tmp_path / 'run'}",
    ]
    trainer = subprocess.Popen(
        [sys.executable, "-m", "coterie", *words], env={**os.environ, "PYTHONPATH": str(HERE)}, start_new_session=True
    )
    try:
        wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists() or trainer.poll() is not None)
        actors = [pid for pid in family(nodes.pid) if name_of(pid).startswith("ray::Actor")]
        assert len(actors) == 1  # nothing is evaluated
        os.killpg(trainer.pid, signal.SIGINT)
        assert trainer.wait(60) == 130
    finally:
        trainer.kill()
        trainer.wait()
    wait_for(lambda: not any(alive(pid) for pid in actors))
    assert not any(alive(pid) for pid in actors)
    assert coterie.load(tmp_path / "run") is not None


def test_nothing_is_left_when_the_trainer_is_killed(tmp_path: Path):
    """A trainer of its own with a local Ray of its own and hanging workers, ended by a signal that it cannot answer."""
    script = tmp_path / "trainer.py"
    script.write_text(
        "from coterie.envs.workers import cluster\nfrom coterie.schema import WorkersConfig\n"
        "config = WorkersConfig(count=2, kind='ray', timeout=500)\n"
        f"host = cluster.on_ray({COUNTING!r}, {{'fault': 'hangs'}}, 2, config)\n"
        "host.reset(0)\n"
        "print(cluster._lines['local']._folder, flush=True)\n"
        "while True:\n    host.send()\n    host.receive()\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(HERE)}, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    folder = Path(trainer.stdout.readline().strip())
    time.sleep(0.5)  # the workers hang by now
    started = family(trainer.pid)
    assert sum(name_of(pid).startswith("ray::Actor") for pid in started) == 2
    assert folder.is_dir()
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    wait_for(lambda: not any(alive(pid) for pid in started) and not folder.exists())
    assert [name_of(pid) for pid in started if alive(pid)] == []
    assert not folder.exists()


def test_ray_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"workers\.address=127.0.0.1:1: Ray cannot be joined: .*Connection refused"):
        make("gym/CartPole-v1", {}, 2, workers=WorkersConfig(count=1, kind="ray", address="127.0.0.1:1"))
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs Ray, which is not installed: pip install 'coterie\[ray\]'"):
        make("gym/CartPole-v1", {}, 2, workers=WorkersConfig(count=1, kind="ray"))


def test_an_address_is_a_host_and_a_port(capsys: Any):
    code = main(["train", "algo=ppo", "env=gym/CartPole-v1", "workers.kind=ray", "workers.address=ray://head"])
    assert code == 2
    assert "expected local, auto or host:port" in capsys.readouterr().err


def wait_for(found: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not found() and time.monotonic() < until:
        time.sleep(0.05)


def family(pid: int) -> list[int]:
    """All processes that descend from one."""
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


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

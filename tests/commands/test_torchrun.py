"""Ranks that `torchrun` starts again, and the scripts of the page "Scale out"."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]

_WORDS = (
    *("algo=mappo", "env=particle/simple_spread", "num_envs=4", "algo.rollout_length=25", "steps=2000", "device=cpu"),
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


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks that are not killed."""
    run = tmp_path_factory.mktemp("reference") / "run"
    assert _start(run).wait() == 0
    return run


def test_ranks_that_are_started_again_end_the_run_with_the_same_bits(
    kill_runs: ModuleType, reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with _start(run) as launcher:
        until = time.monotonic() + 120
        while not (run / "checkpoints" / "last").exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(_process_of(1, launcher.pid), signal.SIGKILL)
    assert launcher.returncode == 0
    assert kill_runs.differences(reference, run) == []


# ------------------------------------------------------------------------------------------- the page "Scale out"


def _block(start: str) -> str:
    """Returns the block of code of the page that begins with this line."""
    text = (ROOT / "docs" / "how-to" / "scale-out.md").read_text(encoding="utf-8")
    return text.partition(f"\n{start}\n")[2].partition("\n```")[0]


def _small(script: str, run: Path, port: int) -> str:
    """Returns a script of the page that trains a small run on this machine."""
    changes = {
        "--nproc-per-node=4": "--nproc-per-node=1", "--master-port=29500": f"--master-port={port}",
        "num_envs=4096 device=cuda": "num_envs=4 device=cpu algo.rollout_length=25 steps=400 threads=1 eval.every=0 "
        "log.tensorboard=false progress=off",
    }  # fmt: skip
    for before, after in changes.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    return script.replace("runs/big", str(run))


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _environment(**more: str) -> dict[str, str]:
    """Returns the environment of a machine: this one, with the commands of this Python."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | more


def _pods(run: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Returns command and environment of the two pods of the page, with addresses of this machine."""
    service, job = yaml.safe_load_all("apiVersion: v1\n" + _block("```yaml\napiVersion: v1"))
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert service["metadata"]["name"] == pod["subdomain"]  # by which pod 0 is known as coterie-0.coterie
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,) = pod["containers"]
    assert f"--nnodes={job['spec']['completions']} " in container["args"][0]
    script = _small(container["args"][0], run, _free_port()).replace("coterie-0.coterie", "127.0.0.1")
    names = ({"RUN": str(run), "JOB_COMPLETION_INDEX": str(index)} for index in range(2))
    return [([*container["command"], script], _environment(**variables)) for variables in names]


def _slurm(run: Path, commands: Path) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of the script of the page, with stand-ins for the commands of two nodes."""
    _write(commands / "scontrol", '[ "$3" = "node[1-2]" ] && printf "127.0.0.1\\n127.0.0.2\\n"\n')
    _write(commands / "srun", 'SLURM_NODEID=1 "$@" & other=$!\nSLURM_NODEID=0 "$@" || exit 1\nwait $other\n')
    script = _small(_block("```bash\n#!/bin/bash"), run, _free_port())
    environment = _environment(SLURM_NNODES="2", SLURM_JOB_NODELIST="node[1-2]")
    return ["bash", "-c", script], environment | {"PATH": f"{commands}:{environment['PATH']}"}


def _write(command: Path, script: str) -> None:
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\n{script}")
    command.chmod(0o755)


def _calls_of_torchrun(command: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    """Runs a command with a stand-in for `torchrun`, and returns the arguments of its calls."""
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    _write(folder / "stand-ins" / "torchrun", f'echo "$*" >> {calls}\n')
    path = f"{folder / 'stand-ins'}:{environment['PATH']}"
    subprocess.run(command, env=environment | {"PATH": path}, check=True)
    return sorted(calls.read_text().splitlines())


def test_the_scripts_for_kubernetes_and_slurm_train_on_two_machines_and_continue(tmp_path: Path) -> None:
    """The job of Kubernetes trains the run, and the script for Slurm goes on with it; what both start is the same."""
    run, new = tmp_path / "run", tmp_path / "new"
    (first, second) = _calls_of_torchrun(*_slurm(new, tmp_path / "commands"), tmp_path)
    for rank, call in enumerate((first, second)):
        assert f"--nnodes=2 --node-rank={rank} --nproc-per-node=1 --master-addr=127.0.0.1 --master-port=" in call
        assert "-m coterie train algo=mappo env=particle/simple_spread" in call
        assert call.split()[-1] == f"out={new}"
    pods = [subprocess.Popen(command, env=environment) for command, environment in _pods(run)]
    assert [pod.wait() for pod in pods] == [0, 0]
    assert (run / "checkpoints" / "last").exists()
    for rank, pod in enumerate(_pods(run)):
        (call,) = _calls_of_torchrun(*pod, tmp_path)
        assert f"--nnodes=2 --node-rank={rank} " in call
        assert call.endswith(f" -m coterie resume {run}")
    command, environment = _slurm(run, tmp_path / "commands")
    subprocess.run(command, env=environment, check=True)  # it has ended

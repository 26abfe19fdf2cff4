"""The scripts of the page "Scale out", which start `torchrun`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from places import ROOT


def _block(start: str) -> str:
    """Returns the block of code of the page that begins with this line."""
    text = (ROOT / "docs" / "how-to" / "scale-out.md").read_text(encoding="utf-8")
    return text.partition(f"\n{start}\n")[2].partition("\n```")[0]


def _pods(run: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Returns command and environment of the two pods of the page."""
    service, job = yaml.safe_load_all("apiVersion: v1\n" + _block("```yaml\napiVersion: v1"))
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert service["metadata"]["name"] == pod["subdomain"]  # by which pod 0 is known as coterie-0.coterie
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,) = pod["containers"]
    assert f"--nnodes={job['spec']['completions']} " in container["args"][0]
    names = ({"RUN": str(run), "JOB_COMPLETION_INDEX": str(index)} for index in range(2))
    return [([*container["command"], *container["args"]], variables) for variables in names]


def _slurm(run: Path, commands: Path) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of the script of the page, with stand-ins for the commands of two nodes."""
    _write(commands / "scontrol", '[ "$3" = "node[1-2]" ] && printf "node1\\nnode2\\n"\n')
    _write(commands / "srun", 'SLURM_NODEID=1 "$@" & other=$!\nSLURM_NODEID=0 "$@" || exit 1\nwait $other\n')
    script = _block("```bash\n#!/bin/bash").replace("RUN=runs/big", f"RUN={run}")
    variables = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]", "PATH": f"{commands}:{os.environ['PATH']}"}
    return ["bash", "-c", script], variables


def _write(command: Path, script: str) -> None:
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\n{script}")
    command.chmod(0o755)


def _calls_of_torchrun(command: list[str], variables: dict[str, str], folder: Path) -> list[str]:
    """Runs a command with a stand-in for `torchrun`, and returns the arguments of its calls."""
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    _write(folder / "stand-ins" / "torchrun", f'echo "$*" >> {calls}\n')
    environment = os.environ | variables
    path = f"{folder / 'stand-ins'}:{environment['PATH']}"
    subprocess.run(command, env=environment | {"PATH": path}, check=True)
    return sorted(calls.read_text().splitlines())


@pytest.mark.parametrize("system", ["kubernetes", "slurm"])
def test_the_scripts_start_torchrun_on_each_machine_and_continue_a_run(system: str, tmp_path: Path) -> None:
    """The containers of compose.yaml really train and continue a run with such calls, in test_release.py."""
    run = tmp_path / "run"

    def calls() -> list[str]:
        if system == "slurm":
            return _calls_of_torchrun(*_slurm(run, tmp_path / "commands"), tmp_path)
        return [call for pod in _pods(run) for call in _calls_of_torchrun(*pod, tmp_path)]

    master = {"kubernetes": "coterie-0.coterie", "slurm": "node1"}[system]
    train = f"train algo=mappo env=particle/simple_spread num_envs=4096 device=cuda out={run}"
    for words in (train, f"resume {run}"):
        assert calls() == [
            f"--nnodes=2 --node-rank={rank} --nproc-per-node=4 --master-addr={master} --master-port=29500 "
            f"-m coterie {words}"
            for rank in range(2)
        ]
        run.mkdir(exist_ok=True)
        (run / "manifest.json").touch()

"""Sweeps on Slurm, with programs that speak the interfaces of sbatch and squeue and run tasks at once."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import tinyruns
from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.sweeps.slurm import SlurmOptions, run_on_slurm, slurm_script
from coterie.sweeps.sweep import Job, plan

SBATCH = """#!/bin/bash
# Accepts what sbatch accepts here: --parsable SCRIPT. Directives are those at the start of the script.
[ "$1" = --parsable ] && [ -f "$2" ] || { echo "sbatch: error: unexpected arguments" >&2; exit 1; }
if grep -q '^#SBATCH --partition=none' "$2"; then
  echo "sbatch: error: invalid partition specified: none" >&2
  exit 1
fi
cp "$2" "$SLURM_STAND_IN/submitted.sh"
echo "Note from the site"
echo "4711;cluster"
"""
SQUEUE = """#!/bin/bash
[ "$*" = "--me --array --noheader --format=%i" ] || exit 1
cat "$SLURM_STAND_IN/queue"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the queue of a cluster, and the current folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "queue").touch()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run_task(slurm: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a task of the submitted script in this process, as the script does."""
    script = (slurm / "submitted.sh").read_text()
    found = re.search(rf"^  {number}\) exec (.*) ;;$", script, re.MULTILINE)
    assert found is not None
    program, *words = shlex.split(found[1])
    assert (program, words[:3]) == (sys.executable, ["-m", "coterie", "train"])
    # without the preloading of forked runs: this process has threads, so that they are commands
    monkeypatch.setattr("coterie.sweeps.job_processes.ForkGate.preload", lambda gate: None)
    assert main(words[2:]) == 0


def _jobs(*words: str) -> list[Job]:
    return plan(tinyruns.tiny("seed=0,1,2", "out=sweep", *words))


def _submit(jobs: list[Job], **options: object) -> int:
    return run_on_slurm(jobs, None, SlurmOptions(**options), print_script=False, json=True)  # type: ignore[arg-type]


def test_the_script_has_a_task_for_each_job(slurm: Path):
    options = SlurmOptions(cores=4, gpus=1, parallel=2, sbatch=("--partition=long", "--comment=two words"))
    script = slurm_script(_jobs("algo.lr=1e-3"), Path("my config.yaml"), options)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert {"--array=0-2%2", "--cpus-per-task=4", "--gpus-per-task=1", "--partition=long"} <= set(directives)
    assert "'--comment=two words'" in directives
    assert f"--output={slurm}/sweep/slurm-%A_%a.log" in directives
    tasks = [shlex.split(line.split("exec ", 1)[1].removesuffix(" ;;")) for line in lines if "exec " in line]
    assert [task[:5] for task in tasks] == [[sys.executable, "-m", "coterie", "train", "-m"]] * 3
    assert all(task[-2:] == ["--config", str(slurm / "my config.yaml")] for task in tasks)
    assert [word for word in tasks[1] if word.startswith(("seed=", "out=", "threads="))] == [
        "threads=1", "seed=1", "out=sweep/seed1",
    ]  # fmt: skip


def test_jobs_in_the_queue_are_not_submitted_again(slurm: Path, capsys: pytest.CaptureFixture[str]):
    assert _submit(_jobs()) == 0
    messages = capsys.readouterr().err
    assert "[seed2] is submitted as 4711_2" in messages
    assert "State: squeue --job 4711. Stop: scancel 4711" in messages
    assert "--array=0-2\n" in (slurm / "submitted.sh").read_text()
    (slurm / "queue").write_text("17_0\n4711_0\n4711_2\n")  # the second one has ended without a result
    assert _submit(_jobs()) == 0
    messages = capsys.readouterr().err
    assert "[seed0] is in the queue as 4711_0" in messages
    assert "sweep of 3 runs: 0 finished, 0 to resume, 1 to start, 2 in the queue" in messages
    script = (slurm / "submitted.sh").read_text()
    assert "--array=0-0\n" in script
    assert "seed=1" in script
    assert "seed=2" not in script


@pytest.mark.slow
def test_tasks_run_their_jobs_and_the_rest_is_submitted_again(
    slurm: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    jobs = _jobs("seed=0,1")
    assert _submit(jobs) == 0
    _run_task(slurm, 1, monkeypatch)
    capsys.readouterr()
    _run_task(slurm, 1, monkeypatch)  # Slurm runs a task again after the failure of a node
    assert "skipped, finished in sweep/seed1" in capsys.readouterr().err
    assert _submit(jobs) == 0
    assert "1 finished, 0 to resume, 1 to start, 0 in the queue" in capsys.readouterr().err


def test_errors_of_slurm_are_one_line(slurm: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="sbatch has failed: sbatch: error: invalid partition specified: none"):
        _submit(_jobs(), sbatch=("--partition=none",))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(UserError, match="there is no sbatch on this machine"):
        _submit(_jobs())


def test_print_shows_the_script(slurm: Path, capsys: pytest.CaptureFixture[str]):
    words = ["train", "-m", *tinyruns.tiny("seed=0,1", "out=sweep"), "--launcher", "slurm cpus=3 --time=1", "--print"]
    assert main([*words, "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=coterie\n#SBATCH --array=0-1%1\n#SBATCH --cpus-per-task=3\n")
    assert "#SBATCH --time=1\n" in out
    assert not (slurm / "submitted.sh").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--launcher=local"], "--launcher: requires -m. Add -m."),
        (["-m", "--launcher=slrm"], "--launcher slrm: no such launcher. Did you mean 'slurm'"),
        (["-m", "--launcher=local gpus=1"], "--launcher 'local gpus=1': local has no option 'gpus'"),
        (["-m", "--launcher=slurm gpus=0.5"], "gpus=0.5 is not a number of GPUs. Write e.g. gpus=1."),
        (["-m", "--launcher=ray address=x"], "address=x is not auto, local or HOST:PORT"),
        (["-m", "--launcher=slurm '--time"], "No closing quotation. Close the quotation mark."),
        (["-m", "--launcher=local cpus=1000"], "--launcher: cpus=1000, but this machine has"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["train", *words, "seed=0,1"]) == 2
    assert message in capsys.readouterr().err

"""Sweeps on a Slurm cluster: an array job, whose k-th task runs the k-th job that is not finished.

Each task is a sweep of one job, so that a task that Slurm runs again continues its run. Next to the run's folder,
`NAME.slurm` has the number of the task, by which jobs that wait or run are not submitted again.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.core.terminal import print_line
from coterie.sweeps.job_runs import Found, find, print_results
from coterie.sweeps.sweep import Job, skipped

_DEFAULT_CORES = 2
_SECONDS_TO_SAVE = 120
"""Time before the end of a task's time limit at which its run saves its checkpoint and ends."""

_TIMEOUT = 60.0
"""Seconds that a command of Slurm may take."""


@dataclass(frozen=True)
class SlurmOptions:
    """Resources of the tasks of an array job.

    Attributes:
        cores: Cores per task; None for the threads that the jobs are configured with, otherwise 2.
        gpus: GPUs per task.
        parallel: Tasks at the same time; None for as many as the cluster runs.
        sbatch: Further options of sbatch, such as `--partition=long` and `--time=8:00:00`.
    """

    cores: int | None = None
    gpus: int = 0
    parallel: int | None = None
    sbatch: tuple[str, ...] = ()


def slurm_script(jobs: Sequence[Job], config_file: Path | None, options: SlurmOptions) -> str:
    """Returns the script of the array job."""
    threads = jobs[0].config.threads
    cores = options.cores or (threads if isinstance(threads, int) else _DEFAULT_CORES)
    limit = f"%{options.parallel}" if options.parallel else ""
    folder = jobs[0].out.absolute().parent
    directives = [
        "--job-name=coterie",
        f"--array=0-{len(jobs) - 1}{limit}",
        f"--cpus-per-task={cores}",
        *([f"--gpus-per-task={options.gpus}", "--ntasks=1"] if options.gpus else []),
        f"--chdir={Path.cwd()}",
        f"--output={folder}/slurm-%A_%a.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:TERM@{_SECONDS_TO_SAVE}",
        *options.sbatch,
    ]
    commands = [shlex.join(_words(job, config_file, cores)) for job in jobs]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(word) if ' ' in word else word}" for word in directives),
        f"export OMP_NUM_THREADS={cores}",
        *(f"export PYTHONPATH={shlex.quote(path)}" for path in [os.environ.get("PYTHONPATH", "")] if path),
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"  {number}) exec {command} ;;" for number, command in enumerate(commands)),
        "esac",
        'echo "no job has the number $SLURM_ARRAY_TASK_ID" >&2',
        "exit 2",
    ]
    return "\n".join(lines) + "\n"


def run_on_slurm(
    jobs: Sequence[Job], config_file: Path | None, options: SlurmOptions, *, print_script: bool, json: bool
) -> int:
    """Submits an array job for all jobs that are not finished and do not wait or run already.

    If all are finished, prints their results.

    Args:
        jobs: The jobs.
        config_file: Configuration file of all jobs.
        options: Resources.
        print_script: True to print the script instead of submitting it.
        json: As in `run_all`, for results.

    Returns:
        0.

    Raises:
        UserError: If the folder of a job contains another run, or if Slurm refuses the array job.
    """
    queued = _queued(jobs)
    found = {job.name: find(job.config, job.out, named=job.named) for job in jobs if job.name not in queued}
    wanted = [job for job in jobs if job.name in found and found[job.name].state != "finished"]
    if print_script:
        if wanted:
            for line in slurm_script(wanted, config_file, options).splitlines():
                print_line(line)
        else:
            print_line(f"no job is left to submit: {_counts(found, queued)}", sys.stderr)
        return 0
    for job in jobs:
        if job.name in queued:
            print_line(f"[{job.name}] is in the queue as {queued[job.name]}", sys.stderr)
    if not wanted:
        if queued:
            print_line(f"nothing to submit: {_counts(found, queued)}. See them with: squeue --me", sys.stderr)
        else:
            print_results([skipped(job, found[job.name]) for job in jobs], json)
        return 0
    for job in wanted:
        job.out.parent.mkdir(parents=True, exist_ok=True)
    number = _submit(slurm_script(wanted, config_file, options), wanted[0].out.parent / "sweep.sbatch")
    for task, job in enumerate(wanted):
        write_text(_record(job), f"{number}_{task}\n")
        print_line(f"[{job.name}] is submitted as {number}_{task}", sys.stderr)
    print_line(f"{_counts(found, queued)}. State: squeue --job {number}. Stop: scancel {number}", sys.stderr)
    print_line("For results, and to submit again what failed, run the same command later", sys.stderr)
    return 0


def _words(job: Job, config_file: Path | None, cores: int) -> list[str]:
    """Returns the command of a task: a sweep of one job, which skips, resumes or starts its run."""
    threads = [] if any(word.startswith("threads=") for word in job.words) else [f"threads={cores}"]
    config = ["--config", str(config_file.absolute())] if config_file else []
    return [sys.executable, "-m", "coterie", "train", "-m", *job.words, *threads, *config]


def _record(job: Job) -> Path:
    return job.out.with_name(f"{job.out.name}.slurm")


def _queued(jobs: Sequence[Job]) -> dict[str, str]:
    """Returns the jobs that wait or run in the cluster, with the numbers of their tasks."""
    records: dict[str, str] = {}
    for job in jobs:
        if _record(job).is_file():
            records[job.name] = _record(job).read_text(encoding="utf-8").strip()
    if not records or shutil.which("squeue") is None:
        return {}
    lines = _call(["squeue", "--me", "--array", "--noheader", "--format=%i"], "--launcher slurm").split()
    return {name: number for name, number in records.items() if number in lines}


def _submit(script: str, path: Path) -> str:
    """Writes and submits a script. Returns the number of the array job."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "--launcher slurm: there is no sbatch on this machine. Run the command where jobs are submitted, or add "
            "--print and submit the script there."
        )
    write_text(path, script)
    # the last line, because sites print notes; with several clusters it is NUMBER;CLUSTER
    answer = _call(["sbatch", "--parsable", str(path)], "sbatch").strip().splitlines() or [""]
    number = re.fullmatch(r"(\d+)(;\S*)?", answer[-1].strip())
    if number is None:
        raise UserError(f"sbatch: expected the number of a job, but it printed '{answer[-1]}'. Submit {path} yourself.")
    return number[1]


def _call(words: Sequence[str], what: str) -> str:
    """Returns the output of a command of Slurm. UserError with its message if it fails."""
    try:
        result = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{what}: {words[0]} cannot be run: {error}.") from error
    if result.returncode:
        message = " ".join((result.stderr or result.stdout).split()) or f"exit code {result.returncode}"
        raise UserError(f"{what}: {words[0]} has failed: {message.rstrip('.')}. Change the options of --launcher.")
    return result.stdout


def _counts(found: dict[str, Found], queued: dict[str, str]) -> str:
    states = [run.state for run in found.values()]
    counts = (
        f"{states.count('finished')} finished, {states.count('broken')} to resume, {states.count('missing')} to start"
    )
    return f"sweep of {len(found) + len(queued)} runs: {counts}, {len(queued)} in the queue"

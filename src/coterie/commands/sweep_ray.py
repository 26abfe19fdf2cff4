"""Sweeps on a Ray cluster: each job runs on a node with the resources it needs, and its run is copied back."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json as jsonlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from coterie.commands.ray_job import OUT, RayJob, pack, unpack
from coterie.commands.sweep import Job, announce, outcome_of, print_job_line
from coterie.commands.sweep_results import print_results
from coterie.commands.sweep_runs import Found, find
from coterie.core.errors import UserError
from coterie.core.installation import install_extra
from coterie.core.process import interruptible
from coterie.core.terminal import print_line
from coterie.core.threads import available_cores
from coterie.envs.external.workers.ray_client import LOCAL, connect_error, connect_ray
from coterie.envs.external.workers.ray_workers import process_environment

_COPY_SECONDS = 30.0
"""Seconds between two copies of a run that is not finished."""

_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class RayOptions:
    """Resources of jobs.

    Attributes:
        address: Address of the cluster: `auto`, `host:port`, or `local` to start one on this machine.
        cores: Cores per job; None for the threads that a job is configured with, otherwise 1.
        gpus: GPUs per job.
        parallel: Jobs at the same time; None for as many as the cluster runs.
        copy_seconds: Seconds between two copies of a run that is not finished.
    """

    address: str = "auto"
    cores: int | None = None
    gpus: float = 0.0
    parallel: int | None = None
    copy_seconds: float = _COPY_SECONDS


def run_on_ray(jobs: Sequence[Job], config_file: Path | None, options: RayOptions, *, json: bool) -> int:
    """Runs every job that has no finished run on Ray, as `run_all` does on this machine.

    Returns:
        0, the highest exit code of the failed jobs, or 130 after an interruption.

    Raises:
        UserError: If Ray is not installed or cannot be reached, or as in `run_all`.
    """
    found = [find(job.config, job.out, named=job.named) for job in jobs]
    announce(jobs, found)
    with _connected(options) as ray:
        sweep = _RaySweep(ray, jobs, found, config_file, options=options)
        with interruptible(lambda: None) as received, contextlib.suppress(KeyboardInterrupt):
            sweep.run(received)
        outcomes = sweep.outcomes()
    print_results(outcomes, json)
    if received:
        return 130
    return max((outcome["exit_code"] or 0 for outcome in outcomes), default=0)


@contextlib.contextmanager
def _connected(options: RayOptions) -> Any:
    """Context manager that connects to Ray, or starts it."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"--launcher ray: Ray is not installed. Install it with: {install_extra('ray')}")
    os.environ.update(process_environment(options.address))
    folder = tempfile.mkdtemp(prefix="coterie-", dir="/tmp") if options.address == LOCAL else ""
    ray = importlib.import_module("ray")
    try:
        known = options.address if ":" in options.address else ""
        try:
            connect_ray(ray, options.address, known=known, folder=folder, cores=available_cores())
        except Exception as error:
            raise UserError(
                f"--launcher ray: no Ray at address={options.address}: {connect_error(error).rstrip('.')}. Start it "
                "with `ray start --head`, or write --launcher 'ray address=local'."
            ) from error
        yield ray
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Active:
    """A job on Ray."""

    job: Job
    actor: Any
    reply: Any
    started: float
    runs: bool = False
    last_line: str = ""


@final
class _RaySweep:
    """Runs the jobs that are not finished.

    Args:
        ray: The module `ray`, connected.
        jobs: All jobs.
        found: Their runs from before.
        config_file: Configuration file of all jobs.
        options: Resources.
    """

    def __init__(
        self, ray: Any, jobs: Sequence[Job], found: Sequence[Found], config_file: Path | None, *, options: RayOptions
    ):
        self._ray, self._jobs, self._options = ray, jobs, options
        self._config = config_file.read_text(encoding="utf-8") if config_file is not None else None
        self._found = dict(zip((job.name for job in jobs), found, strict=True))
        self._waiting = [job for job in jobs if self._found[job.name].state != "finished"]
        self._active: list[_Active] = []
        self._done: dict[str, dict[str, Any]] = {}

    def run(self, received: Sequence[int]) -> None:
        """Runs until all jobs have ended, or those that run after a signal was `received`."""
        stopped = False
        while self._active or (self._waiting and not received):
            limit = self._options.parallel or len(self._jobs)
            while self._waiting and not received and len(self._active) < limit:
                self._start(self._waiting.pop(0))
            if received and not stopped:
                stopped = True
                self._stop()
            replies = {active.reply: active for active in self._active}
            ready, _ = self._ray.wait(list(replies), num_returns=1, timeout=_WAIT_SECONDS) if replies else ([], [])
            for reply in ready:
                self._receive(replies[reply])

    def outcomes(self) -> list[dict[str, Any]]:
        """Returns the result of every job in their order."""
        return [outcome_of(job, self._found[job.name], self._done.get(job.name)) for job in self._jobs]

    def _start(self, job: Job) -> None:
        options, run = self._options, self._found[job.name]
        threads = job.config.threads
        cores = options.cores or (threads if isinstance(threads, int) else 1)
        if run.path is not None:
            words = ["resume", OUT, "--trust", "--json"]
        else:
            words = ["train", *(word for word in job.overrides if not word.startswith("out=")), f"out='{OUT}'"]
            words += [] if any(word.startswith("threads=") for word in words) else [f"threads={cores}"]
            words += ["--json", *(["--config", "{config}"] if self._config is not None else [])]
        actor_class = self._ray.remote(num_cpus=cores, num_gpus=options.gpus, max_restarts=0)(RayJob)
        actor = actor_class.remote(
            words,
            run=pack(run.path) if run.path is not None else None,
            config=self._config,
            folder=os.getcwd(),
            module_path=os.environ["PYTHONPATH"],
            copy_seconds=options.copy_seconds,
        )
        print_job_line(job, f"waits for {cores} cores" + (f" and {options.gpus:g} GPUs" if options.gpus else ""))
        self._active.append(_Active(job, actor, actor.poll.remote(), time.monotonic()))

    def _receive(self, active: _Active) -> None:
        """Reads a reply of a job: its messages, files and end."""
        try:
            lines, files, code, report = self._ray.get(active.reply)
        except self._ray.exceptions.RayError as error:
            message = str(error).strip().splitlines()[0]
            self._end(
                active, 3, {}, f"its process on the cluster was lost ({message}). Run the sweep again to resume it"
            )
            return
        if not active.runs:
            active.runs, active.started = True, time.monotonic()
        for line in lines:
            active.last_line = line.strip() or active.last_line
            print_job_line(active.job, line)
        if files is not None:
            unpack(files, self._path(active.job))
        if code is None:
            active.reply = active.actor.poll.remote()
            return
        found: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            found = jsonlib.loads(report) | {"run": str(self._path(active.job))}
        self._end(active, code, found, active.last_line.removeprefix("coterie: ") if code else "")

    def _end(self, active: _Active, code: int, report: dict[str, Any], error: str) -> None:
        self._active.remove(active)
        self._ray.kill(active.actor)
        resumed = self._found[active.job.name].state == "broken"
        state = "interrupted" if code in {130, 143} else "failed" if code else "resumed" if resumed else "finished"
        outcome = {"state": state, "exit_code": code, "wall_s": time.monotonic() - active.started, **report}
        self._done[active.job.name] = outcome | ({"error": error or f"exit code {code}"} if code else {})
        if code:
            print_job_line(active.job, f"{state} with exit code {code}: {error}")

    def _stop(self) -> None:
        """Interrupts the jobs that run, which save their checkpoints, and drops those that wait for resources."""
        print_line(
            f"stopping {len(self._active)} runs after their checkpoints (press Ctrl-C again to kill them)", sys.stderr
        )
        for active in list(self._active):
            if active.runs:
                active.actor.interrupt.remote()
            else:
                self._active.remove(active)
                self._ray.kill(active.actor)

    def _path(self, job: Job) -> Path:
        return self._found[job.name].path or job.out

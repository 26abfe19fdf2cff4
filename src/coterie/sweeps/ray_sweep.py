"""Sweeps on a Ray cluster: each job runs on a node with the resources it needs, and its run is copied back."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json as jsonlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from coterie.core.errors import UserError
from coterie.core.installation import install_extra
from coterie.core.process import available_cores
from coterie.envs.external.workers.ray_client import LOCAL, connect_error, connect_ray
from coterie.envs.external.workers.ray_workers import process_environment
from coterie.sweeps.job_runs import Found
from coterie.sweeps.ray_job import OUT, RayJob, pack, unpack
from coterie.sweeps.sweep import Job, Scheduler, announce

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
    found = announce(jobs)
    with _connected(options) as ray:
        return _RayScheduler(ray, jobs, found, config_file, options=options).run(json=json)


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
    """A job on Ray.

    Attributes:
        job: The job.
        actor: Ray's actor that runs it.
        reply: The reply of the actor that is waited for.
        started: Monotonic time at its start.
        runs: False while it waits for resources.
        last_line: Its last message.
    """

    job: Job
    actor: Any
    reply: Any
    started: float
    runs: bool = False
    last_line: str = ""


@final
class _RayScheduler(Scheduler):
    """Runs jobs on the nodes of a Ray cluster.

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
        super().__init__(jobs, found, options.parallel or len(jobs))
        self._ray, self._options = ray, options
        self._config = config_file.read_text(encoding="utf-8") if config_file is not None else None

    def _start(self, job: Job, found: Found) -> _Active:
        options, threads = self._options, job.config.threads
        cores = options.cores or (threads if isinstance(threads, int) else 1)
        if found.path is not None:
            words = ["resume", OUT, "--trust", "--json"]
        else:
            words = ["train", *(word for word in job.overrides if not word.startswith("out=")), f"out='{OUT}'"]
            words += [] if any(word.startswith("threads=") for word in words) else [f"threads={cores}"]
            words += ["--json", *(["--config", "{config}"] if self._config is not None else [])]
        actor_class = self._ray.remote(num_cpus=cores, num_gpus=options.gpus, max_restarts=0)(RayJob)
        actor = actor_class.remote(
            words,
            run=pack(found.path) if found.path is not None else None,
            config=self._config,
            folder=os.getcwd(),
            module_path=os.environ["PYTHONPATH"],
            copy_seconds=options.copy_seconds,
        )
        note = f"waits for {cores} cores" + (f" and {options.gpus:g} GPUs" if options.gpus else "")
        self._display.start(job.name, note, state="waiting for resources")
        return _Active(job, actor, actor.poll.remote(), time.monotonic())

    def _poll(self) -> None:
        replies = {active.reply: active for active in self._running.values()}
        ready, _ = self._ray.wait(list(replies), num_returns=1, timeout=_WAIT_SECONDS) if replies else ([], [])
        for reply in ready:
            self._receive(replies[reply])

    def _receive(self, active: _Active) -> None:
        """Reads a reply of a job: its messages, files and end."""
        job = active.job
        try:
            lines, files, code, report = self._ray.get(active.reply)
        except self._ray.exceptions.RayError as error:
            message = str(error).strip().splitlines()[0]
            text = f"its process on the cluster was lost ({message}). Run the sweep again to resume it"
            self._release(active, 3, {}, text)
            return
        if not active.runs:
            active.runs, active.started = True, time.monotonic()
            self._display.start(job.name)
        for line in lines:
            active.last_line = line.strip() or active.last_line
        folder = self._found[job.name].path or job.out
        if files is not None:
            unpack(files, folder)
        if code is None:
            active.reply = active.actor.poll.remote()
            return
        found: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            found = jsonlib.loads(report) | {"run": str(folder)}
        self._release(active, code, found, active.last_line.removeprefix("coterie: "))

    def _release(self, active: _Active, code: int, report: dict[str, Any], error: str) -> None:
        self._ray.kill(active.actor)
        self._end(active.job, code, started=active.started, report=report, error=error)

    def _stop(self) -> None:
        """Interrupts the jobs that run, and drops those that wait for resources."""
        for name, active in list(self._running.items()):
            if active.runs:
                active.actor.interrupt.remote()
            else:
                del self._running[name]
                self._ray.kill(active.actor)

    def _kill(self) -> None:
        """Does nothing: the jobs end with the connection to the cluster, and can be resumed."""

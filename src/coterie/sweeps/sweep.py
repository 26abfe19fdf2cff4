"""Sweeps: one process per combination of comma-separated values. Running one again continues it."""

from __future__ import annotations

import contextlib
import json as jsonlib
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from coterie.assembly.core_sets import core_sets
from coterie.assembly.resolve import resolve
from coterie.config.overrides import Override, combinations, parse, parse_all
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.process import MAX_DEFAULT_THREADS, available_cores, interruptible
from coterie.core.terminal import print_line
from coterie.core.text import coterie_command
from coterie.sweeps.job_processes import ForkGate, Running, wait_for_output
from coterie.sweeps.job_runs import Found, default_folder, find, identity, print_results, settings_of
from coterie.sweeps.sweep_display import SweepRow, sweep_display

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

STOPPED = (INTERRUPTED, 143)
"""Exit codes of runs that a signal has stopped, which saved their checkpoints."""

_POLL_SECONDS = 0.05
"""Time between checks for processes that ended while something that they started keeps their output open."""


@dataclass(frozen=True)
class Job:
    """One combination of a sweep.

    Attributes:
        name: Short name made of the values that vary.
        configuration: The same without the seed, equal for all seeds of a configuration.
        overrides: All settings, as on the command line.
        config: The configuration that they result in.
        out: Folder of its run.
        named: True if the user has chosen the folder, which `overrides` contains then.
    """

    name: str
    configuration: str
    overrides: tuple[str, ...]
    config: RunConfig
    out: Path
    named: bool

    @property
    def head(self) -> dict[str, Any]:
        """The first entries of its outcome."""
        return {"job": self.name, "configuration": self.configuration, "seed": self.config.seed}

    @property
    def words(self) -> list[str]:
        """Settings with the folder of the run."""
        return [*self.overrides] if self.named else [*self.overrides, out_word(self.out)]


def plan(overrides: Sequence[str], config_file: Path | None = None) -> list[Job]:
    """Returns the jobs of a sweep, after checking every combination.

    With `out=FOLDER`, here or in the file, each combination gets the folder FOLDER/<name>, otherwise
    `runs/<env>/<algo>/<name>-<identity of its settings>`.

    Raises:
        UserError: For the first combination that is invalid, and for two that are equal.
    """
    parsed = parse_all(list(overrides))
    varying = [override for override in parsed if override.is_sweep]
    jobs: list[Job] = []
    for combination in combinations(parsed):
        name = _name(combination, varying)
        if any(job.name == name for job in jobs):
            name = f"{name}-{len(jobs)}"
        config = resolve(combination, config_file).config
        out = config.out
        if out is not None and varying and not any(override.key == "out" for override in varying):
            out = out / name
            combination = [*(text for text in combination if not text.startswith("out=")), out_word(out)]
        others = [override for override in varying if override.key != "seed"]
        configuration = _name(combination, others) if others else f"{config.algo.name} on {config.env.name}"
        folder = default_folder(config, name) if out is None else out
        jobs.append(Job(name, configuration, tuple(combination), config, folder, out is not None))
    _require_different(jobs)
    return jobs


def shell_commands(jobs: Sequence[Job], config_file: Path | None = None) -> list[str]:
    """Returns the jobs as lines for a shell or a cluster's queue."""
    config = ["--config", config_file] if config_file else []
    return [coterie_command("train", *job.words, *config) for job in jobs]


def run_all(
    jobs: Sequence[Job],
    config_file: Path | None = None,
    num_parallel: int = 1,
    json: bool = False,
    *,
    tables: bool = True,
    command: Sequence[str] = (sys.executable, "-m", "coterie"),
    gate: ForkGate | None = None,
) -> int:
    """Runs every job that has no finished run, shows their progress, and at the end tables of results.

    Broken runs are resumed. Ctrl-C and SIGTERM stop all jobs, which save their checkpoints.

    Args:
        jobs: The jobs.
        config_file: Configuration file of all jobs.
        num_parallel: Number of jobs that run at the same time.
        json: True to print one JSON object per job to stdout instead of the tables.
        tables: False to print no results at the end.
        command: Command that runs Coterie.
        gate: Check for jobs that are forked instead, after `ForkGate.preload`. They start without importing anything.

    Returns:
        0, the highest exit code of the failed jobs, or 130 after an interruption.

    Raises:
        UserError: If the folder of a job contains another run, or another process writes to its run.
    """
    found = announce(jobs)
    threads = _threads(jobs, config_file, num_parallel)
    starter = JobStarter(config_file, threads=threads, num_parallel=num_parallel, command=command, gate=gate)
    return _LocalScheduler(jobs, found, num_parallel, starter).run(tables=tables, json=json)


# ---------------------------------------------------------------------------------------------------------------- names


def _name(combination: Sequence[str], varying: Sequence[Override]) -> str:
    """Returns e.g. `ippo-seed0` for algo=ippo seed=0: names alone, other values after the last word of the key."""
    words = []
    for text in combination:
        key, _, value = text.partition("=")
        if any(override.key == key for override in varying):
            plain = str(parse(text).values[0]).rpartition("/")[2]
            word = plain if key.rpartition(".")[2] in {"algo", "env"} else f"{key.rpartition('.')[2]}{value}"
            words.append(re.sub(r"[^\w.+-]+", "_", word, flags=re.ASCII).strip("_"))
    return "-".join(words) or "run"


def out_word(folder: Path) -> str:
    """Returns the setting of a run's folder, quoted as the command line needs it."""
    text = str(folder)
    plain = re.fullmatch(r"[^,'\"\[\]{}\s\\]+", text)
    return f"out={text}" if plain else "out='" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _require_different(jobs: Sequence[Job]) -> None:
    """Raises UserError if two jobs would be the same run."""
    first: dict[str, Job] = {}
    for job in jobs:
        same = first.setdefault(identity(settings_of(job.config)), job)
        if same is not job:
            pairs = [pair for pair in zip(same.overrides, job.overrides, strict=True) if pair[0] != pair[1]]
            shown = [" ".join(words) for words in zip(*pairs, strict=True)] or [same.name, job.name]
            raise UserError(f"-m: '{shown[0]}' and '{shown[1]}' are the same run. Remove one of them.")


def announce(jobs: Sequence[Job]) -> list[Found]:
    """Finds the runs of jobs, and prints which are skipped and resumed, and how many are started.

    Raises:
        UserError: If the folder of a job contains another run, or another process writes to its run.
    """
    found = [find(job.config, job.out, named=job.named) for job in jobs]
    for job, run in zip(jobs, found, strict=True):
        if run.state != "missing":
            text = f"skipped, finished in {run.path}" if run.state == "finished" else f"resumes {run.path}"
            note = f". {run.note}. Remove that folder to train it again" if run.note else ""
            print_line(f"[{job.name}] {text}{note}", sys.stderr)
    states = [run.state for run in found]
    if len(states) > states.count("missing"):
        counts = f"{states.count('finished')} finished, {states.count('broken')} to resume"
        print_line(f"sweep of {len(states)} runs: {counts}, {states.count('missing')} to start", sys.stderr)
    return found


def fitting_jobs(cores: int | None) -> int:
    """Returns the number of jobs with a number of cores each, by default one, that fit on this machine.

    Raises:
        UserError: If not even one does.
    """
    available = available_cores()
    if (cores or 1) > available:
        raise UserError(f"--launcher: cpus={cores}, but this machine has {available}. Choose at most {available}.")
    return available // (cores or 1)


def _threads(jobs: Sequence[Job], config_file: Path | None, num_parallel: int) -> int | None:
    """Returns the threads of each process, so that together they use all cores; None for the configured number."""
    num_parallel = min(num_parallel, len(jobs))
    if num_parallel < 2 or resolve(jobs[0].overrides, config_file).origins["threads"] != "default":
        return None
    return max(1, min(MAX_DEFAULT_THREADS, available_cores() // num_parallel))


# -------------------------------------------------------------------------------------------------------------- running


@final
class JobStarter:
    """Starts the processes of jobs on this machine.

    Args:
        config_file: Configuration file of all jobs.
        threads: PyTorch threads of each run; None for those that are configured.
        num_parallel: Processes at the same time. With `threads`, each has cores of its own if there are enough.
        command: Program that runs Coterie.
        gate: Check for jobs that are forked instead.
    """

    def __init__(
        self,
        config_file: Path | None,
        *,
        threads: int | None,
        num_parallel: int,
        command: Sequence[str],
        gate: ForkGate | None,
    ):
        self._config_file, self._threads, self._command, self._gate = config_file, threads, command, gate
        self._free_cores = core_sets(threads, num_parallel)

    def start(self, job: Job, found: Found) -> Running:
        """Starts a job's run, or resumes the one that was found. Its messages are in a log next to its folder."""
        if found.path is not None:
            words = ["resume", str(found.path), "--trust", "--json"]
        else:
            words = ["train", *job.words, "--json", *([f"threads={self._threads}"] if self._threads else [])]
            words += ["--config", str(self._config_file)] if self._config_file else []
        command = self._gate.main if self._gate is not None and self._gate.is_safe() else self._command
        log = job.out.with_name(f"{job.out.name}.log")
        return Running(words, command, self._free_cores.pop(), log=log)

    def end(self, running: Running) -> int:
        """Closes a process that has ended, whose cores become free. Returns its exit code."""
        self._free_cores.append(running.cores)
        return running.close()


class Scheduler(ABC):
    """Runs the jobs that are not finished, a number of them at a time.

    Args:
        jobs: All jobs.
        found: Their runs from before.
        num_parallel: Number of jobs that run at the same time.
    """

    def __init__(self, jobs: Sequence[Job], found: Sequence[Found], num_parallel: int):
        self._jobs, self._num_parallel = jobs, num_parallel
        self._found = dict(zip((job.name for job in jobs), found, strict=True))
        self._waiting = [job for job in jobs if self._found[job.name].state != "finished"]
        self._running: dict[str, Any] = {}
        rows = [SweepRow(job.name, job.config.steps, run.path or job.out) for job, run in zip(jobs, found, strict=True)]
        for row, job, run in zip(rows, jobs, found, strict=True):
            if run.state == "finished":
                row.finish(skipped(job, run))
            elif run.state == "broken":
                row.state = "to resume"
        self._display = sweep_display(rows)
        self._done: dict[str, dict[str, Any]] = {}

    def run(self, *, json: bool, tables: bool = True) -> int:
        """Runs until all jobs have ended, or after a signal those that run, and prints the results.

        Args:
            json: As in `run_all`.
            tables: As in `run_all`.

        Returns:
            0, the highest exit code of the failed jobs, or 130 after an interruption.
        """
        with interruptible(lambda: None) as received, self._display:
            try:
                self._loop(received)
            except KeyboardInterrupt:
                self._kill()
        outcomes = [self._outcome(job) for job in self._jobs]
        if tables or json:
            print_results(outcomes, json)
        if received:
            return INTERRUPTED
        return max((outcome["exit_code"] or 0 for outcome in outcomes), default=0)

    def _loop(self, received: Sequence[int]) -> None:
        stopped = False
        while self._running or (self._waiting and not received):
            while self._waiting and not received and len(self._running) < self._num_parallel:
                job = self._waiting.pop(0)
                self._running[job.name] = self._start(job, self._found[job.name])
            if received and not stopped:
                stopped = True
                count = len(self._running)
                self._display.print_line(
                    f"stopping {count} runs after their checkpoints (press Ctrl-C again to kill them)"
                )
                self._stop()
            self._poll()
            self._display.update()

    def _end(self, job: Job, code: int, *, started: float, report: Mapping[str, Any], error: str) -> None:
        """Records the end of a job that runs."""
        del self._running[job.name]
        resumed = self._found[job.name].state == "broken"
        state = "interrupted" if code in STOPPED else "failed" if code else "resumed" if resumed else "finished"
        outcome = {"state": state, "exit_code": code, "wall_s": time.monotonic() - started, **report}
        self._done[job.name] = outcome | ({"error": error or f"exit code {code}"} if code else {})
        self._display.end(job.name, self._done[job.name])

    def _outcome(self, job: Job) -> dict[str, Any]:
        """Returns exit code, wall time, report and, after a failure, the error of a job."""
        if job.name in self._done:
            return {**job.head, **self._done[job.name]}
        if self._found[job.name].state == "finished":
            return skipped(job, self._found[job.name])
        return {**job.head, "state": "not started", "exit_code": None, "error": "not started"}

    @abstractmethod
    def _start(self, job: Job, found: Found) -> Any:
        """Starts a job, or resumes its run. Returns what the subclass keeps in `_running` until the job has ended."""

    @abstractmethod
    def _poll(self) -> None:
        """Waits a moment for the jobs that run, and calls `_end` for those that have ended."""

    @abstractmethod
    def _stop(self) -> None:
        """Interrupts the jobs that run, which then save their checkpoints and end."""

    @abstractmethod
    def _kill(self) -> None:
        """Kills the jobs that run."""


@final
class _LocalScheduler(Scheduler):
    """Runs jobs as processes of this machine."""

    def __init__(self, jobs: Sequence[Job], found: Sequence[Found], num_parallel: int, starter: JobStarter):
        super().__init__(jobs, found, num_parallel)
        self._starter = starter

    def _start(self, job: Job, found: Found) -> tuple[Job, Running]:
        running = self._starter.start(job, found)
        self._display.start(job.name)
        return job, running

    def _poll(self) -> None:
        wait_for_output((running for _, running in self._running.values()), _POLL_SECONDS)
        for job, running in list(self._running.values()):
            if running.process.exit_code() is not None:
                self._close(job, running)

    def _stop(self) -> None:
        for _, running in self._running.values():
            running.interrupt()

    def _kill(self) -> None:
        for _, running in self._running.values():
            running.kill()
        for job, running in list(self._running.values()):
            self._close(job, running)

    def _close(self, job: Job, running: Running) -> None:
        code = self._starter.end(running)
        report: dict[str, Any] = {}
        with contextlib.suppress(ValueError, IndexError):
            report = jsonlib.loads(running.output.decode(errors="replace").splitlines()[-1])
        self._end(job, code, started=running.started, report=report, error=running.error)


def skipped(job: Job, found: Found) -> dict[str, Any]:
    """Returns the outcome of a job whose run was finished before."""
    return {**job.head, "state": "skipped", "exit_code": 0, **found.report}

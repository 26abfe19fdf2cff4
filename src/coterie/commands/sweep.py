"""Sweeps: one process per combination of comma-separated values. Running one again continues it."""

from __future__ import annotations

import contextlib
import json as jsonlib
import re
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.commands.core_sets import core_sets
from coterie.commands.sweep_processes import ForkGate, Running
from coterie.commands.sweep_results import print_results
from coterie.commands.sweep_runs import Found, default_folder, find, identity, settings_of
from coterie.config.overrides import Override, combinations, parse, parse_all
from coterie.config.resolve import resolve
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.process import interruptible
from coterie.core.shell import coterie_command
from coterie.core.terminal import print_line
from coterie.core.threads import MAX_DEFAULT_THREADS, available_cores

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
    command: Sequence[str] | None = (sys.executable, "-m", "coterie"),
    gate: ForkGate | None = None,
) -> int:
    """Runs every job that has no finished run, shows their output with their names, and at the end tables of results.

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
    found = [find(job.config, job.out, named=job.named) for job in jobs]
    announce(jobs, found)
    scheduler = _Scheduler(jobs, found, config_file, num_parallel, command=command, gate=gate)
    with interruptible(lambda: None) as received:
        try:
            scheduler.run(received)
        except KeyboardInterrupt:
            scheduler.kill()
    outcomes = scheduler.outcomes()
    if tables or json:
        print_results(outcomes, json)
    if received:
        return 130
    return max((outcome["exit_code"] or 0 for outcome in outcomes), default=0)


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


def announce(jobs: Sequence[Job], found: Sequence[Found]) -> None:
    """Prints which jobs are skipped and resumed, and how many are started."""
    for job, run in zip(jobs, found, strict=True):
        if run.state != "missing":
            text = f"skipped, finished in {run.path}" if run.state == "finished" else f"resumes {run.path}"
            print_job_line(job, text + (f". {run.note}. Remove that folder to train it again" if run.note else ""))
    states = [run.state for run in found]
    if len(states) > states.count("missing"):
        counts = f"{states.count('finished')} finished, {states.count('broken')} to resume"
        print_line(f"sweep of {len(states)} runs: {counts}, {states.count('missing')} to start", sys.stderr)


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


class _Scheduler:
    """Runs the jobs that are not finished, a number of them at a time.

    Args:
        jobs: All jobs.
        found: Their runs from before.
        config_file, num_parallel, command, gate: As in `run_all`.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        found: Sequence[Found],
        config_file: Path | None,
        num_parallel: int,
        *,
        command: Sequence[str] | None,
        gate: ForkGate | None,
    ):
        self._jobs, self._config_file, self._command, self._gate = jobs, config_file, command, gate
        self._found = dict(zip((job.name for job in jobs), found, strict=True))
        self._waiting = [job for job in jobs if self._found[job.name].state != "finished"]
        self._num_parallel = num_parallel
        self._threads = _threads(jobs, config_file, num_parallel)
        self._free_cores = core_sets(self._threads, num_parallel)
        self._running: dict[str, tuple[Job, Running]] = {}
        self._done: dict[str, dict[str, Any]] = {}

    def run(self, received: Sequence[int]) -> None:
        """Runs until all jobs have ended, or those that run after a signal was `received`."""
        stopped = False
        while self._running or (self._waiting and not received):
            while self._waiting and not received and len(self._running) < self._num_parallel:
                self._start(self._waiting.pop(0))
            if received and not stopped:
                stopped = True
                self._stop()
            self._read(_POLL_SECONDS)
            for name in [
                name for name, (_, running) in self._running.items() if running.process.exit_code() is not None
            ]:
                self._end(name)

    def kill(self) -> None:
        """Kills the jobs that run."""
        for _, running in self._running.values():
            running.kill()
        for name in list(self._running):
            self._end(name)

    def outcomes(self) -> list[dict[str, Any]]:
        """Returns the result of every job in their order."""
        return [outcome_of(job, self._found[job.name], self._done.get(job.name)) for job in self._jobs]

    def _start(self, job: Job) -> None:
        run = self._found[job.name]
        words = [*(["resume", str(run.path), "--trust"] if run.path else ["train", *job.words]), "--json"]
        if run.path is None:
            words += [f"threads={self._threads}"] if self._threads else []
            words += ["--config", str(self._config_file)] if self._config_file else []
        command = None if self._gate is not None and self._gate.is_safe() else self._command
        log = job.out.with_name(f"{job.out.name}.log")
        print_job_line(job, "started: " + coterie_command(*words))
        running = Running(
            words, command, self._free_cores.pop(), log=log, on_line=lambda line: print_job_line(job, line)
        )
        self._running[job.name] = (job, running)

    def _read(self, timeout: float) -> None:
        """Waits for output of any job, and reads it."""
        streams = {stream: running for _, running in self._running.values() for stream in running.open_streams}
        if not streams:
            time.sleep(timeout)
            return
        for stream in select.select(list(streams), [], [], timeout)[0]:
            streams[stream].read(stream)

    def _stop(self) -> None:
        """Interrupts every process, which then saves its checkpoint and ends."""
        count = len(self._running)
        print_line(f"stopping {count} runs after their checkpoints (press Ctrl-C again to kill them)", sys.stderr)
        for _, running in self._running.values():
            running.interrupt()

    def _end(self, name: str) -> None:
        job, running = self._running.pop(name)
        self._free_cores.append(running.cores)
        code = running.close()
        report: dict[str, Any] = {}
        with contextlib.suppress(ValueError, IndexError):
            report = jsonlib.loads(running.output.decode(errors="replace").splitlines()[-1])
        outcome = {"exit_code": code, "wall_s": time.monotonic() - running.started, **report}
        if code:
            outcome["error"] = running.last_line.removeprefix("coterie: ") or f"exit code {code}"
            print_job_line(job, f"failed with exit code {code}")
        resumed = self._found[name].state == "broken"
        state = "interrupted" if code in {130, 143} else "failed" if code else "resumed" if resumed else "finished"
        self._done[name] = {"state": state, **outcome}


def outcome_of(job: Job, found: Found, done: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns exit code, wall time, report and, after a failure, the error of a job.

    Args:
        job: The job.
        found: Its run from before.
        done: Result of the run that this sweep started; None without one.
    """
    head = {"job": job.name, "configuration": job.configuration, "seed": job.config.seed}
    if done is not None:
        return {**head, **done}
    if found.state == "finished":
        return {**head, "state": "skipped", "exit_code": 0, **found.report}
    return {**head, "state": "not started", "exit_code": None, "error": "not started"}


def print_job_line(job: Job, line: str) -> None:
    """Prints a line with the name of its job on stderr."""
    print_line(f"[{job.name}] {line}", sys.stderr)

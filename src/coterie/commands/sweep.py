"""Sweeps: one process per combination of comma-separated values."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from coterie.config.overrides import Override, combinations, parse, parse_all
from coterie.config.resolve import resolve
from coterie.core.json_output import print_json
from coterie.core.process import interruptible
from coterie.core.terminal import print_line
from coterie.core.threads import MAX_DEFAULT_THREADS, available_cores


@dataclass(frozen=True)
class Job:
    """One combination of a sweep.

    Attributes:
        name: Short name made of the values that vary.
        overrides: All settings.
    """

    name: str
    overrides: tuple[str, ...]


@dataclass
class _Running:
    """A job's process with its output; the last line of stderr is the reason of a failure."""

    job: Job
    process: subprocess.Popen[str]
    started: float
    cores: frozenset[int] = frozenset()
    """The cores that the job has for itself; empty for all cores."""
    output: list[str] = field(default_factory=list)
    last_line: str = ""
    waiter: threading.Thread = field(default_factory=threading.Thread)


def plan(overrides: Sequence[str], config_file: Path | None = None) -> list[Job]:
    """Returns the jobs of a sweep, after checking every combination.

    With `out=FOLDER`, here or in the file, each combination gets the folder FOLDER/<name>.

    Raises:
        UserError: For the first combination that is invalid.
    """
    parsed = parse_all(list(overrides))
    varying = [override for override in parsed if override.is_sweep]
    jobs: list[Job] = []
    for combination in combinations(parsed):
        name = _name(combination, varying)
        if any(job.name == name for job in jobs):
            name = f"{name}-{len(jobs)}"
        out = resolve(combination, config_file).config.out
        if out is not None and varying and not any(override.key == "out" for override in varying):
            combination = [*(text for text in combination if not text.startswith("out=")), _out(out / name)]
        jobs.append(Job(name, tuple(combination)))
    return jobs


def shell_commands(jobs: Sequence[Job], config_file: Path | None = None) -> list[str]:
    """Returns the jobs as lines for a shell or a cluster's queue."""
    config = ["--config", str(config_file)] if config_file else []
    return [shlex.join(["coterie", "train", *job.overrides, *config]) for job in jobs]


def run_all(
    jobs: Sequence[Job],
    config_file: Path | None = None,
    num_parallel: int = 1,
    json: bool = False,
    command: Sequence[str] = (sys.executable, "-m", "coterie"),
) -> int:
    """Runs every job, shows their output with their names, and at the end a table of results.

    Ctrl-C and SIGTERM stop all jobs, which save their checkpoints.

    Args:
        jobs: The jobs.
        config_file: Configuration file of all jobs.
        num_parallel: Number of jobs that run at the same time.
        json: True to print one JSON object per job to stdout instead of the table.
        command: Command that runs Coterie.

    Returns:
        0, the highest exit code of the failed jobs, or 130 after an interruption.
    """
    waiting: list[Job] = list(jobs)
    running: list[_Running] = []
    done: list[dict[str, Any]] = []
    threads = _threads(jobs, config_file, num_parallel)
    free_cores = _core_sets(threads, num_parallel)
    ended: SimpleQueue[_Running | None] = SimpleQueue()  # None after a signal; its `put` may run within `get`
    with interruptible(lambda: ended.put(None)) as received:
        try:
            while running or (waiting and not received):
                while waiting and not received and len(running) < num_parallel:
                    words = _words(waiting[0], config_file, threads, command)
                    running.append(_start(waiting.pop(0), words, len(command), free_cores.pop(), ended=ended))
                job = ended.get()
                if job is None:
                    _stop(running)
                else:
                    running.remove(job)
                    free_cores.append(job.cores)
                    done.append(_outcome(job))
        except KeyboardInterrupt:
            done += _kill(running)
    done += [{"job": job.name, "exit_code": None, "error": "not started"} for job in waiting]
    _print_results(done, json)
    if received:
        return 130
    return max((outcome["exit_code"] or 0 for outcome in done), default=0)


# ---------------------------------------------------------------------------------------------------------------- names


def _name(combination: Sequence[str], varying: Sequence[Override]) -> str:
    """Returns e.g. `ippo-seed0` for algo=ippo seed=0: names alone, other values after the last word of the key."""
    words = []
    for text in combination:
        key, _, value = text.partition("=")
        if any(override.key == key for override in varying):
            plain = str(parse(text).values[0]).rpartition("/")[2]
            word = plain if key.rpartition(".")[2] in {"algo", "env"} else f"{key.rpartition('.')[2]}{value}"
            words.append(re.sub(r"[^\w.+-]+", "_", word).strip("_"))
    return "-".join(words) or "run"


def _out(folder: Path) -> str:
    text = str(folder)
    plain = re.fullmatch(r"[^,'\"\[\]{}\s\\]+", text)
    return f"out={text}" if plain else "out='" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _threads(jobs: Sequence[Job], config_file: Path | None, num_parallel: int) -> int | None:
    """Returns the threads of each process, so that together they use all cores; None for the configured number."""
    num_parallel = min(num_parallel, len(jobs))
    if num_parallel < 2 or resolve(jobs[0].overrides, config_file).origins["threads"] != "default":
        return None
    return max(1, min(MAX_DEFAULT_THREADS, available_cores() // num_parallel))


def _core_sets(threads: int | None, num_parallel: int) -> list[frozenset[int]]:
    """Returns cores for each of the jobs that run at the same time; empty sets where they cannot be divided."""
    cores = sorted(os.sched_getaffinity(0)) if threads and hasattr(os, "sched_getaffinity") else []
    if threads is None or len(cores) < threads * num_parallel:
        return [frozenset()] * num_parallel
    return [frozenset(cores[i * threads : (i + 1) * threads]) for i in range(num_parallel)]


# ------------------------------------------------------------------------------------------------------------ processes


def _words(job: Job, config_file: Path | None, threads: int | None, command: Sequence[str]) -> list[str]:
    """Returns the command line of a job."""
    words = [*command, "train", *job.overrides, "--json"]
    words += [f"threads={threads}"] if threads else []
    return words + (["--config", str(config_file)] if config_file else [])


def _start(
    job: Job, words: Sequence[str], skip: int, cores: frozenset[int], *, ended: SimpleQueue[_Running | None]
) -> _Running:
    """Starts a job in a new session, so that Ctrl-C reaches it only once, through `_stop`.

    Args:
        job: The job.
        words: Its command line.
        skip: Words that name the program, which are shown as `coterie`.
        cores: Cores that only this job uses; empty for all.
        ended: Receives the job at its end.
    """
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if cores:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(process.pid, cores)
    running = _Running(job, process, time.monotonic(), cores)
    _print(job, "started: " + shlex.join(["coterie", *words[skip:]]))
    readers = [
        _reader(process.stdout, running.output.append),
        _reader(process.stderr, lambda line: _read_error_line(running, line)),
    ]

    def wait() -> None:
        process.wait()
        for reader in readers:
            reader.join()
        ended.put(running)

    running.waiter = threading.Thread(target=wait, daemon=True)
    running.waiter.start()
    return running


def _reader(stream: IO[str] | None, on_line: Callable[[str], object]) -> threading.Thread:
    """Passes on the lines of a stream until it ends."""

    def read() -> None:
        assert stream is not None
        with stream:
            for line in stream:
                on_line(line.rstrip("\n"))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _read_error_line(running: _Running, line: str) -> None:
    if line.strip():
        running.last_line = line.strip()
        _print(running.job, line)


def _print(job: Job, line: str) -> None:
    print_line(f"[{job.name}] {line}", sys.stderr)


def _stop(running: Sequence[_Running]) -> None:
    """Interrupts every process, which then saves its checkpoint and ends."""
    print_line(f"stopping {len(running)} runs after their checkpoints (press Ctrl-C again to kill them)", sys.stderr)
    for job in running:
        job.process.send_signal(signal.SIGINT)


def _kill(running: Sequence[_Running]) -> list[dict[str, Any]]:
    for job in running:
        job.process.kill()
    for job in running:
        job.waiter.join()
    return [_outcome(job) for job in running]


# -------------------------------------------------------------------------------------------------------------- results


def _outcome(running: _Running) -> dict[str, Any]:
    """Returns exit code, wall time, report and, after a failure, the error of a job that ended."""
    code = running.process.returncode
    code = 128 - code if code < 0 else code  # ended by a signal: the exit code of a shell
    report: dict[str, Any] = {}
    if running.output:
        with contextlib.suppress(ValueError):
            report = jsonlib.loads(running.output[-1])
    outcome = {"job": running.job.name, "exit_code": code, "wall_s": time.monotonic() - running.started, **report}
    if code:
        outcome["error"] = running.last_line.removeprefix("coterie: ") or f"exit code {code}"
        _print(running.job, f"failed with exit code {code}")
    return outcome


def _print_results(done: Sequence[dict[str, Any]], json: bool) -> None:
    if json:
        for outcome in done:
            print_json(outcome)
        return
    from coterie.runs.tables import print_table

    teams = list(dict.fromkeys(team for outcome in done for team in outcome.get("teams", {})))
    columns_by_team = [(team, name) for team in teams for name in ("random", "now", "best")]
    columns = ["job", "exit", "wall, s", *(f"{team}: {name}" for team, name in columns_by_team), "run"]
    rows = [
        [
            outcome["job"],
            outcome["exit_code"],
            outcome.get("wall_s"),
            *(outcome.get("teams", {}).get(team, {}).get(name) for team, name in columns_by_team),
            outcome.get("run") or outcome.get("error"),
        ]
        for outcome in done
    ]
    print_table(columns, rows, title=f"{sum(o['exit_code'] == 0 for o in done)} of {len(done)} runs succeeded")

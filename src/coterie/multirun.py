"""Sweeps: every combination of comma-separated values as a process of its own."""

from __future__ import annotations

import contextlib
import json as jsonlib
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

from coterie.config import resolve
from coterie.overrides import Override, combinations, parse, parse_all
from coterie.process import interruptible
from coterie.schema import MOST_THREADS, available_cores


@dataclass(frozen=True)
class Job:
    """One combination: a short name made of the values that vary, and its settings."""

    name: str
    overrides: tuple[str, ...]


@dataclass
class _Running:
    """A job's process, with what it has said on stdout; the last line of stderr tells why it failed."""

    job: Job
    process: subprocess.Popen[str]
    started: float
    said: list[str] = field(default_factory=list)
    last_line: str = ""
    waiter: threading.Thread = field(default_factory=threading.Thread)


def plan(overrides: Sequence[str], config_file: Path | None = None) -> list[Job]:
    """Every combination, each checked before anything runs. UserError for the first that cannot be resolved.

    With `out=FOLDER`, here or in the file, each combination gets the folder FOLDER/<name>.
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
    """The jobs as lines for a shell or a cluster's queue."""
    config = ["--config", str(config_file)] if config_file else []
    return [shlex.join(["coterie", "train", *job.overrides, *config]) for job in jobs]


def run_all(
    jobs: Sequence[Job],
    config_file: Path | None = None,
    at_once: int = 1,
    json: bool = False,
    command: Sequence[str] = (sys.executable, "-m", "coterie"),
) -> int:
    """Runs every job, `at_once` at a time, shows their lines with their names, and at the end a table of results.

    json: print one JSON object a job to stdout instead of the table. Ctrl-C and SIGTERM stop all jobs, which write
    their checkpoints. Returns 0, the highest exit code of the jobs that failed, or 130 if it was interrupted.
    """
    waiting: list[Job] = list(jobs)
    running: list[_Running] = []
    done: list[dict[str, Any]] = []
    threads = _threads(jobs, config_file, at_once)
    ended: SimpleQueue[_Running | None] = SimpleQueue()  # None: a signal came; its `put` may run within `get`
    with interruptible(lambda: ended.put(None)) as received:
        try:
            while running or (waiting and not received):
                while waiting and not received and len(running) < at_once:
                    running.append(_start(waiting.pop(0), config_file, threads, command, ended))
                job = ended.get()
                if job is None:
                    _stop(running)
                else:
                    running.remove(job)
                    done.append(_outcome(job))
        except KeyboardInterrupt:
            done += _kill(running)
    done += [{"job": job.name, "exit_code": None, "why": "not started"} for job in waiting]
    _show(done, json)
    if received:
        return 130
    return max((outcome["exit_code"] or 0 for outcome in done), default=0)


# ---------------------------------------------------------------------------------------------------------------- names


def _name(combination: Sequence[str], varying: Sequence[Override]) -> str:
    """`ippo-seed0` for algo=ippo seed=0: names stand for themselves, other values behind the last word of their key."""
    words = []
    for text in combination:
        key, _, value = text.partition("=")
        if any(override.key == key for override in varying):
            plain = str(parse(text).values[0]).rpartition("/")[2]
            said = plain if key.rpartition(".")[2] in {"algo", "env"} else f"{key.rpartition('.')[2]}{value}"
            words.append(re.sub(r"[^\w.+-]+", "_", said).strip("_"))
    return "-".join(words) or "run"


def _out(folder: Path) -> str:
    text = str(folder)
    plain = re.fullmatch(r"[^,'\"\[\]{}\s\\]+", text)
    return f"out={text}" if plain else "out='" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _threads(jobs: Sequence[Job], config_file: Path | None, at_once: int) -> int | None:
    """Threads of each process, so that together they take the cores at hand; None leaves them to the configuration."""
    at_once = min(at_once, len(jobs))
    if at_once < 2 or resolve(jobs[0].overrides, config_file).origins["threads"] != "default":
        return None
    return max(1, min(MOST_THREADS, available_cores() // at_once))


# ------------------------------------------------------------------------------------------------------------ processes


def _start(
    job: Job, config_file: Path | None, threads: int | None, command: Sequence[str], ended: SimpleQueue[_Running | None]
) -> _Running:
    """Starts a job in a session of its own, so that Ctrl-C reaches it once, through `_stop`."""
    words = [*command, "train", *job.overrides, "--json"]
    words += [f"threads={threads}"] if threads else []
    words += ["--config", str(config_file)] if config_file else []
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    running = _Running(job, process, time.monotonic())
    _say(job, "started: " + shlex.join(["coterie", *words[len(command) :]]))
    readers = [
        _reader(process.stdout, running.said.append),
        _reader(process.stderr, lambda line: _heard(running, line)),
    ]

    def wait() -> None:
        process.wait()
        for reader in readers:
            reader.join()
        ended.put(running)

    running.waiter = threading.Thread(target=wait, daemon=True)
    running.waiter.start()
    return running


def _reader(stream: IO[str] | None, take: Callable[[str], object]) -> threading.Thread:
    """Hands on line by line what a process says, until it is silent for good."""

    def read() -> None:
        assert stream is not None
        with stream:
            for line in stream:
                take(line.rstrip("\n"))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _heard(running: _Running, line: str) -> None:
    if line.strip():
        running.last_line = line.strip()
        _say(running.job, line)


def _say(job: Job, line: str) -> None:
    sys.stderr.write(f"[{job.name}] {line}\n")
    sys.stderr.flush()


def _stop(running: Sequence[_Running]) -> None:
    """Interrupts every process, which then writes its checkpoint and ends."""
    sys.stderr.write(f"stopping {len(running)} runs; their checkpoints are written (Ctrl-C again: kill them)\n")
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
    """What is known of a job that ended: exit code, wall time, its own report, and why it failed."""
    code = running.process.returncode
    code = 128 - code if code < 0 else code  # ended by a signal: what a shell would say
    report: dict[str, Any] = {}
    if running.said:
        with contextlib.suppress(ValueError):
            report = jsonlib.loads(running.said[-1])
    outcome = {"job": running.job.name, "exit_code": code, "wall_s": time.monotonic() - running.started, **report}
    if code:
        outcome["why"] = running.last_line.removeprefix("coterie: ") or f"exit code {code}"
        _say(running.job, f"failed with exit code {code}")
    return outcome


def _show(done: Sequence[dict[str, Any]], json: bool) -> None:
    if json:
        for outcome in done:
            print(jsonlib.dumps(outcome))
        return
    from coterie.tables import print_table

    teams = list(dict.fromkeys(team for outcome in done for team in outcome.get("teams", {})))
    measures = [(team, what) for team in teams for what in ("random", "now", "best")]
    columns = ["job", "exit", "wall, s", *(f"{team}: {what}" for team, what in measures), "run"]
    rows = [
        [
            outcome["job"],
            outcome["exit_code"],
            outcome.get("wall_s"),
            *(outcome.get("teams", {}).get(team, {}).get(what) for team, what in measures),
            outcome.get("run") or outcome.get("why"),
        ]
        for outcome in done
    ]
    print_table(columns, rows, title=f"{sum(o['exit_code'] == 0 for o in done)} of {len(done)} runs ended well")

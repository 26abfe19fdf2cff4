"""Processes of cases, forked from one that has imported everything, and what counts as a failure of a case.

A fork executes `coterie WORDS...` from the command line's entry point, in a session of its own, with its output in
files. It may use 60 s of its own CPU time, so that a busy machine makes no case fail, and 6 GiB of memory more than it
starts with.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie.__main__ as entry
from coterie.commands import train
from coterie.envs.external.workers import processes

CPU_SECONDS, WALL_SECONDS = 60, 180
LONG_CPU_SECONDS = 2.0
"""CPU time after which a run that may be long is interrupted."""
LONG_WALL_SECONDS = 10.0
"""The same in seconds, for a run that waits."""
ENDING_SECONDS = 10.0
"""Seconds in which the processes of a command have to end after it."""

CODES = {0, entry.USER_ERROR, entry.FAILED}
CHECKS = {"check-env", "check-algo", "demos", "diagnose"}
"""Commands that end with 1 if a check fails."""

TRACEBACK, SIGNAL, STATUS, SILENT = "traceback", "signal", "undocumented exit code", "no message"
LONG_LINE, HANG, LEFT = "line over 1,000 characters", "hang", "processes left"
FAILURES = (TRACEBACK, HANG, SIGNAL, STATUS, SILENT, LONG_LINE, LEFT)

_MAX_LINE = 1000
_SERVING = "Press Ctrl-C"
"""Words of a command that serves until it is interrupted."""
_INTERRUPTED = "interrupted"
"""Name of the file that a process writes when it interrupts itself."""
_MEMORY = 6 * 2**30
_FILE_SIZE = 2**29
_PRELOADED_BY_WORKERS = [*processes.PRELOADED, "coterie.envs.external.workers.worker_loop", "gymnasium"]
_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ended:
    """End of a command.

    Attributes:
        code: Exit code, negative for a signal; None if it did not end.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
        interrupted: True if it was interrupted.
        left: Number of its processes that did not end.
        cpu: CPU time in seconds of the process and the children it waited for.
        wall: Duration in seconds.
    """

    code: int | None
    out: str
    err: str
    interrupted: bool
    left: int
    cpu: float
    wall: float


def failure_of(command: str, ended: Ended) -> str | None:
    """Returns the first of `FAILURES` that applies to the end of a command, or None."""
    text = ended.out + ended.err
    codes = CODES | ({1} if command in CHECKS else set()) | ({entry.INTERRUPTED} if ended.interrupted else set())
    if "Traceback (most recent call last)" in text:
        return TRACEBACK
    if ended.code is None or ended.code == -signal.SIGXCPU:
        return HANG
    if ended.code < 0:
        return SIGNAL
    if ended.code not in codes:
        return STATUS
    if ended.code and not text.strip():
        return SILENT
    if any(len(line) > _MAX_LINE for line in ended.err.splitlines()):
        return LONG_LINE
    return LEFT if ended.left else None


def execute(words: list[str], folder: Path, *, serves: bool = False, may_be_long: bool = False) -> Ended:
    """Executes `coterie WORDS...` in a fork of this process.

    Args:
        words: The command.
        folder: Its folder; `work` in it is its working directory.
        serves: True if it is interrupted when it has written an address.
        may_be_long: True if it is interrupted after a while.
    """
    folder = folder.resolve()
    started = time.monotonic()
    before = os.times()
    process = _CONTEXT.Process(target=_child, args=(words, folder, may_be_long and not serves))
    process.start()
    assert process.pid is not None
    interrupted = _wait(process, folder, started, serves=serves, may_be_long=may_be_long)
    code = process.exitcode
    if code is None:
        _kill(folder)
        process.join()
    left = _left(folder)
    cpu = sum(os.times()[2:4]) - sum(before[2:4])
    interrupted = interrupted or (folder / _INTERRUPTED).exists()
    return Ended(code, _text(folder / "out"), _text(folder / "err"), interrupted, left, cpu, time.monotonic() - started)


def _wait(process: Any, folder: Path, started: float, *, serves: bool, may_be_long: bool) -> bool:
    """Waits for the end of a process. Returns True if it was interrupted."""
    interrupted = False
    while process.exitcode is None and time.monotonic() - started < WALL_SECONDS:
        process.join(0.05 if serves and not interrupted else 1.0)
        is_late = (serves or may_be_long) and time.monotonic() - started > LONG_WALL_SECONDS
        is_ready = serves and _SERVING in _text(folder / "out") + _text(folder / "err")
        if process.exitcode is None and not interrupted and (is_late or is_ready):
            os.kill(process.pid, signal.SIGINT)
            interrupted = True
    return interrupted


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def _left(folder: Path) -> int:
    """Returns the number of processes in a folder that do not end in time, and kills them."""
    limit = time.monotonic() + ENDING_SECONDS
    while (found := _processes(folder)) and time.monotonic() < limit:
        time.sleep(0.05)
    _kill(folder)
    return len(found)


def _kill(folder: Path) -> None:
    """Kills the processes in a folder, and those that they start meanwhile."""
    while found := _processes(folder):
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def _processes(folder: Path) -> list[int]:
    """Returns the running processes whose working directory is in a folder, whatever their session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if Path(os.readlink(path)).is_relative_to(folder):
                found.append(int(path.parent.name))
    return found


def _child(words: list[str], folder: Path, may_be_long: bool) -> None:
    gc.freeze()  # a collection would copy all that the parent has imported
    os.setsid()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which shells ignore in background jobs, like nohup SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(folder / "work")
    state = {"HOME": str(folder), "XDG_STATE_HOME": str(folder.parent / "state"), "COLUMNS": "120"}
    os.environ.update(state)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.modules["__main__"] = entry  # which workers import
    processes.PRELOADED[:] = _PRELOADED_BY_WORKERS
    train.draw_curves = lambda folder: None
    os.fsync = lambda handle: None
    _limit()
    if may_be_long:
        interrupted = folder / _INTERRUPTED
        signal.signal(signal.SIGPROF, lambda number, frame: _interrupt(interrupted))
        signal.setitimer(signal.ITIMER_PROF, LONG_CPU_SECONDS)
    sys.exit(entry.main(words))


def _interrupt(mark: Path) -> None:
    mark.touch()
    os.kill(os.getpid(), signal.SIGINT)


def _limit() -> None:
    """Limits the CPU time, memory and file size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_SIZE, _FILE_SIZE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def copy(path: Path, target: Path) -> None:
    """Copies a file or folder."""
    if path.is_dir():
        shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns("*.png", "*.svg"))
    else:
        shutil.copyfile(path, target)

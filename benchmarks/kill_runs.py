"""Training processes that are killed, and the bit-for-bit comparison of two finished runs.

A process is forked from one that has imported everything, because importing PyTorch takes longer than a whole run. The
fork starts its own session and executes the command `coterie WORDS...` from the command line's entry point. It differs
from a new process in three ways: everything is imported, the fork server of worker processes imports their modules once
for all of them, and no curves are drawn at the end. `new_process` starts a genuinely new one instead.

A moment is a time after the start, or a file operation: creating, renaming or removing a file or folder, or
synchronizing it to disk. The process counts these by an audit hook and a wrapper of `os.fsync`. It is killed right
before an operation, or a few milliseconds later, for instance while a file is half written. Every kill is a SIGKILL of
the whole process group, workers included.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import coterie.__main__ as entry
import coterie.runs.plots
from coterie.envs.external.workers import processes
from coterie.runs import checkpoints

TIME, BEFORE, AFTER = "at a random time", "right before a file operation", "shortly after a file operation"
NEW = "at a random time, in a new process"
KINDS = (TIME, BEFORE, AFTER, NEW)

TIMEOUT = 180.0
"""Seconds after which a process that should have ended counts as failed."""

PHASES = (
    *("before the manifest", "before the first checkpoint", "while writing a checkpoint"),
    *("between checkpoints", "after the last checkpoint"),
    "in an experiment of several runs",
)

_MAX_DELAY = 0.005  # seconds between a file operation and the kill after it
_CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.truncate"}
_VARYING = {"wall_s", "metrics_bytes"}  # the log's length depends on the digits of wall-clock times
_PRELOADED_BY_WORKERS = [*processes.PRELOADED, "coterie.envs.external.workers.worker_loop", "gymnasium"]
_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Moment:
    """Moment of a kill: a time in seconds after the start, or a file operation by its number, plus a delay."""

    kind: str
    seconds: float = TIMEOUT
    operation: int = 0
    delay: float = 0.0


NEVER = Moment("never")


@dataclass(frozen=True)
class Ended:
    """End of a process: its exit code, negative for a signal; its output, seconds and number of file operations."""

    code: int | None
    output: str
    seconds: float
    operations: int

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL and self.seconds < TIMEOUT


def draw(generator: random.Random, seconds: float, operations: int) -> Moment:
    """Returns a random moment of a run that takes `seconds` and `operations` file operations."""
    kind = generator.choices((TIME, BEFORE, AFTER), weights=(2, 1, 1))[0]
    if kind == TIME:
        return Moment(TIME, seconds=generator.uniform(0, seconds))
    delay = 0.0 if kind == BEFORE else generator.uniform(0, _MAX_DELAY)
    return Moment(kind, operation=generator.randint(1, operations), delay=delay)


# --------------------------------------------------------------------------------------------------------- processes


def forked(words: list[str], folder: Path, moment: Moment = NEVER) -> Ended:
    """Executes `coterie WORDS...` in a fork of this process, in `folder`, and kills it at `moment`."""
    started = time.monotonic()
    operations = _CONTEXT.RawValue(ctypes.c_long, 0)
    reader, writer = os.pipe()
    process = _CONTEXT.Process(target=_child, args=(words, folder, moment, writer, operations))
    process.start()
    os.close(writer)
    assert process.pid is not None
    reached = [reader] if moment.kind == AFTER else []
    if not connection.wait([process.sentinel, *reached], moment.seconds) or process.exitcode is None:
        time.sleep(moment.delay)
        _kill(process.pid)
    process.join()
    os.close(reader)
    output = (folder / "output.txt").read_text(errors="replace") if (folder / "output.txt").exists() else ""
    return Ended(process.exitcode, output, time.monotonic() - started, operations.value)


def new_process(words: list[str], folder: Path, moment: Moment = NEVER) -> Ended:
    """Executes `coterie WORDS...` in a new process, in `folder`, and kills it at `moment`, which is a time."""
    started = time.monotonic()
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "coterie", *words], cwd=folder, env=os.environ | _state(folder),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(moment.seconds)
        except subprocess.TimeoutExpired:
            _kill(process.pid)
        code = process.wait()
    return Ended(code, (folder / "output.txt").read_text(errors="replace"), time.monotonic() - started, 0)


def _kill(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # it has not started its session yet
        os.kill(process, signal.SIGKILL)


def _state(folder: Path) -> dict[str, str]:
    """Returns the environment variable with which every run starts without the user's key."""
    return {"XDG_STATE_HOME": str(folder / "state")}


def _child(words: list[str], folder: Path, moment: Moment, writer: int, operations: Any) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.update(_state(folder))
    handle = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.modules["__main__"] = entry  # which workers import
    processes.PRELOADED[:] = _PRELOADED_BY_WORKERS
    coterie.runs.plots.plot = lambda runs, out: []
    _count_operations(moment, writer, operations)
    sys.exit(entry.main(words))


def _count_operations(moment: Moment, writer: int, operations: Any) -> None:
    """Counts file operations; at that of `moment`, kills this process group, or notifies the parent to do so."""
    sync, group = os.fsync, os.getpgrp()  # jobs of a sweep have groups of their own

    def count() -> None:
        operations.value += 1
        if operations.value == moment.operation:
            if moment.kind == BEFORE:
                os.killpg(group, signal.SIGKILL)
            os.write(writer, b".")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in _CHANGES:
            count()

    def counted_sync(handle: int) -> None:
        count()
        sync(handle)

    os.fsync = counted_sync
    sys.addaudithook(hook)


# ------------------------------------------------------------------------------------------------------------ phases


def unfinished(run: Path) -> set[tuple[str, int]]:
    """Returns what exists only while a checkpoint is written, by name and time of its last change.

    These are hidden files and folders, and a checkpoint that is newer than the one marked as last.
    """
    folder = run / "checkpoints"
    paths = [*folder.glob(".*"), *folder.glob("segments/.*")]
    newest = max(folder.glob("[0-9]*"), default=None)
    if newest is not None and newest.name > _pointer(run, "last"):
        paths.append(newest)
    return {(path.name, path.stat().st_mtime_ns) for path in paths}


def phase_of(run: Path, before: set[tuple[str, int]], steps: int) -> str:
    """Returns the phase in which a process was killed.

    Args:
        run: Folder of the run.
        before: Result of `unfinished` before the process was started.
        steps: Steps at which the run ends.
    """
    if not (run / "manifest.json").exists():
        return PHASES[0]
    if unfinished(run) - before:
        return PHASES[2]
    last = _pointer(run, "last")
    if not last:
        return PHASES[1]
    return PHASES[4] if int(last) >= steps else PHASES[3]


def _pointer(run: Path, name: str) -> str:
    file = run / "checkpoints" / name
    return file.read_text().strip() if file.exists() else ""


# -------------------------------------------------------------------------------------------------------- comparison


def differences(one: Path, other: Path) -> list[str]:
    """Returns the places at which two finished runs differ, apart from wall-clock times. Empty if they are equal.

    Compares every bit of the last and the best checkpoint, all entries of the log, and the returns of random policies.
    Of sweeps and searches all runs are compared, and the best settings.
    """
    if not (one / "manifest.json").exists():
        return _different_runs(one, other)
    found = []
    for pointer in ("last", "best"):
        names = [_pointer(run, pointer) for run in (one, other)]
        if names[0] != names[1]:
            found.append(f"{pointer} checkpoint: {names[0] or 'none'}, {names[1] or 'none'}")
        elif names[0]:
            first, second = (_checkpoint(run / "checkpoints" / names[0], pointer == "last") for run in (one, other))
            found += [f"{pointer} checkpoint: {place}" for place in _unequal(first, second)]
    found += [f"metrics.jsonl: {place}" for place in _unequal(_log(one), _log(other))]
    levels = [_flat(json.loads((run / "manifest.json").read_text()).get("levels")) for run in (one, other)]
    return found + [f"manifest.json: levels{place}" for place in _unequal(levels[0], levels[1])]


def _different_runs(one: Path, other: Path) -> list[str]:
    """Returns the places at which the runs of two sweeps or searches differ, and their best settings."""
    names = [
        {str(path.parent.relative_to(folder)) for path in folder.rglob("manifest.json")} for folder in (one, other)
    ]
    found = [f"{name}: only in one of both" for name in sorted(names[0] ^ names[1])]
    found += [
        f"{name}/{place}" for name in sorted(names[0] & names[1]) for place in differences(one / name, other / name)
    ]
    best = [folder / "best.yaml" for folder in (one, other)]
    if best[0].exists() != best[1].exists() or (best[0].exists() and _settings(best[0]) != _settings(best[1])):
        found.append("best.yaml: other settings")
    return found if any(names) else ["no runs"]


def _settings(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]


def _unequal(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Returns the keys with unequal values, in order, and those that only one of the dicts contains."""
    missing = object()
    return sorted(key for key in one.keys() | other.keys() if one.get(key, missing) != other.get(key, missing))


def _checkpoint(folder: Path, segments: bool) -> dict[str, Any]:
    """Returns the leaves of a checkpoint by place, tensors as their type, shape and bytes, segments as their hash.

    Raises:
        CorruptError: If a file, or with `segments` a segment, is missing or modified.
    """
    checkpoints.load(folder, segments=segments)
    tensors = safetensors.torch.load_file(folder / "state.safetensors")
    found = {
        f"state.safetensors/{name}": (str(x.dtype), tuple(x.shape), x.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, x in tensors.items()
    }
    return found | _flat(json.loads((folder / "state.json").read_text()), "state.json")


def _flat(tree: Any, place: str = "") -> dict[str, Any]:
    """Returns the leaves of nested JSON by place, without those that depend on the wall clock; NaN equals NaN."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if pairs is None:
        return {place: repr(tree)}
    found = {place: f"{type(tree).__name__} of {len(tree)}"}
    for key, value in pairs:
        if key not in _VARYING:
            found |= _flat(value, f"{place}/{key}")
    return found


def _log(run: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return _flat([{key: x for key, x in line.items() if not key.startswith("time/")} for line in lines])

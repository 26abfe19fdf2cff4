"""State and progress of runs that other processes train, read from their folders without touching them."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from coterie.config.sources import from_run
from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import read_bytes, read_text, without_links
from coterie.core.metrics import by_team
from coterie.runs.folder import RunFolder

State = Literal["training", "finished", "stopped"]

_TAIL_BYTES = 1 << 18
"""Bytes at the end of `metrics.jsonl` that are read, enough for several evaluations."""
_SILENT_SECONDS = 300.0
"""A run that another machine trains counts as stopped after this time without metrics."""

_SECONDS = 60.0
"""Wall time of the run at its end over which the speed is measured."""


@dataclass(frozen=True)
class Activity:
    """State of a run.

    Attributes:
        state: `training` while a process writes to the run, `finished` if all steps are done, otherwise `stopped`:
            interrupted, killed, or ended by an error.
        is_complete: True if all steps are done and evaluated, even if the process (of a notebook) still exists.
        steps: Environment steps in the log or of the last checkpoint.
        training, evaluation: Latest mean return by team, "" in a run with one team.
        lesson: Lesson of the curriculum, counted from 0; None if unknown.
    """

    state: State
    is_complete: bool
    steps: int
    training: dict[str, float]
    evaluation: dict[str, float]
    lesson: int | None


def activity(folder: RunFolder, total: int) -> Activity:
    """Returns the state of a run of `total` environment steps."""
    rows = last_rows(folder.metrics_path)
    steps = max((row["steps"] for row in rows), default=0)
    # The last update is logged before the last evaluation. The checkpoint that follows is the end of a run.
    done = steps
    with contextlib.suppress(OSError, ValueError):
        done = int(read_text(folder.checkpoints_path / "last"))
        steps = max(steps, done)  # of an update that was not logged
    lesson = next((int(row["lesson/index"]) - 1 for row in reversed(rows) if "lesson/index" in row), None)
    state: State = "training" if _is_written(folder) else "finished" if done >= total else "stopped"
    return Activity(
        state=state,
        is_complete=0 < total <= done,
        steps=steps,
        training=_latest(rows, "rollout/return_mean"),
        evaluation=_latest(rows, "eval/return_mean"),
        lesson=lesson,
    )


def _latest(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Returns the newest finite value of a metric by team."""
    found: dict[str, float] = {}
    for row in rows:
        found |= {team: x for team, x in by_team(row, name).items() if x is not None and math.isfinite(x)}
    return found


def last_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the last complete entries of a log, oldest first. Empty if there is none."""
    try:
        with open(path, "rb", opener=without_links) as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return []
    rows = []
    for line in lines[(1 if start else 0) : -1]:
        with contextlib.suppress(ValueError):
            row = strict_json.parse(line)
            if isinstance(row, Mapping) and type(row.get("steps")) is int:
                rows.append({name: value for name, value in row.items() if type(value) in (int, float)})
    return rows


def _is_written(folder: RunFolder) -> bool:
    """True if the process that locked the run still exists. Does not use the lock itself, which a resume may take."""
    try:
        lock = folder.path / "lock"
        locked, holder = lock.stat().st_mtime, strict_json.parse(read_bytes(lock))
        pid, host = int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, TypeError, LookupError):
        return False
    if host != platform.node():
        with contextlib.suppress(OSError):
            locked = max(locked, folder.metrics_path.stat().st_mtime)
        return time.time() - locked < _SILENT_SECONDS
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # of another user
        pass
    state, started = _process(pid)
    return state not in ("Z", "X") and started <= locked + 2.0


def _process(pid: int) -> tuple[str, float]:
    """Returns the state letter of a process and the time it started, in seconds since 1970; ("", 0) if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line[:5] == "btime")
        return fields[0], boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, LookupError, StopIteration):
        return "", 0.0


# ------------------------------------------------------------------------------------------------------------- progress


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run.

    Attributes:
        run: Folder.
        env: Name of the environment.
        algo: Name of the algorithm.
        seed: Seed; None if unknown.
        state: `training`, `finished`, `stopped`, or `unreadable`.
        steps: Environment steps done.
        total: Environment steps of the whole run.
        steps_per_s: Environment steps per second over the last minute of training, evaluations included; None if
            unknown.
        seconds_left: Remaining time in seconds at that speed, 0 if finished; None if unknown or not in training.
        wall_s: Wall time of training so far in seconds; None if unknown.
        returns: Latest mean return by team, of an evaluation if there is one.
        note: Why the run is unreadable; "" otherwise.
    """

    run: str
    env: str
    algo: str
    seed: int | None
    state: State | str
    steps: int
    total: int
    steps_per_s: float | None
    seconds_left: float | None
    wall_s: float | None
    returns: Mapping[str, float]
    note: str = ""

    def report(self) -> dict[str, Any]:
        """Returns the values as plain numbers and strings."""
        return asdict(self)


def status(path: Path) -> RunStatus:
    """Returns the progress of a run. A run that cannot be read has the state `unreadable`, with the reason."""
    try:
        return _status(RunFolder.open(path))
    except UserError as error:
        unknown = {"steps_per_s": None, "seconds_left": None, "wall_s": None, "returns": {}}
        return RunStatus(str(path), "", "", None, state="unreadable", steps=0, total=0, note=str(error), **unknown)


def _status(folder: RunFolder) -> RunStatus:
    settings = {setting.key: setting.value for setting in from_run(folder.config_path)}
    manifest = folder.read_manifest()
    steps = settings.get("steps")
    total = int(steps) if isinstance(steps, int | float) and math.isfinite(steps) else 0
    now, rows = activity(folder, total), last_rows(folder.metrics_path)
    state = "finished" if now.is_complete else now.state  # trained in this process, which still exists
    speed = steps_per_second(rows)
    seed = settings.get("seed", manifest.get("seed"))
    walls = [row["time/wall_s"] for row in rows if _is_number(row.get("time/wall_s"))]
    return RunStatus(
        run=str(folder.path),
        env=str(settings.get("env.name", manifest.get("env", ""))),
        algo=str(settings.get("algo.name", manifest.get("algo", ""))),
        seed=seed if isinstance(seed, int) else None,
        state=state,
        steps=now.steps,
        total=total,
        steps_per_s=speed,
        seconds_left=_seconds_left(state, total - now.steps, speed),
        wall_s=float(walls[-1]) if walls else None,
        returns=now.evaluation or now.training,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _seconds_left(state: State, steps: int, speed: float | None) -> float | None:
    if state == "finished":
        return 0.0
    return steps / speed if state == "training" and speed else None


def steps_per_second(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the environment steps per second over the last minute of a log; None if it has too few entries."""
    points = [(row["time/wall_s"], row["steps"]) for row in rows if _is_number(row.get("time/wall_s"))]
    if len(points) < 2:
        return None
    end, last = points[-1]
    start, first = next((p for p in points if p[0] >= end - _SECONDS and p[0] < end), points[-2])
    return (last - first) / (end - start) if end > start and last > first else None

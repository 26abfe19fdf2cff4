"""Progress of many runs, read from their folders: state, speed and remaining time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.config.sources import from_file
from coterie.core.errors import UserError
from coterie.runs.activity import State, activity, last_rows
from coterie.runs.folder import RunFolder

_SECONDS = 60.0
"""Wall time of the run at its end over which the speed is measured."""


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
    settings = {setting.key: setting.value for setting in from_file(folder.config_path, saved=True)}
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

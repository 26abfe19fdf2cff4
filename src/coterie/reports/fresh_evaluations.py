"""Fresh evaluations of a run's policies, stored as `fresh-evaluations.json` in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import locked, write_text
from coterie.reports.records import FreshEvaluation, Policies

FILE = "fresh-evaluations.json"
_FORMAT = 1
_FIX = "Remove the file, and evaluate again with coterie compare --evaluate."


@dataclass(frozen=True)
class Protocol:
    """Conditions of a fresh evaluation. One that was made under equal conditions is not repeated.

    Attributes:
        policies: Checkpoint: `final` or `best`.
        steps: Its environment steps.
        episodes: Requested episodes.
        seed: Seed of the episodes.
        mode: Action selection.
    """

    policies: Policies
    steps: int
    episodes: int
    seed: int
    mode: str


def read_fresh(run: Path) -> tuple[FreshEvaluation, ...]:
    """Returns the fresh evaluations of a run, oldest first; none if it has no such file.

    Raises:
        UserError: If the file cannot be read.
    """
    return tuple(_evaluation(entry, run / FILE) for entry in _entries(run / FILE))


def find_fresh(run: Path, protocol: Protocol) -> FreshEvaluation | None:
    """Returns the fresh evaluation of a run under equal conditions; None if there is none."""
    for entry in reversed(_entries(run / FILE)):
        if _protocol(entry) == protocol:
            return _evaluation(entry, run / FILE)
    return None


def store_fresh(run: Path, protocol: Protocol, found: FreshEvaluation) -> None:
    """Adds a fresh evaluation to a run's file, atomically. It replaces one of the same policies.

    Processes that evaluate a run at the same time write one after the other, so that no result is lost.

    Metrics that are not finite in every episode are left out, like evaluations during training that are not finite.

    Raises:
        UserError: If the file cannot be written.
    """
    values = [
        {"team": team, "metric": metric, "values": [float(x) for x in x_by_episode]}
        for (team, metric), x_by_episode in found.values.items()
        if np.isfinite(x_by_episode).all()
    ]
    entry = {**vars(protocol), "evaluated_episodes": len(values[0]["values"]) if values else 0, "values": values}
    with locked(run):
        kept = [entry for entry in _entries(run / FILE) if entry.get("policies") != protocol.policies]
        write_text(run / FILE, json.dumps({"format": _FORMAT, "evaluations": [*kept, entry]}) + "\n")


def _entries(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    content = strict_json.read_object(path, _FIX)
    entries = content.get("evaluations")
    if content.get("format") != _FORMAT or not isinstance(entries, list):
        raise UserError(f"{path}: not of format {_FORMAT}. {_FIX}")
    return [entry for entry in entries if isinstance(entry, dict)]


def _protocol(entry: dict[str, Any]) -> Protocol | None:
    try:
        return Protocol(**{name: entry[name] for name in Protocol.__dataclass_fields__})
    except KeyError:
        return None


def _evaluation(entry: dict[str, Any], path: Path) -> FreshEvaluation:
    try:
        values = {(str(part["team"]), str(part["metric"])): _numbers(part["values"]) for part in entry["values"]}
        if entry["policies"] not in ("final", "best"):
            raise ValueError
        return FreshEvaluation(entry["policies"], int(entry["steps"]), values)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: cannot be read. {_FIX}") from None


def _numbers(values: Sequence[Any]) -> np.ndarray:
    numbers = np.array([float(value) for value in values], dtype=np.float64)
    if not len(numbers) or not all(math.isfinite(value) for value in numbers):
        raise ValueError
    return numbers

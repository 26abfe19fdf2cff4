"""Metric declarations: each metric is declared once, in the module that emits it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Better = Literal["up", "down"]
Combine = Literal["mean", "sum", "max", "last"]

_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")


@dataclass(frozen=True)
class Metric:
    """A number that a run reports.

    Attributes:
        name: `area/name`, or a single word such as `steps`.
        unit: Unit of the values; "" for a dimensionless number.
        meaning: Description.
        better: Direction of improvement; None if there is none.
        combine: Reduction over the ranks of a distributed run.
    """

    name: str
    unit: str
    meaning: str
    better: Better | None = None
    combine: Combine = "mean"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"metric name '{self.name}': expected lower-case words joined by '/', e.g. loss/policy")
        if self.better not in ("up", "down", None):
            raise ValueError(f"metric {self.name}: better is '{self.better}', expected 'up', 'down' or None")
        if self.combine not in ("mean", "sum", "max", "last"):
            raise ValueError(f"metric {self.name}: combine is '{self.combine}', expected mean, sum, max or last")


_declared: dict[str, Metric] = {}


def declare(*metrics: Metric) -> None:
    """Declares metrics; called when the module that emits them is imported.

    Two modules may emit the same metric with equal declarations.

    Raises:
        ValueError: If a metric of that name is declared differently.
    """
    for metric in metrics:
        known = _declared.setdefault(metric.name, metric)
        if known != metric:
            raise ValueError(f"metric {metric.name} is declared twice and differently: {known} and {metric}")


def declared() -> dict[str, Metric]:
    """Returns all declared metrics by name, sorted."""
    return dict(sorted(_declared.items()))


def lookup(name: str) -> Metric | None:
    """Returns the declaration of a logged name; None if it is not declared.

    A logged name may contain a team after the area (`eval/adversary/return_mean`), and an agent, a role or a name
    of the environment at the end (`rollout/return_mean/adversary_0`). The longest declared name is returned.
    """
    area, *rest = name.split("/")
    for words in (rest, rest[1:], rest[:-1], rest[1:-1]):
        metric = _declared.get("/".join([area, *words]))
        if metric is not None:
            return metric
    return None


def undeclared(names: Iterable[str]) -> list[str]:
    """Returns the names without a declaration, in order."""
    return [name for name in names if lookup(name) is None]


def by_team(entry: Mapping[str, float], name: str) -> dict[str, float]:
    """Returns the values of `area/name` in a log entry by team ("" in a run with one team), without those of agents."""
    area, _, rest = name.partition("/")
    found = {}
    for key, value in entry.items():
        if key == name:
            found[""] = value
        elif key.startswith(f"{area}/") and key.endswith(f"/{rest}") and key.count("/") == name.count("/") + 1:
            found[key.split("/")[1]] = value
    return found


declare(Metric("steps", "steps", "Environment steps taken so far, over all environments.", combine="sum"))

"""What a run measures: every metric is declared once, beside what emits it, and read by all that shows it."""

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

    name: `area/name`, or one bare word such as `steps`; unit: of its values, "" for a pure number; meaning: a sentence;
    better: the direction that is wished for, None where there is none; combine: how values of several ranks become one.
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
    """Makes metrics known; called when the module that emits them is imported.

    The same declaration may come again (two modules may emit one metric); ValueError for a different one of that name.
    """
    for metric in metrics:
        known = _declared.setdefault(metric.name, metric)
        if known != metric:
            raise ValueError(f"metric {metric.name} is declared twice and differently: {known} and {metric}")


def declared() -> dict[str, Metric]:
    """All metrics declared so far by name, sorted."""
    return dict(sorted(_declared.items()))


def lookup(name: str) -> Metric | None:
    """The metric that `name` is a value of, None if it is not declared.

    A team may stand after the area (`eval/adversary/return_mean`), an agent, a role or an environment's own name at the
    end (`rollout/return_mean/adversary_0`); both are left out to find the declaration. The longest declared name wins.
    """
    area, *rest = name.split("/")
    for words in (rest, rest[1:], rest[:-1], rest[1:-1]):
        metric = _declared.get("/".join([area, *words]))
        if metric is not None:
            return metric
    return None


def undeclared(names: Iterable[str]) -> list[str]:
    """Those of `names` that no declaration covers, in their order."""
    return [name for name in names if lookup(name) is None]


def by_team(row: Mapping[str, float], name: str) -> dict[str, float]:
    """The values of `area/name` in a row by team, "" where the run has one team only; values of agents are left out."""
    area, _, rest = name.partition("/")
    found = {}
    for key, value in row.items():
        if key == name:
            found[""] = value
        elif key.startswith(f"{area}/") and key.endswith(f"/{rest}") and key.count("/") == name.count("/") + 1:
            found[key.split("/")[1]] = value
    return found


declare(Metric("steps", "steps", "Environment steps taken so far, over all copies.", combine="sum"))

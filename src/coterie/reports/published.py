"""Published tables of results, and the runs that reproduce them: the files in `config/tables`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from coterie.algos import registry
from coterie.core.errors import UserError, nearest
from coterie.reports.options import Scale


@dataclass(frozen=True)
class Level:
    """A published value.

    Attributes:
        mean: Mean over seeds.
        half_width: Half of its 95% interval; None if it was published without one.
    """

    mean: float
    half_width: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:g}" + ("" if self.half_width is None else f" ± {self.half_width:g}")


@dataclass(frozen=True)
class Opponents:
    """A team that acts with a trained, fixed policy.

    Attributes:
        team: The team.
        algo: Algorithm with which all teams were trained.
        steps: Environment steps of that training.
        seed: Its seed, which no row reports.
    """

    team: str
    algo: str
    steps: int
    seed: int


@dataclass(frozen=True)
class Row:
    """One task of a table.

    Attributes:
        name: Name on the command line.
        family: Family of tasks that share one configuration per algorithm.
        settings: Settings of the task.
        published: Levels by algorithm.
        scale: Convention of its returns: the sum over the team's agents or the mean per agent.
        confirmed: True if the levels were checked against a second source.
        team: Team whose returns count; "" for the only one.
        opponents: The other team; None if there is none.
        note: Difference from the published conditions; empty for none.
    """

    name: str
    family: str
    settings: tuple[str, ...]
    published: Mapping[str, Level]
    scale: Scale
    confirmed: bool = False
    team: str = ""
    opponents: Opponents | None = None
    note: str = ""


@dataclass(frozen=True)
class PublishedTable:
    """A published table of results and how it is reproduced.

    Attributes:
        name: Name on the command line.
        title: Title of the publication.
        source: Address of the publication.
        columns: Algorithms in their published order, also those that Coterie does not have.
        rows: Tasks by name.
        seeds: Seeds of each value.
        evaluations: Evaluations during training.
        episodes: Episodes per evaluation.
        absolute_episodes: Episodes of the best checkpoint's evaluation after training.
        content: The file, for settings and steps.
    """

    name: str
    title: str
    source: str
    columns: tuple[str, ...]
    rows: Mapping[str, Row]
    seeds: tuple[int, ...]
    evaluations: int
    episodes: int
    absolute_episodes: int
    content: Mapping[str, Any]

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Algorithms of the table that Coterie has, in the order of the columns."""
        return tuple(name for name in self.columns if name in registry.ALGOS)

    def row(self, name: str) -> Row:
        """Returns a row. UserError if there is none of that name."""
        if name not in self.rows:
            raise UserError(
                f"{name}: not a row of {self.name}. {nearest(name, self.rows)} Rows: {', '.join(self.rows)}."
            )
        return self.rows[name]

    def steps(self, row: Row, algo: str) -> int:
        """Returns the published number of environment steps of a run."""
        steps = self.content["families"][row.family].get("steps", self.content["steps"])
        return int(steps["on_policy" if algo in self.content["on_policy"] else "off_policy"])

    def settings(self, row: Row, algo: str, steps: int) -> list[str]:
        """Returns the settings of a run besides its seed, folder and opponents; of equal keys the last one counts.

        Args:
            row: Task.
            algo: Algorithm.
            steps: Environment steps, the published number or fewer.
        """
        family = self.content["families"][row.family]
        evaluation = [f"eval.every={max(1, steps // self.evaluations)}", f"eval.episodes={self.episodes}"]
        words = [
            f"algo={algo}",
            *row.settings,
            *family["settings"],
            *family.get("configurations", {}).get(algo, ()),
            f"steps={steps}",
            *evaluation,
        ]
        return [f"{key}={value}" for key, value in dict(word.split("=", 1) for word in words).items()]


def names() -> list[str]:
    """Returns the names of all tables."""
    files = resources.files("coterie.config") / "tables"
    return sorted(file.name.removesuffix(".yaml") for file in files.iterdir() if file.name.endswith(".yaml"))


@functools.cache
def load(name: str) -> PublishedTable:
    """Returns a table. UserError if there is none of that name."""
    if name not in names():
        raise UserError(f"{name}: no such table. {nearest(name, names())} Tables: {', '.join(names())}.")
    file = resources.files("coterie.config") / "tables" / f"{name}.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return PublishedTable(
        name=name,
        title=content["title"],
        source=content["source"],
        columns=tuple(content["columns"]),
        rows={key: _row(key, row, content["families"][row["family"]]) for key, row in content["rows"].items()},
        seeds=tuple(content["seeds"]),
        evaluations=content["evaluations"],
        episodes=content["episodes"],
        absolute_episodes=content["absolute_episodes"],
        content=content,
    )


def _row(name: str, row: Mapping[str, Any], family: Mapping[str, Any]) -> Row:
    opponents = row.get("opponents")
    return Row(
        name=name,
        family=row["family"],
        settings=tuple(row["settings"]),
        published={algo: _level(values) for algo, values in row["published"].items()},
        scale=family["scale"],
        confirmed=row.get("confirmed", False),
        team=row.get("team", ""),
        opponents=None if opponents is None else Opponents(**opponents),
        note=row.get("note", ""),
    )


def _level(values: Sequence[float]) -> Level:
    return Level(float(values[0]), float(values[1]) if len(values) > 1 else None)

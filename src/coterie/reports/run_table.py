"""Tables of runs and of their metrics, for notebooks: sequences of flat dicts, which pandas reads directly."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from coterie.core.errors import UserError
from coterie.core.installation import install_extra
from coterie.core.markup import Markup, element, join, paragraphs, table
from coterie.core.metrics import by_team
from coterie.reports.collection import RETURN, collect, series_of
from coterie.reports.records import CollectedRun
from coterie.runs.curves import differing_settings
from coterie.runs.progress import number


class Table(Sequence[dict[str, Any]]):
    """Rows with the same columns. `pandas.DataFrame(table)` and `polars.DataFrame(list(table))` read it.

    Args:
        rows: Rows, each with all columns; None where a value is unknown.
        runs: The runs of the rows.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], runs: Sequence[CollectedRun] = ()):
        self._rows, self._runs = list(rows), tuple(runs)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._rows[0]) if self._rows else ()

    def column(self, name: str) -> list[Any]:
        """Returns the values of a column. Raises KeyError if there is none of this name."""
        return [row[name] for row in self._rows]

    def frame(self) -> Any:
        """Returns the rows as a pandas DataFrame. Raises UserError if pandas is not installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UserError(
                f"frame(): pandas is not installed ({error}). Install it: {install_extra('pandas')}. Without it, the "
                "table is a sequence of dicts."
            ) from error
        return pandas.DataFrame(self._rows)

    def metrics(self, *names: str) -> Table:
        """Returns what the runs have logged: a row per log entry, team and metric.

        The columns are run, env, algo, seed, team, metric, steps, seconds and value.

        Args:
            *names: Metrics without the name of a team, such as `loss/policy`. Default: mean returns of evaluations.
        """
        rows = []
        for run in self._runs:
            for name in names or (RETURN,):
                for entry in run.log.rows:
                    for team, value in by_team(entry, name).items():
                        identity = {key: x for key, x in _identity(run, team).items() if key in _IDENTITY}
                        seconds = _known(entry.get("time/wall_s", math.nan))
                        more = {"metric": name, "steps": entry["steps"], "seconds": seconds, "value": _known(value)}
                        rows.append({**identity, **more})
        return Table(rows, self._runs)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Table:
        return Table(self._rows[index], self._runs) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the first rows."""
        rows = [[_shown(value) for value in row.values()] for row in self._rows[:_MOST_SHOWN]]
        rest = len(self) - len(rows)
        more = paragraphs([f"and {rest:,} more rows"] if rest else [])
        return join((element("div", table(self.columns, rows), style="overflow-x: auto"), more))

    def __repr__(self) -> str:
        return f"Table of {len(self)} rows: {', '.join(self.columns)}"


def runs(*paths: str | Path, unfinished: bool = True, metric: str = RETURN) -> Table:
    """Returns a table of runs: a row per run, and per team if several learn.

    The columns are run, env, algo, seed, team, state, steps, total, seconds, `final` (the last evaluation), `error`
    (its standard error), `episodes`, `peak` and `peak_steps` (the best evaluation), `random` and `reference` (returns
    of the random policy and published), `fresh` and `absolute` (means of fresh evaluations of the final and the best
    policies), and the settings in which the runs differ, by dotted key.

    Args:
        *paths: Folders of runs, or that contain runs, patterns such as `runs/**`, or JSON files of marl-eval. Default:
            runs.
        unfinished: False to leave out runs that are not finished.
        metric: Metric of the evaluations, such as `eval/metric/won`. With a minus sign in front, lower values are
            better, and the best evaluation is the lowest one.

    Raises:
        UserError: If there are no runs, or one cannot be read.
    """
    name, lowest = metric.removeprefix("-"), metric.startswith("-")
    found = collect(paths or ["runs"], unfinished=unfinished).runs
    settings = differing_settings([run.log for run in found if run.settings])
    rows = []
    for run in found:
        for team in run.teams:
            own = {key: run.settings.get(key) for key in settings}
            rows.append({**_identity(run, team), **_values(run, team, name, lowest=lowest), **own})
    return Table(rows, found)


def _shown(value: Any) -> str:
    return "" if value is None else number(value) if isinstance(value, float) else str(value)


_MOST_SHOWN = 60
"""Rows that a notebook shows."""

_IDENTITY = ("run", "env", "algo", "seed", "team")


def _identity(run: CollectedRun, team: str) -> dict[str, Any]:
    names = {"run": run.name, "env": run.env, "algo": run.algo, "seed": run.seed, "team": team}
    return {**names, "state": run.state, "steps": run.steps, "total": run.total}


def _values(run: CollectedRun, team: str, metric: str, *, lowest: bool) -> dict[str, Any]:
    series = series_of(run, metric, team) or series_of(run, metric, "")
    names = ("seconds", "final", "error", "episodes", "peak", "peak_steps")
    values: dict[str, Any] = dict.fromkeys(names)
    if series is not None:
        best = int(series.mean.argmin() if lowest else series.mean.argmax())
        numbers = (series.seconds[-1], series.final, series.error[-1], series.episodes[-1])
        numbers = (*numbers, series.mean[best], series.steps[best])
        values = {name: _known(float(number)) for name, number in zip(names, numbers, strict=True)}
        values["peak_steps"] = int(series.steps[best])
    fresh = {"fresh": run.fresh_values("final", team, metric), "absolute": run.fresh_values("best", team, metric)}
    return {
        **values,
        "random": run.random(team),
        "reference": run.reference(team),
        **{name: None if x is None else float(x.mean()) for name, x in fresh.items()},
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None

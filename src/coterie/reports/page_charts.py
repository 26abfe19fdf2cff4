"""Charts of a report: their data for the page's script, and the same numbers as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.reports.comparison import Band, Comparison, TaskResult
from coterie.reports.markup import Markup, element, folded, scrolling, table
from coterie.reports.records import Trial
from coterie.reports.sentences import count, metric_name, number
from coterie.runs.plots import COLORS, LINES, Style, line_styles

_MOST_POINTS = 240
"""Longer curves are thinned out to this number of points."""

_TABLE_ROWS = 12
"""Rows of the table of a curve."""

AXES = {"steps": "Steps", "seconds": "Seconds"}
"""Axes of learning curves, and their names."""


class Colors:
    """Colors and line styles of the algorithms, the same as in plots.

    Args:
        comparison: The comparison.
    """

    def __init__(self, comparison: Comparison):
        groups: dict[str, list[Any]] = {algo: [] for algo in comparison.algos}
        for result in comparison.results.values():
            groups[result.algo] += [trial.run.log for trial in result.trials]
        self._styles: dict[str, Style] = line_styles(groups)

    def color(self, algo: str) -> int:
        """Returns the number of the algorithm's color."""
        return COLORS.index(self._styles[algo].color)

    def dash(self, algo: str) -> int:
        """Returns the number of the algorithm's line style."""
        return LINES.index(self._styles[algo].dashes)

    def swatch(self, algo: str) -> Markup:
        """Returns the name of an algorithm after a sample of its color."""
        sample = element("i", class_=f"swatch g{self.color(algo)} d{self.dash(algo)}", aria_hidden="true")
        return element("span", sample, algo, class_="algo")


# ---------------------------------------------------------------------------------------------------------------- data


def charts(comparison: Comparison, colors: Colors) -> dict[str, dict[str, Any]]:
    """Returns the data of all charts by key: learning curves of each task and over tasks, and performance profiles."""
    word = metric_name(comparison.metric)
    found = {}
    for i, task in enumerate(comparison.tasks):
        results = [r for (name, _), r in comparison.results.items() if name == task]
        found[f"task{i}"] = {
            "label": f"Learning curves of {task}",
            "y": word,
            "axes": list(AXES),
            "levels": _levels(comparison, task),
            "series": [_series(r.algo, colors, {a: getattr(r, a) for a in AXES}, r.trials) for r in results],
        }
    if len(comparison.tasks) > 1:
        found["overall"] = {
            "label": "Learning curves over all tasks",
            "y": f"normalized {word}",
            "axes": list(AXES),
            "levels": [],
            "series": [_series(r.algo, colors, {a: getattr(r, a) for a in AXES}) for r in comparison.overall.values()],
        }
    found["profile"] = {
        "label": "Performance profiles",
        "y": "fraction of runs with a higher score",
        "axes": ["score"],
        "levels": [],
        "series": [_series(r.algo, colors, {"score": r.profile}) for r in comparison.overall.values()],
    }
    return {key: chart for key, chart in found.items() if any(_has_data(one) for one in chart["series"])}


def _has_data(series: Mapping[str, Any]) -> bool:
    return any(series.get(axis) for axis in (*AXES, "score"))


def _levels(comparison: Comparison, task: str) -> list[dict[str, Any]]:
    anchors = comparison.tasks[task]
    if not comparison.metric.endswith("return_mean"):
        return []
    pairs = (("random", "random policy", anchors.random), ("published", "published score", anchors.reference))
    return [
        {"kind": kind, "label": label, "value": rounded(x)}
        for kind, label, x in pairs
        if x is not None and math.isfinite(x)
    ]


def _series(
    algo: str, colors: Colors, bands: Mapping[str, Band | None], trials: Sequence[Trial] = ()
) -> dict[str, Any]:
    found: dict[str, Any] = {"group": algo, "color": colors.color(algo), "dash": colors.dash(algo)}
    found |= {axis: None if band is None else _band(band) for axis, band in bands.items()}
    if len(trials) > 1:
        found["seeds"] = [_seed(trial) for trial in trials]
    return found


def _band(band: Band) -> dict[str, list[float | None]]:
    kept = _kept(len(band.x))
    found = {"x": numbers(band.x[kept]), "y": numbers(band.value[kept])}
    if np.isfinite(band.low).all() and np.isfinite(band.high).all():
        found |= {"low": numbers(band.low[kept]), "high": numbers(band.high[kept])}
    return found


def _seed(trial: Trial) -> dict[str, Any]:
    series = trial.series
    kept = _kept(len(series))
    seconds = numbers(series.seconds[kept]) if np.isfinite(series.seconds).all() else None
    return {
        "name": "?" if trial.seed is None else trial.seed,
        "steps": numbers(series.steps[kept]),
        "seconds": seconds,
        "y": numbers(series.mean[kept]),
    }


def _kept(points: int, most: int = _MOST_POINTS) -> np.ndarray:
    """Returns the places of at most `most` of the points, evenly spread, with the first and the last one."""
    return np.unique(np.linspace(0, points - 1, min(points, most)).round().astype(int))


def numbers(values: np.ndarray) -> list[float | None]:
    """Returns values with six significant digits; None for those that are not finite."""
    return [rounded(float(value)) for value in values]


def rounded(value: float) -> float | None:
    """Returns a value with six significant digits; None if it is not finite."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) else short


# ---------------------------------------------------------------------------------------------------------------- page


def figure(key: str, title: Any, note: str, data: Mapping[str, Any]) -> Markup:
    """Returns the figure of a chart, which the page's script draws, with its values as a folded table.

    Args:
        key: Key of the chart's data.
        title: Title.
        note: Meaning of lines and bands.
        data: The chart's data.
    """
    tables = [_values(axis, data) for axis in data["axes"] if any(one.get(axis) for one in data["series"])]
    return element(
        "figure",
        element("h3", title),
        element("div", class_="plot"),
        element("figcaption", note),
        folded("Values as a table", *tables),
        data_chart=key,
    )


def _values(axis: str, data: Mapping[str, Any]) -> Markup:
    """Returns the values of a chart at some places as a table."""
    shown = [one for one in data["series"] if one.get(axis)]
    places = sorted({x for one in shown for x in (one[axis]["x"][0], one[axis]["x"][-1])})
    grid = np.linspace(places[0], places[-1], _TABLE_ROWS) if len(places) > 1 else np.array(places)
    longest = max((one[axis]["x"] for one in shown), key=len)
    if len(longest) <= _TABLE_ROWS and len({tuple(one[axis]["x"]) for one in shown}) == 1:
        grid = np.array(longest)
    heading = {"steps": "environment steps", "seconds": "wall time (s)", "score": "normalized score above"}[axis]
    rows = [
        [number(float(x)) if axis != "steps" else f"{x:,.0f}", *(_value(one[axis], float(x)) for one in shown)]
        for x in grid
    ]
    caption = f"{data['label']}: values by {heading}"
    return scrolling(table([heading, *(one["group"] for one in shown)], rows, caption=caption), caption)


def _value(curve: Mapping[str, Sequence[float]], x: float) -> str:
    """Returns the value of a curve at x, with its interval; a dash outside of its data."""
    if not curve["x"][0] <= x <= curve["x"][-1] or any(y is None for y in curve["y"]):
        return "–"
    value, *bounds = [np.interp(x, curve["x"], curve[name]) for name in ("y", "low", "high") if name in curve]
    interval = f" [{number(bounds[0])}, {number(bounds[1])}]" if bounds else ""
    return f"{number(float(value))}{interval}"


def band_note(results: Sequence[TaskResult]) -> str:
    """Returns what the lines and bands of learning curves of a task are."""
    counts = sorted({len(result.trials) for result in results})
    if counts[-1] == 1:
        return "One seed per algorithm."
    seeds = count(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    return f"Interquartile mean over {seeds}, with pointwise 95% bootstrap intervals."

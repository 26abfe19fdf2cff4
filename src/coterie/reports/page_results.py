"""Results of a report: findings, statistics, pairs of algorithms, and charts, with the same numbers as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.markup import Markup, cell, element, folded, join, scrolling, table
from coterie.reports.comparison import Band, Comparison, Estimate, OverallResult, PairResult, TaskResult
from coterie.reports.figures import styles_of
from coterie.reports.records import Trial
from coterie.reports.sentences import SCORE_NAMES, count, digits, metric_name, number, p_value
from coterie.runs.plots import COLORS, LINES

_MOST_POINTS = 240
"""Longer curves are thinned out to this number of points."""

_TABLE_ROWS = 12
"""Rows of the table of a curve."""

AXES = {"steps": "Steps", "seconds": "Seconds"}
"""Axes of learning curves, and their names."""

_STATISTICS = ("IQM", "Mean", "Median", "Optimality gap")
_WIDTH = 200


class Colors:
    """Colors and line styles of the algorithms, the same as in plots.

    Args:
        comparison: The comparison.
    """

    def __init__(self, comparison: Comparison):
        self._styles = styles_of(comparison)

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


# ------------------------------------------------------------------------------------------------------------- findings


def findings(comparison: Comparison, colors: Colors) -> Markup:
    """Returns one card per task with its finding as a sentence and its statistics, and one over all tasks."""
    sentences = dict(zip([*comparison.tasks, None], comparison.sentences, strict=False))
    cards = [_task_card(comparison, task, sentences.get(task, ""), colors) for task in comparison.tasks]
    if len(comparison.tasks) > 1:
        cards.append(_overall_card(comparison, sentences.get(None, ""), colors))
    word = metric_name(comparison.metric)
    note = (
        f"Each run counts with the {word} of its {SCORE_NAMES[comparison.score]}. Brackets and bars are intervals: "
        f"{comparison.resampling}. IQM is the interquartile mean, the mean of the middle half of the runs. Short ticks "
        f"are single runs. The optimality gap is the mean amount by which normalized scores miss 1 "
        f"({comparison.normalization})."
    )
    return join([*cards, element("p", note, class_="note")])


def _task_card(comparison: Comparison, task: str, sentence: str, colors: Colors) -> Markup:
    results = [r for (name, _), r in comparison.results.items() if name == task]
    results.sort(key=lambda r: r.statistics.iqm.value, reverse=not comparison.lowest)
    every = [*np.concatenate([r.scores for r in results]).tolist(), *(b for r in results for b in _bounds(r))]
    scale = _Scale.of(every)
    rows = [
        [
            colors.swatch(r.algo),
            cell(scale.draw(r.statistics.iqm, r.scores, colors.color(r.algo)), class_="range"),
            *_statistics(r),
            cell(number(r.std), value=r.std),
            cell(f"{len(r.trials)}", value=len(r.trials)),
        ]
        for r in results
    ]
    columns = ["Algorithm", _ends(scale), *_STATISTICS, "Std.", "Seeds"]
    return _card(task, sentence, columns, rows, f"Statistics of {task}")


def _overall_card(comparison: Comparison, sentence: str, colors: Colors) -> Markup:
    results = sorted(comparison.overall.values(), key=lambda r: -r.statistics.iqm.value)
    scale = _Scale.of([b for r in results for b in _bounds(r)])
    rows = [
        [
            colors.swatch(r.algo),
            cell(scale.draw(r.statistics.iqm, (), colors.color(r.algo)), class_="range"),
            *_statistics(r),
            cell(f"{len(r.tasks)}", value=len(r.tasks)),
            cell(f"{r.runs}", value=r.runs),
        ]
        for r in results
    ]
    columns = ["Algorithm", _ends(scale), *_STATISTICS, "Tasks", "Runs"]
    title = f"Over {count(len(comparison.tasks), 'task')}: {comparison.score_name}s"
    return _card(title, sentence, columns, rows, f"Statistics of {comparison.score_name}s over all tasks")


def _card(title: str, sentence: str, columns: Sequence[Any], rows: Sequence[Sequence[Any]], caption: str) -> Markup:
    return element(
        "article",
        element("h3", title),
        element("p", sentence, class_="finding"),
        scrolling(table(columns, rows, caption=caption, class_="statistics"), caption),
        class_="card",
    )


def _statistics(result: TaskResult | OverallResult) -> list[Markup]:
    found = result.statistics
    return [interval_cell(x) for x in (found.iqm, found.mean, found.median, found.optimality_gap)]


def interval_cell(estimate: Estimate) -> Markup:
    """Returns a cell with an estimate and, below it, its interval."""
    if math.isnan(estimate.value):
        return cell("–")
    value, low, high = digits(estimate)
    bounds = f"[{low}, {high}]" if estimate.has_interval else "no interval"
    return cell(join([value, " ", element("small", bounds)]), value=estimate.value)


def _bounds(result: TaskResult | OverallResult) -> list[float]:
    iqm = result.statistics.iqm
    return [iqm.value, iqm.low, iqm.high] if iqm.has_interval else [iqm.value]


class _Scale:
    """Horizontal scale of the intervals in a table.

    Args:
        low, high: Values at its ends.
    """

    def __init__(self, low: float, high: float):
        self.low, self.high = low, high

    @classmethod
    def of(cls, values: Sequence[float]) -> _Scale:
        """Returns the scale that contains the values."""
        return cls(min(values), max(values))

    def place(self, value: float) -> float:
        """Returns the place of a value."""
        share = 0.5 if self.high == self.low else (value - self.low) / (self.high - self.low)
        return 4 + share * (_WIDTH - 8)

    def draw(self, estimate: Estimate, scores: Sequence[float] | np.ndarray, color: int) -> Markup:
        """Returns the interval as a bar, the value as a thick line, and single scores as thin ticks."""
        parts = []
        if estimate.has_interval:
            low, high = self.place(estimate.low), self.place(estimate.high)
            bar = {"x": f"{low:.1f}", "y": 6, "width": f"{max(high - low, 1):.1f}", "height": 12, "rx": 2}
            parts.append(element("rect", **bar, class_="bar"))
        parts += [_tick(self.place(float(x)), 15, 22, "run") for x in scores]
        parts.append(_tick(self.place(estimate.value), 2, 22, "value"))
        view = {"viewBox": f"0 0 {_WIDTH} 24", "preserveAspectRatio": "none"}
        return element("svg", *parts, class_=f"interval g{color}", aria_hidden="true", **view)


def _tick(x: float, top: int, bottom: int, kind: str) -> Markup:
    place = f"{x:.1f}"
    return element("line", x1=place, x2=place, y1=top, y2=bottom, class_=kind)


def _ends(scale: _Scale) -> Markup:
    """Returns the heading of a column of intervals: the values at the ends of its scale."""
    return element("span", element("span", number(scale.low)), element("span", number(scale.high)), class_="ends")


# ---------------------------------------------------------------------------------------------------------------- pairs


def pairs(comparison: Comparison, colors: Colors) -> Markup | None:
    """Returns the probabilities of improvement as a table; None without pairs."""
    if not comparison.pairs:
        return None
    every = len(comparison.tasks)
    over = {n: f"all {n} tasks" if n == every else f"{n} of {every} tasks" for n in range(every + 1)}
    rows = [_pair(pair, pair.task or over[pair.num_tasks], colors) for pair in comparison.pairs]
    columns = ["Comparison", "Task", "Probability of improvement", _ends(_Scale(0, 1)), "Difference of means"]
    columns += ["p", "p, corrected", "Runs"]
    paired = comparison.pairs[0].paired
    test = "the paired t-test" if paired else "Welch's t-test"
    note = (
        "The probability that a run of the first algorithm has a better score than one of the second"
        f"{' with the same seed' if paired else ''}; ties count half. 0.5 means no difference. p-values are those of "
        f"{test}, corrected by Holm's method for all comparisons on single tasks."
    )
    caption = "Pairs of algorithms"
    return join(
        [
            scrolling(table(columns, rows, caption=caption, class_="sortable"), caption),
            element("p", note, class_="note"),
        ]
    )


def _pair(pair: PairResult, task: str, colors: Colors) -> list[Any]:
    names = element("span", colors.swatch(pair.algo), " vs. ", colors.swatch(pair.other), class_="versus")
    p = [cell(p_value(x), value=None if math.isnan(x) else x) for x in (pair.p, pair.p_holm)]
    return [
        names,
        task,
        interval_cell(pair.probability),
        cell(_probability(pair.probability), class_="range"),
        interval_cell(pair.difference),
        *p,
        cell(f"{pair.runs[0]} / {pair.runs[1]}", value=min(pair.runs)),
    ]


def _probability(estimate: Estimate) -> Markup:
    scale = _Scale(0, 1)
    middle = _tick(scale.place(0.5), 0, 24, "half")
    drawn = scale.draw(estimate, (), 0)
    return Markup(drawn.replace('class="interval g0"', 'class="interval neutral"').replace("</svg>", f"{middle}</svg>"))


def thresholds(comparison: Comparison, colors: Colors) -> Markup | None:
    """Returns the times to the thresholds as a table; None without thresholds."""
    found = [result for result in comparison.results.values() if result.time is not None]
    if not found:
        return None
    rows = [
        [
            colors.swatch(result.algo),
            result.task,
            cell(number(result.time.threshold), value=result.time.threshold),
            cell(f"{result.time.reached} of {result.time.runs}", value=result.time.reached / result.time.runs),
            _time(result.time.steps),
            _time(result.time.seconds),
        ]
        for result in found
        if result.time is not None
    ]
    caption = "Time to a threshold"
    columns = ["Algorithm", "Task", "Threshold", "Runs that reach it", "Steps", "Seconds"]
    note = (
        "Median over runs until evaluations first reach the threshold, with its interval. By default the threshold is "
        "the mean score of the worst algorithm on the task that beats the random policy, or of the baseline."
    )
    shown = scrolling(table(columns, rows, caption=caption, class_="sortable"), caption)
    return join([element("h3", caption), shown, element("p", note, class_="note")])


def _time(estimate: Estimate) -> Markup:
    return cell("not reached", value=math.inf) if math.isinf(estimate.value) else interval_cell(estimate)


# --------------------------------------------------------------------------------------------------------------- charts


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


def _kept(points: int) -> np.ndarray:
    """Returns the places of at most `_MOST_POINTS` of the points, evenly spread, with the first and the last one."""
    return np.unique(np.linspace(0, points - 1, min(points, _MOST_POINTS)).round().astype(int))


def numbers(values: np.ndarray) -> list[float | None]:
    """Returns values with six significant digits; None for those that are not finite."""
    return [rounded(float(value)) for value in values]


def rounded(value: float) -> float | None:
    """Returns a value with six significant digits; None if it is not finite."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) else short


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


def learning_curves(comparison: Comparison, data: Mapping[str, Any]) -> Markup:
    """Returns the figures of learning curves, by task and over all tasks."""
    found = []
    for i, task in enumerate(comparison.tasks):
        results = [r for (name, _), r in comparison.results.items() if name == task]
        if f"task{i}" in data:
            found.append(figure(f"task{i}", task, band_note(results), data[f"task{i}"]))
    if "overall" in data:
        note = f"Interquartile mean of {comparison.score_name}s over tasks and seeds, where all runs have evaluations."
        found.append(figure("overall", "Over all tasks", note, data["overall"]))
    return element("div", *found, class_="figures")


def profiles(data: Mapping[str, Any]) -> Markup | None:
    """Returns the figure of performance profiles; None without data."""
    if "profile" not in data:
        return None
    note = "Fraction of runs whose normalized score is above the value on the axis. Higher and further right is better."
    return figure("profile", "Performance profile", note, data["profile"])

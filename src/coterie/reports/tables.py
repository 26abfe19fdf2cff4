"""Tables of a comparison, which the terminal, Markdown and LaTeX share, and its values as CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.text import csv_text
from coterie.reports.comparison import Band, Comparison, Estimate, PairResult, Score, Statistics, TaskResult
from coterie.reports.sentences import SCORE_NAMES, digits, last_step, metric_name, number, p_value

STATISTICS = {"mean": "mean", "median": "median", "iqm": "IQM", "optimality_gap": "optimality gap"}


@dataclass(frozen=True)
class ReportTable:
    """A table of text.

    Attributes:
        title: Line above the table.
        columns: Headings.
        rows: Cells by row.
        best: Row and column of cells with the best value of their column.
        task: Label of the task that the title begins with; empty for other tables.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    task: str = ""


def tables_of(comparison: Comparison) -> list[ReportTable]:
    """Returns the tables: one per task, over all tasks if there are several, of pairs, and of times to a threshold."""
    tables = [_task_table(comparison, task) for task in comparison.tasks]
    if len(comparison.tasks) > 1:
        tables.append(_overall_table(comparison))
    if comparison.pairs:
        tables.append(_pair_table(comparison))
    if any(result.time is not None for result in comparison.results.values()):
        tables.append(_time_table(comparison))
    return tables


def estimate_text(estimate: Estimate) -> str:
    """Formats an estimate as `-23.4 [-24.1, -22.9]`."""
    if not estimate.has_interval or estimate.low == math.inf:
        return "-" if math.isnan(estimate.value) else number(estimate.value)
    value, low, high = digits(estimate)
    return f"{value} [{low}, {high}]"


def _task_table(comparison: Comparison, task: str) -> ReportTable:
    results = [result for (name, _), result in comparison.results.items() if name == task]
    extra: list[Score] = [
        score for score in SCORE_NAMES if score != comparison.score and any(score in r.other_scores for r in results)
    ]
    rows, values = [], []
    for result in results:
        statistics = result.statistics
        estimates = [statistics.iqm, statistics.mean, statistics.median]
        others = [result.other_scores.get(score, Estimate(math.nan)) for score in extra]
        shown = [*estimates, *others, statistics.optimality_gap]
        rows.append((result.algo, str(len(result.trials)), *map(estimate_text, shown)))
        values.append([e.value for e in shown])
    steps = list(dict.fromkeys(f"{x:,.0f}" for x in sorted(map(last_step, results))))
    span = steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    title = f"{task}: {metric_name(comparison.metric)}, {SCORE_NAMES[comparison.score]}, {span} steps"
    columns = ("algorithm", "seeds", "IQM", "mean", "median", *(f"{s} IQM" for s in extra), "optimality gap")
    lowest = [comparison.lowest] * (3 + len(extra)) + [True]
    return ReportTable(title, columns, tuple(rows), _best(values, lowest, offset=2), task)


def _overall_table(comparison: Comparison) -> ReportTable:
    rows, values = [], []
    for algo, result in comparison.overall.items():
        s = result.statistics
        shown = [s.iqm, s.mean, s.median, s.optimality_gap]
        rows.append((algo, str(len(result.tasks)), str(result.runs), *map(estimate_text, shown)))
        values.append([e.value for e in shown])
    title = f"over {len(comparison.tasks)} tasks: normalized scores ({comparison.normalization})"
    columns = ("algorithm", "tasks", "runs", "IQM", "mean", "median", "optimality gap")
    return ReportTable(title, columns, tuple(rows), _best(values, [False, False, False, True], offset=3))


def _pair_table(comparison: Comparison) -> ReportTable:
    rows = []
    for pair in comparison.pairs:
        runs = str(pair.runs[0]) if pair.paired else f"{pair.runs[0]}, {pair.runs[1]}"
        mark = " *" if pair.is_significant else ""
        rows.append(
            (
                f"{pair.algo} - {pair.other}",
                pair.task or f"{pair.num_tasks} tasks, normalized",
                runs,
                estimate_text(pair.probability) + (mark if pair.task is None else ""),
                estimate_text(pair.difference),
                p_value(pair.p),
                p_value(pair.p_holm) + (mark if pair.task is not None else ""),
            )
        )
    paired = comparison.pairs[0].paired
    title = f"pairs: probability that a run of the first is better{', runs with equal seeds' if paired else ''}"
    test = "paired t" if paired else "Welch"
    columns = ("pair", "task", "pairs" if paired else "runs", "P(improvement)", "difference", f"p {test}", "p Holm")
    return ReportTable(title, columns, tuple(rows))


def _time_table(comparison: Comparison) -> ReportTable:
    rows = []
    for result in comparison.results.values():
        time = result.time
        if time is None:
            continue
        cells = (number(time.threshold), f"{time.reached} of {time.runs}")
        rows.append((result.algo, result.task, *cells, estimate_text(time.steps), estimate_text(time.seconds)))
    title = f"time until evaluations reach a {metric_name(comparison.metric)}: median over seeds"
    return ReportTable(title, ("algorithm", "task", "threshold", "reached", "steps", "seconds"), tuple(rows))


def _best(values: Sequence[Sequence[float]], lowest: Sequence[bool], offset: int) -> frozenset[tuple[int, int]]:
    """Returns the places of the best values by column, if there are several rows."""
    if len(values) < 2:
        return frozenset()
    found = set()
    for column, low in enumerate(lowest):
        finite = [row[column] for row in values if math.isfinite(row[column])]
        best = (min if low else max)(finite) if finite else math.nan
        found |= {(i, column + offset) for i, row in enumerate(values) if row[column] == best}
    return frozenset(found)


# ------------------------------------------------------------------------------------------------------------ CSV, JSON


def as_csv(comparison: Comparison) -> str:
    """Returns all values as CSV: a line per statistic, with its interval. Unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "task", "algo", "other", "statistic", "runs", "value", "low", "high"])
    for (task, algo), result in comparison.results.items():
        task, algo = csv_text(task), csv_text(algo)
        for trial, score in zip(result.trials, result.scores, strict=True):
            seed = "" if trial.seed is None else trial.seed
            writer.writerow(["run", task, algo, "", f"seed {seed}", 1, repr(float(score)), "", ""])
        for name, estimate in _named(result):
            writer.writerow(["task", task, algo, "", name, len(result.trials), *_numbers(estimate)])
    for algo, result in comparison.overall.items() if len(comparison.tasks) > 1 else ():
        for name in STATISTICS:
            row = _numbers(getattr(result.statistics, name))
            writer.writerow(["overall", "", csv_text(algo), "", name, result.runs, *row])
    for pair in comparison.pairs:
        words = ["pair", *map(csv_text, (pair.task or "", pair.algo, pair.other))]
        runs = pair.runs[0] if pair.paired else f"{pair.runs[0]}+{pair.runs[1]}"
        for name in ("probability", "difference"):
            writer.writerow([*words, name, runs, *_numbers(getattr(pair, name))])
        for name in ("p", "p_holm"):
            writer.writerow([*words, name, runs, *_numbers(Estimate(getattr(pair, name)))])
    return text.getvalue()


def _named(result: TaskResult) -> Iterator[tuple[str, Estimate]]:
    for name in STATISTICS:
        yield name, getattr(result.statistics, name)
    yield "std", Estimate(result.std)
    for score, estimate in result.other_scores.items():
        yield f"{score}_iqm", estimate
    if result.time is not None:
        yield "threshold", Estimate(result.time.threshold)
        yield "steps_to_threshold", result.time.steps
        yield "seconds_to_threshold", result.time.seconds


def _numbers(estimate: Estimate) -> list[str]:
    return ["" if math.isnan(x) else repr(float(x)) for x in (estimate.value, estimate.low, estimate.high)]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Returns the comparison as plain numbers and strings; None for numbers that are not finite."""
    return {
        "metric": comparison.metric,
        "lowest": comparison.lowest,
        "score": comparison.score,
        "normalization": comparison.normalization,
        "resampling": comparison.resampling,
        "tasks": {name: _plain(vars(task)) for name, task in comparison.tasks.items()},
        "results": [_result(result) for result in comparison.results.values()],
        "overall": [
            {
                "algo": result.algo,
                "tasks": list(result.tasks),
                "runs": result.runs,
                **_statistics(result.statistics),
                "profile": _band(result.profile),
                "steps": _band(result.steps),
                "seconds": _band(result.seconds),
            }
            for result in comparison.overall.values()
        ],
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "sentences": list(comparison.sentences),
        "notes": list(comparison.notes),
    }


def _result(result: TaskResult) -> dict[str, Any]:
    time = result.time
    return {
        "task": result.task,
        "algo": result.algo,
        "runs": [{"run": t.run.name, "seed": t.seed, "team": t.team} for t in result.trials],
        "scores": result.scores.tolist(),
        **_statistics(result.statistics),
        "std": _finite(result.std),
        "other_scores": {score: estimate.report() for score, estimate in result.other_scores.items()},
        "steps": _band(result.steps),
        "seconds": _band(result.seconds),
        "time_to_threshold": None
        if time is None
        else {
            "threshold": time.threshold,
            "reached": time.reached,
            "runs": time.runs,
            "steps": time.steps.report(),
            "seconds": time.seconds.report(),
        },
    }


def _statistics(statistics: Statistics) -> dict[str, Any]:
    return {name: getattr(statistics, name).report() for name in STATISTICS}


def _pair(pair: PairResult) -> dict[str, Any]:
    estimates = {"probability": pair.probability.report(), "difference": pair.difference.report()}
    return {
        "algo": pair.algo,
        "other": pair.other,
        "task": pair.task,
        "num_tasks": pair.num_tasks,
        "paired": pair.paired,
        "runs": list(pair.runs),
        **estimates,
        "p": _finite(pair.p),
        "p_holm": _finite(pair.p_holm),
        "significant": bool(pair.is_significant),
    }


def _band(band: Band | None) -> dict[str, Any] | None:
    if band is None:
        return None
    return {name: [_finite(x) for x in np.asarray(values).tolist()] for name, values in vars(band).items()}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _finite(value) if isinstance(value, float) else value for key, value in values.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""Tables of a comparison: printed on the terminal, and as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from coterie.core import markup
from coterie.core.terminal import print_line
from coterie.core.text import csv_text, printable
from coterie.reports.comparison import Comparison, Estimate, TaskResult
from coterie.reports.options import Score
from coterie.reports.sentences import FEW, FEW_SEEDS, SCORE_NAMES, digits, last_step, metric_name, number, p_value
from coterie.runs.evaluations import RETURN_CONVENTION
from coterie.runs.tables import print_table

STATISTICS = {"mean": "mean", "median": "median", "iqm": "IQM", "optimality_gap": "optimality gap"}

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # without T1 fonts, these three are other letters
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


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
    title = f"over {len(comparison.tasks)} tasks: {comparison.score_name}s ({comparison.normalization})"
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


# -------------------------------------------------------------------------------------------------- terminal, documents


def print_comparison(comparison: Comparison) -> None:
    """Prints the sentences, the tables and the notes on stdout."""
    for sentence in comparison.sentences:
        print_line(sentence)
    print_line()
    for table in tables_of(comparison):
        print_table(table.columns, table.rows, title=table.title)
    for line in footnotes(comparison):
        print_line(line)


def footnotes(comparison: Comparison) -> list[str]:
    """Returns lines that explain the numbers, and the notes."""
    lines = [f"Brackets: {comparison.resampling}. IQM: interquartile mean."]
    gap = "the mean amount by which normalized scores miss 1"
    lines.append(f"Optimality gap: {gap} ({comparison.normalization}).")
    if comparison.metric.endswith("return_mean"):
        lines.append(f"{RETURN_CONVENTION[0].upper()}{RETURN_CONVENTION[1:]}.")
    if any(pair.is_significant for pair in comparison.pairs):
        lines.append(
            "*: p below 0.05 after Holm's correction; over tasks, an interval of the probability that excludes 0.5."
        )
    return lines + [f"Note: {note}." if not note.endswith((".", "?")) else f"Note: {note}" for note in comparison.notes]


class NotebookComparison(Comparison):
    """A comparison that notebooks show as its tables."""

    def _repr_html_(self) -> markup.Markup:
        parts: list[Any] = [markup.paragraphs(self.sentences)]
        for report in tables_of(self):
            rows = [
                [markup.element("b", text) if (i, j) in report.best else text for j, text in enumerate(row)]
                for i, row in enumerate(report.rows)
            ]
            title = markup.element("p", markup.element("b", report.title))
            parts += [title, markup.table(report.columns, rows)]
        return markup.join([*parts, markup.paragraphs(footnotes(self))])


def as_markdown(comparison: Comparison) -> str:
    """Returns the sentences, tables and notes as Markdown, with the best values in bold."""
    parts = [" ".join(map(_markdown, comparison.sentences))]
    for table in tables_of(comparison):
        head = "| " + " | ".join(map(_markdown, table.columns)) + " |"
        rule = "|" + "|".join("---" if i == 0 else "--:" for i in range(len(table.columns))) + "|"
        rows = ["| " + " | ".join(cells) + " |" for cells in _cells(table, _markdown, "**{}**")]
        parts.append("\n".join([f"**{_markdown(table.title)}**", "", head, rule, *rows]))
    parts.append("\n".join(f"- {_markdown(line)}" for line in footnotes(comparison)))
    return "\n\n".join(parts) + "\n"


def as_latex(comparison: Comparison) -> str:
    """Returns the tables as LaTeX with booktabs, the best values in bold, and the sentences as comments."""
    parts = ["% Needs \\usepackage{booktabs}.", *(f"% {printable(s)}" for s in comparison.sentences)]
    for table in tables_of(comparison):
        rows = [" & ".join(cells) + r" \\" for cells in _cells(table, _latex, r"\textbf{{{}}}")]
        parts += [
            "",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(table.title if table.task else table.title[0].upper() + table.title[1:])}.}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, table.columns)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    parts += ["", *(f"% {printable(line)}" for line in footnotes(comparison))]
    return "\n".join(parts) + "\n"


def as_compact_latex(comparison: Comparison) -> str:
    """Returns one LaTeX table, tasks x algorithms: interquartile means with intervals, the best of a task in bold.

    With several tasks, the last row has the normalized scores over all of them. The caption explains the numbers.
    """
    algos = list(dict.fromkeys(algo for _, algo in comparison.results))
    rows = []
    for task in comparison.tasks:
        found = {algo: result.statistics.iqm for (name, algo), result in comparison.results.items() if name == task}
        rows.append(_compact_row(task, found, algos, lowest=comparison.lowest))
    if len(comparison.tasks) > 1:
        complete = {a: r.statistics.iqm for a, r in comparison.overall.items() if len(r.tasks) == len(comparison.tasks)}
        rows += [r"\midrule", _compact_row("all tasks, normalized", complete, algos, lowest=False)]
    results = comparison.results.values()
    seeds = sorted({len(result.trials) for result in results})
    steps = sorted({last_step(result) for result in results})
    caption = (
        f"{metric_name(comparison.metric)}, {SCORE_NAMES[comparison.score]} after {_span(steps)} steps: "
        f"interquartile mean [{comparison.resampling}], {_span(seeds)} {'seed' if seeds == [1] else 'seeds'} per cell"
    )
    few = f". {FEW_SEEDS}" if seeds[0] < FEW else ""
    lines = [
        "% Needs \\usepackage{booktabs}.",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(caption[0].upper() + caption[1:] + few)}.}}",
        rf"\begin{{tabular}}{{l{'r' * len(algos)}}}",
        r"\toprule",
        " & ".join(["task", *map(_latex, algos)]) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _compact_row(task: str, found: Mapping[str, Estimate], algos: Sequence[str], *, lowest: bool) -> str:
    """Returns a line of the compact table. Algorithms without runs have a dash."""
    finite = [estimate.value for estimate in found.values() if math.isfinite(estimate.value)]
    best = (min if lowest else max)(finite) if len(finite) > 1 else math.nan
    cells = [_latex(task)]
    for algo in algos:
        estimate = found.get(algo)
        text = "-" if estimate is None else _latex(estimate_text(estimate))
        cells.append(rf"\textbf{{{text}}}" if estimate is not None and estimate.value == best else text)
    return " & ".join(cells) + r" \\"


def _span(values: Sequence[float]) -> str:
    """Returns ascending numbers as one or as a range: `5` or `3 to 5`."""
    return f"{values[0]:,.0f}" if values[0] == values[-1] else f"{values[0]:,.0f} to {values[-1]:,.0f}"


def _cells(table: ReportTable, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    return [
        [bold.format(escape(cell)) if (i, j) in table.best else escape(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]


def _markdown(text: str) -> str:
    """Returns a text without effects in Markdown. Brackets are left as they are unless a link would begin there."""
    return re.sub(r"([\\|*_<>`~&$#]|\](?=[(\[:]))", r"\\\1", printable(text))


def _latex(text: str) -> str:
    """Returns a text without effects in LaTeX. A bracket or a star at its start would belong to the line before."""
    text = "".join(_LATEX.get(letter, letter) for letter in printable(text))
    text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    return f"{{{text[0]}}}{text[1:]}" if text[:1] in ("[", "*") else text


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
    names = ("metric", "lowest", "score", "normalization", "resampling", "tasks", "pairs", "sentences", "notes")
    content: dict[str, Any] = {name: _plain(getattr(comparison, name)) for name in names}
    for pair, entry in zip(comparison.pairs, content["pairs"], strict=True):
        entry["significant"] = bool(pair.is_significant)
    content["results"] = []
    for result in comparison.results.values():
        entry = _plain(result)
        entry["runs"] = [{"run": t.run.name, "seed": t.seed, "team": t.team} for t in result.trials]
        entry["time_to_threshold"] = entry.pop("time")
        content["results"].append(entry | entry.pop("statistics"))
    overall = [_plain(result) for result in comparison.overall.values()]
    return content | {"overall": [entry | entry.pop("statistics") for entry in overall]}


def _plain(value: Any) -> Any:
    """Returns records as dicts and arrays as lists, without the trials; None for numbers that are not finite."""
    if is_dataclass(value):
        return {x.name: _plain(getattr(value, x.name)) for x in fields(value) if x.name != "trials"}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(one) for one in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value

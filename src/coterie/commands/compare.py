"""Comparison of runs: collects them, evaluates their policies again if wanted, compares them and writes the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from coterie.commands.arguments import run_folder
from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.core.terminal import print_json, print_line, print_message, print_progress
from coterie.reports import analysis
from coterie.reports.collection import collect
from coterie.reports.comparison import Comparison
from coterie.reports.grouping import group, select_metric
from coterie.reports.marl_eval import write_file
from coterie.reports.options import CompareOptions, Scale, Score
from coterie.reports.records import CollectedRun, Trial
from coterie.reports.tables import (
    NotebookComparison,
    as_compact_latex,
    as_csv,
    as_json,
    as_latex,
    as_markdown,
    print_comparison,
)


def compare(
    runs: Any,
    *,
    metric: str | None = None,
    team: str | None = None,
    evaluate: bool | int = False,
    unfinished: bool = False,
    file_returns: Scale | None = None,
    score: Score | None = None,
    normalize: str = "auto",
    threshold: float | Mapping[str, float] | None = None,
    baseline: str | None = None,
    paired: bool = False,
    resample: Literal["seeds", "episodes"] = "seeds",
    mixed: bool = False,
) -> Comparison:
    """Compares algorithms over seeds and tasks, like `coterie compare`.

    Args:
        runs: Folders of runs, or that contain runs, patterns, JSON files of marl-eval, or results of `coterie.train`;
            one of them or a list.
        metric: Metric, such as `won`; with a minus sign, lower is better. Default: mean returns of evaluations.
        team: Team. Default: all that learn.
        evaluate: True, or a number of episodes, to evaluate the final and the best policies on fresh episodes first.
        unfinished: True to include runs that are not finished.
        file_returns: Convention of returns in files of marl-eval: `team` or `agent`.
        score: Score of a run: `final`, `peak`, `fresh` or `absolute`. Default: `fresh` if all runs have it, else
            `final`.
        normalize: `auto`, `random`, `reference`, `range`, `none` or `MIN,MAX`.
        threshold: Value whose first time is reported, for all tasks or by task. Default: the mean of the baseline, or
            of the worst algorithm on the task that beats the random policy.
        baseline: Algorithm that the others are compared with. Default: all pairs.
        paired: True to compare runs with equal seeds.
        resample: Levels of the bootstrap: `seeds`, or `episodes` for seeds and then episodes of fresh evaluations.
        mixed: True to accept evaluations with different numbers of episodes.

    Returns:
        The comparison: `results` by task and algorithm, `overall` by algorithm, `pairs`, and `sentences`.

    Raises:
        UserError: If there are no runs, or they cannot be compared.
    """
    options = CompareOptions(
        metric=metric,
        team=team,
        score=score,
        normalize=normalize,
        threshold=threshold,
        baseline=baseline,
        paired=paired,
        resample=resample,
        unfinished=unfinished,
        mixed=mixed,
        file_returns=file_returns,
    )
    return NotebookComparison(**vars(compare_runs(paths_of(runs), options, evaluate=evaluate).comparison))


def paths_of(runs: Any) -> list[str]:
    """Returns the paths of runs: paths, patterns, or results of `coterie.train`, one of them or a list."""
    given = list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    return [str(run) if isinstance(run, str | PathLike) else str(run_folder(run)) for run in given]


@dataclass(frozen=True)
class Compared:
    """A comparison with the trials it was made from, and the unfinished runs that were left out."""

    comparison: Comparison
    trials: tuple[Trial, ...] = field(repr=False)
    unfinished: tuple[CollectedRun, ...] = ()


def compare_runs(
    paths: Sequence[str | Path], options: CompareOptions | None = None, *, evaluate: bool | int = False
) -> Compared:
    """Compares runs.

    Args:
        paths: Folders of runs, folders that contain runs, patterns, and JSON files of marl-eval.
        options: Options of the comparison.
        evaluate: True, or a number of episodes, to evaluate the policies on fresh episodes first.

    Raises:
        UserError: If there are no runs, or they cannot be compared.
    """
    options = options or CompareOptions()
    collection = collect(paths, unfinished=options.unfinished, on_progress=_show_reading)
    selection = select_metric(collection.runs, options.metric, options.team, options.file_returns)
    if evaluate is not False:
        from coterie.commands.fresh_evaluation import with_fresh_evaluations

        collection = with_fresh_evaluations(collection, None if evaluate is True else evaluate)
    trials, notes = group(collection, selection)
    comparison = analysis.compare(trials, selection, options, (*collection.notes, *notes))
    return Compared(comparison, tuple(trials), collection.unfinished)


def _show_reading(done: int, total: int) -> None:
    if total > 20:
        print_progress(f"reading runs: {done} of {total}" + (" " * 20 if done == total else ""))


def parse_thresholds(values: Sequence[str]) -> Mapping[str, float]:
    """Returns the thresholds by task, "" for all other tasks, from texts such as `-25` and `TASK=-25`.

    Raises:
        UserError: If a text is not a number.
    """
    thresholds: dict[str, float] = {}
    for text in values:
        task, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise UserError(f"--threshold {text}: not a number. Write a return, or TASK=RETURN.") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise UserError(f"--threshold {text}: not a finite number. Write a return, or TASK=RETURN.")
        thresholds[task] = value
    return thresholds


# -------------------------------------------------------------------------------------------------------------- output

_STDOUT = Path("-")


@dataclass(frozen=True)
class Outputs:
    """Files to write; `-` for stdout, None for none.

    Attributes:
        markdown, latex, csv, json: Documents.
        latex_compact: LaTeX document with one table, tasks x algorithms.
        plot: Figure: .png, .svg or .pdf.
        marl_eval: JSON file in the format of marl-eval.
    """

    markdown: Path | None = None
    latex: Path | None = None
    latex_compact: Path | None = None
    csv: Path | None = None
    json: Path | None = None
    plot: Path | None = None
    marl_eval: Path | None = None

    def check(self) -> None:
        """Raises UserError for several documents on stdout, or a figure of an unknown type. Nothing is written."""
        names = [field.name.partition("_compact")[0] for field in fields(self) if getattr(self, field.name) == _STDOUT]
        if len(names) > 1:
            raise UserError(f"--{names[1]} -: stdout has --{names[0]} already. Name a file.")
        if self.marl_eval == _STDOUT or self.plot == _STDOUT:
            raise UserError(f"--{names[0].replace('_', '-')} -: cannot be written to stdout. Name a file.")
        if self.plot is not None and self.plot.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"--plot {self.plot}: unsupported file type. Expected .png, .svg or .pdf.")

    @property
    def to_stdout(self) -> bool:
        """True if a document is written to stdout, and nothing else may be."""
        return _STDOUT in (self.markdown, self.latex, self.latex_compact, self.csv, self.json)


_DOCUMENTS: dict[str, Callable[[Comparison], str]] = {
    "markdown": as_markdown,
    "latex": as_latex,
    "latex_compact": as_compact_latex,
    "csv": as_csv,
    "json": lambda comparison: json.dumps(as_json(comparison), indent=1) + "\n",
}


def write(compared: Compared, outputs: Outputs) -> list[str]:
    """Prints a comparison and writes its files.

    Args:
        compared: The comparison.
        outputs: Files to write. The table is printed if no document is written to stdout.

    Returns:
        A line per file, for stdout; none if a document was written there.

    Raises:
        UserError: If a file cannot be written.
    """
    comparison, written = compared.comparison, []
    if not outputs.to_stdout:
        print_comparison(comparison)
    for name, render in _DOCUMENTS.items():
        target = getattr(outputs, name)
        if target == _STDOUT:
            _print_document(name, comparison, render)
        elif target is not None:
            _make_folder(target)
            write_text(target, render(comparison))
            written.append(target)
    if outputs.plot is not None:
        from coterie.reports.figures import save

        save(comparison, outputs.plot)
        written.append(outputs.plot)
    if outputs.marl_eval is not None:
        _make_folder(outputs.marl_eval)
        for note in write_file(compared.trials, outputs.marl_eval, comparison.metric, lowest=comparison.lowest):
            print_message(note)
        written.append(outputs.marl_eval)
    return [] if outputs.to_stdout else [str(path) for path in written]


def _print_document(name: str, comparison: Comparison, render: Callable[[Comparison], str]) -> None:
    if name == "json":
        print_json(as_json(comparison))
        return
    for line in render(comparison).splitlines():
        print_line(line)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}). Choose another folder.") from error

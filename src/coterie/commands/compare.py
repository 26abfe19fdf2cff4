"""Comparison of runs: collects them, evaluates their policies again if wanted, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.core.errors import UserError
from coterie.core.terminal import print_progress
from coterie.reports.analysis import compare
from coterie.reports.collection import Collection, collect
from coterie.reports.comparison import Comparison
from coterie.reports.grouping import Selection, group, select_metric
from coterie.reports.options import CompareOptions
from coterie.reports.records import CollectedRun, Scale, Trial


@dataclass(frozen=True)
class RunSelection:
    """Runs to compare, with the metric and the team.

    Attributes:
        paths: Folders of runs, folders that contain runs, patterns, and JSON files of marl-eval.
        metric: Metric as a user names it; None for mean returns of evaluations.
        team: Team; None for all that learn.
        file_returns: Convention of returns in files of marl-eval.
        unfinished: True to include runs that are not finished.
    """

    paths: tuple[str, ...]
    metric: str | None = None
    team: str | None = None
    file_returns: Scale | None = None
    unfinished: bool = False


@dataclass(frozen=True)
class Compared:
    """A comparison with the trials it was made from, and the unfinished runs that were left out."""

    comparison: Comparison
    trials: tuple[Trial, ...] = field(repr=False)
    unfinished: tuple[CollectedRun, ...] = ()


Evaluate = Callable[[Collection, Selection], Collection]
"""Function that adds fresh evaluations to the runs of a collection."""


def compare_runs(
    runs: RunSelection, options: CompareOptions | None = None, evaluate: Evaluate | None = None
) -> Compared:
    """Compares runs.

    Args:
        runs: The runs.
        options: Options of the comparison.
        evaluate: Function that evaluates the policies of runs again; None to use the evaluations that exist.

    Raises:
        UserError: If there are no runs, or they cannot be compared.
    """
    collection = collect(runs.paths, unfinished=runs.unfinished, on_progress=_show_reading)
    selection = select_metric(collection.runs, runs.metric, runs.team, runs.file_returns)
    if evaluate is not None:
        collection = evaluate(collection, selection)
    trials, notes = group(collection, selection)
    return Compared(
        compare(trials, selection, options, (*collection.notes, *notes)), tuple(trials), collection.unfinished
    )


def _show_reading(done: int, total: int) -> None:
    if total > 20:
        print_progress(f"reading runs: {done} of {total}" + (" " * 20 if done == total else ""))


def parse_thresholds(values: Sequence[str]) -> tuple[float | None, Mapping[str, float]]:
    """Returns the threshold of all tasks and those of single tasks, from texts such as `-25` and `TASK=-25`.

    Raises:
        UserError: If a text is not a number.
    """
    common: float | None = None
    single: dict[str, float] = {}
    for text in values:
        task, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise UserError(f"--threshold {text}: not a number. Write a return, or TASK=RETURN.") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise UserError(f"--threshold {text}: not a finite number. Write a return, or TASK=RETURN.")
        if task:
            single[task] = value
        else:
            common = value
    return common, single

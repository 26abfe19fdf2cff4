"""Comparison of runs from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from coterie.commands.arguments import run_folder
from coterie.commands.compare import RunSelection, compare_runs
from coterie.commands.fresh_evaluation import evaluator
from coterie.reports.comparison import Comparison, Score
from coterie.reports.options import CompareOptions
from coterie.reports.records import Scale


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
        threshold: Value whose first time is reported, for all tasks or by task.
        baseline: Algorithm that the others are compared with. Default: all pairs.
        paired: True to compare runs with equal seeds.
        resample: Levels of the bootstrap.
        mixed: True to accept evaluations with different numbers of episodes.

    Returns:
        The comparison: `results` by task and algorithm, `overall` by algorithm, `pairs`, and `sentences`.

    Raises:
        UserError: If there are no runs, or they cannot be compared.
    """
    given = list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    paths = tuple(str(run) if isinstance(run, str | PathLike) else str(run_folder(run)) for run in given)
    options = CompareOptions(
        score=score,
        normalize=normalize,
        threshold=None if isinstance(threshold, Mapping) else threshold,
        thresholds=threshold if isinstance(threshold, Mapping) else {},
        baseline=baseline,
        paired=paired,
        resample=resample,
        mixed=mixed,
    )
    again = None if evaluate is False else evaluator(None if evaluate is True else evaluate)
    return compare_runs(RunSelection(paths, metric, team, file_returns, unfinished), options, again).comparison

"""Comparison of algorithms: scores, statistics over seeds and tasks, pairs, curves and times to a threshold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coterie.core.errors import UserError, nearest
from coterie.reports import aggregates, bootstrap, curves
from coterie.reports.comparison import (
    Axis,
    Band,
    Comparison,
    Estimate,
    OverallResult,
    Score,
    Statistics,
    Task,
    TaskResult,
)
from coterie.reports.grouping import Selection, require_equal_episodes, setting_differences
from coterie.reports.normalization import normalize
from coterie.reports.options import CompareOptions
from coterie.reports.pairs import compare_pairs
from coterie.reports.records import Trial
from coterie.reports.scores import SCORES, Groups, Key, Samples, choose_score, scores_of
from coterie.reports.sentences import notes_on, sentences_of

_PROFILE_POINTS = 101


def compare(
    trials: Sequence[Trial], selection: Selection, options: CompareOptions | None = None, notes: Sequence[str] = ()
) -> Comparison:
    """Compares the algorithms of trials.

    Args:
        trials: The trials, ordered by task, algorithm and seed.
        selection: Metric of the trials.
        options: Options.
        notes: Sentences of the collection and the grouping, which come first.

    Raises:
        UserError: If an option does not fit the trials, or their evaluations cannot be compared.
    """
    options = options or CompareOptions()
    groups: dict[Key, list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.task, trial.algo), []).append(trial)
    algos = tuple(dict.fromkeys(algo for _, algo in groups))
    if options.baseline is not None and options.baseline not in algos:
        raise UserError(f"--baseline {options.baseline}: not among the algorithms. {nearest(options.baseline, algos)}")
    score = choose_score(options.score, trials)
    if score in ("final", "peak") and not options.mixed:
        require_equal_episodes(trials)
    samples = Samples.draw(groups, score, lowest=selection.lowest, by_episodes=options.resample == "episodes")
    returns = selection.metric.endswith("return_mean")
    normalized = normalize(samples.scores, trials, options.normalize, lowest=selection.lowest, returns=returns)
    for task in options.thresholds:
        if task not in normalized.tasks:
            raise UserError(f"--threshold {task}=...: no such task. {nearest(task, normalized.tasks)}")
    results = {
        key: _task_result(
            normalized.tasks[key[0]],
            tuple(own),
            samples,
            threshold=_threshold(normalized.tasks[key[0]], samples, selection, options),
            lowest=selection.lowest,
        )
        for key, own in groups.items()
    }
    overall = {algo: _overall(algo, groups, samples, normalized.tasks) for algo in algos}
    comparison = Comparison(
        metric=selection.metric,
        lowest=selection.lowest,
        score=score,
        normalization=normalized.phrase,
        resampling=_phrase(options, samples),
        tasks=normalized.tasks,
        algos=algos,
        results=results,
        overall=overall,
        pairs=compare_pairs(groups, samples, normalized.tasks, options),
        notes=(),
        sentences=(),
        settings=setting_differences(trials),
    )
    return replace(
        comparison, notes=(*notes, *normalized.notes, *notes_on(comparison)), sentences=sentences_of(comparison)
    )


def _phrase(options: CompareOptions, samples: Samples) -> str:
    levels = "seeds and their episodes" if options.resample == "episodes" else "seeds"
    return f"95% percentile bootstrap over {levels}, stratified by task, {bootstrap.REPETITIONS:,} samples"


# ------------------------------------------------------------------------------------------------------------- results


def _task_result(
    task: Task, trials: tuple[Trial, ...], samples: Samples, *, threshold: float | None, lowest: bool
) -> TaskResult:
    algo = next(trial.algo for trial in trials)
    key = (task.name, algo)
    scores, drawn = samples.scores[key], samples.of([key])
    series = [trial.series for trial in trials]
    others: dict[Score, Estimate] = {}
    for score in SCORES:
        found = scores_of(trials, score, lowest=lowest)
        if found is not None:
            again = None if len(trials) < 2 else bootstrap.resample([found], bootstrap.random_numbers(*key, score))
            others[score] = bootstrap.estimate(aggregates.interquartile_mean, [found], again)
    return TaskResult(
        task=task.name,
        algo=algo,
        trials=trials,
        scores=scores,
        statistics=Statistics(
            mean=bootstrap.estimate(aggregates.mean, [scores], drawn),
            median=bootstrap.estimate(aggregates.median_of_runs, [scores], drawn),
            iqm=bootstrap.estimate(aggregates.interquartile_mean, [scores], drawn),
            optimality_gap=bootstrap.estimate(
                aggregates.optimality_gap,
                [task.normalized(scores)],
                None if drawn is None else [task.normalized(drawn[0])],
            ),
        ),
        std=float(scores.std(ddof=1)) if len(scores) > 1 else float("nan"),
        other_scores=others,
        steps=_learning_band([task], {key: trials}, "steps", normalized=False),
        seconds=_learning_band([task], {key: trials}, "seconds", normalized=False),
        time=None if threshold is None else curves.time_to_threshold(series, threshold, *key, lowest=lowest),
    )


def _learning_band(tasks: Sequence[Task], groups: Groups, axis: Axis, *, normalized: bool) -> Band | None:
    """Returns the interquartile mean of an algorithm's evaluations on the tasks."""
    algo = next(algo for _, algo in groups)
    series = [[trial.series for trial in groups[task.name, algo]] for task in tasks]
    grid = curves.common_grid(list(itertools.chain(*series)), axis)
    if grid is None:
        return None
    values = [curves.interpolated(own, axis, grid) for own in series]
    if normalized:
        values = [task.normalized(x) for task, x in zip(tasks, values, strict=True)]
    return curves.band(aggregates.interquartile_mean, values, grid, algo, *(task.name for task in tasks), axis)


def _overall(algo: str, groups: Groups, samples: Samples, tasks: Mapping[str, Task]) -> OverallResult:
    own = [task for task in tasks.values() if (task.name, algo) in groups]
    keys = [(task.name, algo) for task in own]
    scores = [task.normalized(samples.scores[key]) for task, key in zip(own, keys, strict=True)]
    drawn = samples.of(keys)
    again = None if drawn is None else [task.normalized(x) for task, x in zip(own, drawn, strict=True)]
    mine = {key: groups[key] for key in keys}
    every = np.concatenate([task.normalized(x) for (name, _), x in samples.scores.items() for task in [tasks[name]]])
    grid = np.linspace(min(0.0, float(every.min())), max(1.0, float(every.max())), _PROFILE_POINTS)
    return OverallResult(
        algo=algo,
        tasks=tuple(task.name for task in own),
        runs=sum(len(x) for x in scores),
        statistics=Statistics(
            mean=bootstrap.estimate(aggregates.mean, scores, again),
            median=bootstrap.estimate(aggregates.median, scores, again),
            iqm=bootstrap.estimate(aggregates.interquartile_mean, scores, again),
            optimality_gap=bootstrap.estimate(aggregates.optimality_gap, scores, again),
        ),
        profile=_profile(scores, again, grid),
        steps=_learning_band(own, mine, "steps", normalized=True) if len(tasks) > 1 else None,
        seconds=_learning_band(own, mine, "seconds", normalized=True) if len(tasks) > 1 else None,
    )


def _profile(scores: Sequence[np.ndarray], samples: Sequence[np.ndarray] | None, grid: np.ndarray) -> Band:
    value = aggregates.performance_profile(scores, grid)
    if samples is None:
        unknown = np.full(len(grid), np.nan)
        return Band(grid, value, unknown, unknown)
    few = [x[: bootstrap.BAND_REPETITIONS] for x in samples]
    low, high = bootstrap.interval(aggregates.performance_profile(few, grid))
    return Band(grid, value, low, high)


def _threshold(task: Task, samples: Samples, selection: Selection, options: CompareOptions) -> float | None:
    """Returns the user's threshold, else the mean score of the baseline, else of the worst algorithm of several.

    Algorithms that are not better than the random policy are left out if another one is: any run would reach their
    scores without training.
    """
    if task.name in options.thresholds:
        return options.thresholds[task.name]
    if options.threshold is not None:
        return options.threshold
    means = {algo: float(x.mean()) for (name, algo), x in samples.scores.items() if name == task.name}
    if options.baseline in means:
        return means[options.baseline]
    sign = -1.0 if selection.lowest else 1.0
    found = sorted(sign * x for x in means.values())
    better = [x for x in found if task.random is None or x > sign * task.random]
    return sign * (better or found)[0] if len(found) > 1 else None

"""Comparison of algorithms: scores, statistics over seeds and tasks, pairs, curves and times to a threshold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.core.errors import UserError, nearest
from coterie.reports import estimates
from coterie.reports.comparison import (
    Axis,
    Band,
    Comparison,
    Estimate,
    OverallResult,
    PairResult,
    Statistics,
    Task,
    TaskResult,
)
from coterie.reports.grouping import Selection, require_equal_episodes, setting_differences
from coterie.reports.normalization import normalize
from coterie.reports.options import CompareOptions, Score
from coterie.reports.records import Trial
from coterie.reports.sentences import SCORE_NAMES, notes_on, sentences_of

_PROFILE_POINTS = 101

Key = tuple[str, str]
"""Task and algorithm."""

Groups = Mapping[Key, Sequence[Trial]]
"""Trials by task and algorithm."""


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
    score = _choose_score(options.score, trials)
    if score in ("final", "peak") and not options.mixed:
        require_equal_episodes(trials)
    samples = _Samples.draw(groups, score, lowest=selection.lowest, by_episodes=options.resample == "episodes")
    returns = selection.metric.endswith("return_mean")
    phrase, tasks = normalize(samples.scores, trials, options.normalize, lowest=selection.lowest, returns=returns)
    for task in options.thresholds:
        if task and task not in tasks:
            raise UserError(f"--threshold {task}=...: no such task. {nearest(task, tasks)}")
    levels = "seeds and their episodes" if options.resample == "episodes" else "seeds"
    comparison = Comparison(
        metric=selection.metric,
        lowest=selection.lowest,
        score=score,
        normalization=phrase,
        resampling=f"95% percentile bootstrap over {levels}, stratified by task, {estimates.REPETITIONS:,} samples",
        tasks=tasks,
        algos=algos,
        results={
            (task, algo): _task_result(
                tasks[task],
                tuple(own),
                samples,
                threshold=_threshold(tasks[task], samples, selection, options),
                lowest=selection.lowest,
            )
            for (task, algo), own in groups.items()
        },
        overall={algo: _overall(algo, groups, samples, tasks) for algo in algos},
        pairs=_compare_pairs(groups, samples, tasks, options),
        notes=(),
        sentences=(),
        settings=setting_differences(trials),
    )
    return replace(comparison, notes=(*notes, *notes_on(comparison)), sentences=sentences_of(comparison))


# -------------------------------------------------------------------------------------------------------------- scores


def _scores_of(trials: Sequence[Trial], score: Score, *, lowest: bool) -> np.ndarray | None:
    """Returns the score of each trial, [n]; None if one of them has none."""
    if score == "final":
        return np.array([trial.series.final for trial in trials])
    if score == "peak":
        return np.array([trial.series.peak(lowest=lowest) for trial in trials])
    values = [trial.episodes(score) for trial in trials]
    return None if any(x is None for x in values) else np.array([x.mean() for x in values if x is not None])


def _choose_score(wanted: Score | None, trials: Sequence[Trial]) -> Score:
    """Returns the score to compare: the wanted one, or a fresh evaluation of the final policies if all runs have it.

    Raises:
        UserError: If a run lacks the fresh evaluation that the wanted score needs.
    """
    if wanted is None:
        return "fresh" if all(trial.fresh is not None for trial in trials) else "final"
    if wanted in ("fresh", "absolute"):
        missing = next((trial.run for trial in trials if trial.episodes(wanted) is None), None)
        if missing is not None:
            word = "final" if wanted == "fresh" else "best"
            raise UserError(
                f"--score {wanted}: {missing.name} has no fresh evaluation of its {word} policies. Add --evaluate"
                + (", or leave the file out." if missing.origin == "marl-eval" else ".")
            )
    return wanted


@dataclass(frozen=True)
class _Samples:
    """Scores by task and algorithm, [n], and their bootstrap samples, [R, n]; None for a single run."""

    scores: dict[Key, np.ndarray]
    samples: dict[Key, np.ndarray | None]

    @classmethod
    def draw(cls, groups: Groups, score: Score, *, lowest: bool, by_episodes: bool) -> _Samples:
        """Draws the samples.

        Args:
            groups: Trials by task and algorithm.
            score: Kind of score.
            lowest: True if lower values are better.
            by_episodes: True to draw episodes, too: the two-level bootstrap.

        Raises:
            UserError: If episodes are wanted of a score that has none.
        """
        scores: dict[Key, np.ndarray] = {}
        samples: dict[Key, np.ndarray | None] = {}
        for key, trials in groups.items():
            found = _scores_of(trials, score, lowest=lowest)
            assert found is not None
            rng = estimates.random_numbers(*key, "scores")
            scores[key], samples[key] = found, None
            if len(trials) > 1 and by_episodes:
                episodes = [x for trial in trials if (x := trial.episodes(score)) is not None]
                if not episodes:
                    raise UserError(
                        f"--resample episodes: the score {score} has no single episodes. Add --evaluate --score fresh."
                    )
                samples[key] = estimates.resample_episodes([episodes], rng)[0]
            elif len(trials) > 1:
                samples[key] = estimates.resample([found], rng)[0]
        return cls(scores, samples)

    def normalized(self, algo: str, tasks: Sequence[Task]) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
        """Returns an algorithm's normalized scores by task, [n], and their samples, [R, n]; None if a task has one run.

        Args:
            algo: The algorithm.
            tasks: Tasks that it has runs on.
        """
        scores = [task.normalized(self.scores[task.name, algo]) for task in tasks]
        drawn = [task.normalized(x) for task in tasks if (x := self.samples[task.name, algo]) is not None]
        return scores, drawn if len(drawn) == len(tasks) else None


# ------------------------------------------------------------------------------------------------------------- results


def _statistics(
    scores: Sequence[np.ndarray],
    drawn: Sequence[np.ndarray] | None,
    normalized: tuple[Sequence[np.ndarray], Sequence[np.ndarray] | None],
    median: Callable[..., np.ndarray],
) -> Statistics:
    """Returns the statistics of scores [n] by task with samples [R, n], and of their normalized values."""
    samples, again = (None if x is None else [x] for x in (drawn, normalized[1]))
    return Statistics(
        mean=estimates.estimate(estimates.mean, scores, samples=samples),
        median=estimates.estimate(median, scores, samples=samples),
        iqm=estimates.estimate(estimates.interquartile_mean, scores, samples=samples),
        optimality_gap=estimates.estimate(estimates.optimality_gap, normalized[0], samples=again),
    )


def _task_result(
    task: Task, trials: tuple[Trial, ...], samples: _Samples, *, threshold: float | None, lowest: bool
) -> TaskResult:
    algo = trials[0].algo
    key = (task.name, algo)
    scores, drawn = samples.scores[key], samples.samples[key]
    others: dict[Score, Estimate] = {}
    for score in SCORE_NAMES:
        found = _scores_of(trials, score, lowest=lowest)
        if found is not None:
            rng = estimates.random_numbers(*key, score)
            again = None if len(trials) < 2 else [estimates.resample([found], rng)]
            others[score] = estimates.estimate(estimates.interquartile_mean, [found], samples=again)
    series = [trial.series for trial in trials]
    return TaskResult(
        task=task.name,
        algo=algo,
        trials=trials,
        scores=scores,
        statistics=_statistics(
            [scores],
            None if drawn is None else [drawn],
            samples.normalized(algo, [task]),
            median=estimates.median_of_runs,
        ),
        std=float(scores.std(ddof=1)) if len(scores) > 1 else float("nan"),
        other_scores=others,
        steps=_learning_band([task], {key: trials}, "steps", normalized=False),
        seconds=_learning_band([task], {key: trials}, "seconds", normalized=False),
        time=None if threshold is None else estimates.time_to_threshold(series, threshold, *key, lowest=lowest),
    )


def _learning_band(tasks: Sequence[Task], groups: Groups, axis: Axis, *, normalized: bool) -> Band | None:
    """Returns the interquartile mean of an algorithm's evaluations on the tasks."""
    algo = next(algo for _, algo in groups)
    series = [[trial.series for trial in groups[task.name, algo]] for task in tasks]
    grid = estimates.common_grid(list(itertools.chain(*series)), axis)
    if grid is None:
        return None
    values = [estimates.interpolated(own, axis, grid) for own in series]
    if normalized:
        values = [task.normalized(x) for task, x in zip(tasks, values, strict=True)]
    names = (algo, *(task.name for task in tasks), axis)
    return estimates.band_of_curves(estimates.interquartile_mean, values, grid, *names)


def _overall(algo: str, groups: Groups, samples: _Samples, tasks: Mapping[str, Task]) -> OverallResult:
    own = [task for task in tasks.values() if (task.name, algo) in groups]
    scores, drawn = samples.normalized(algo, own)
    every = np.concatenate([tasks[task].normalized(x) for (task, _), x in samples.scores.items()])
    grid = np.linspace(min(0.0, float(every.min())), max(1.0, float(every.max())), _PROFILE_POINTS)
    few = None if drawn is None else [x[: estimates.BAND_REPETITIONS] for x in drawn]
    bands: dict[Axis, Band | None] = {"steps": None, "seconds": None}
    if len(tasks) > 1:
        mine = {(task.name, algo): groups[task.name, algo] for task in own}
        bands = {axis: _learning_band(own, mine, axis, normalized=True) for axis in bands}
    return OverallResult(
        algo=algo,
        tasks=tuple(task.name for task in own),
        runs=sum(len(x) for x in scores),
        statistics=_statistics(scores, drawn, (scores, drawn), median=estimates.median),
        profile=estimates.band(
            grid,
            estimates.performance_profile(scores, grid),
            None if few is None else estimates.performance_profile(few, grid),
        ),
        **bands,
    )


def _threshold(task: Task, samples: _Samples, selection: Selection, options: CompareOptions) -> float | None:
    """Returns the user's threshold, else the mean score of the baseline, else of the worst algorithm of several.

    Algorithms that are not better than the random policy are left out if another one is: any run would reach their
    scores without training.
    """
    given = options.thresholds.get(task.name, options.thresholds.get(""))
    if given is not None:
        return given
    means = {algo: float(x.mean()) for (name, algo), x in samples.scores.items() if name == task.name}
    if options.baseline in means:
        return means[options.baseline]
    sign = -1.0 if selection.lowest else 1.0
    found = sorted(sign * x for x in means.values())
    better = [x for x in found if task.random is None or x > sign * task.random]
    return sign * (better or found)[0] if len(found) > 1 else None


# --------------------------------------------------------------------------------------------------------------- pairs


def _compare_pairs(
    groups: Groups, samples: _Samples, tasks: Mapping[str, Task], options: CompareOptions
) -> tuple[PairResult, ...]:
    """Compares all pairs of algorithms, or all with the baseline, on each task and over the tasks that both have.

    Args:
        groups: Trials by task and algorithm.
        samples: Their scores and bootstrap samples.
        tasks: Tasks by label.
        options: Baseline, and pairing by seeds.

    Raises:
        UserError: If runs are to be paired and two algorithms have no seed in common.
    """
    algos = _ranked(samples, tasks)
    pairs = [
        (one, other)
        for one, other in itertools.permutations(algos, 2)
        if (other == options.baseline if options.baseline else algos.index(one) < algos.index(other))
    ]
    single, overall = [], []
    for algo, other in pairs:
        shared = [task for task in tasks.values() if {(task.name, algo), (task.name, other)} <= set(groups)]
        shared = [task for task in shared if not options.paired or _common_seeds(groups, task.name, algo, other)]
        if options.paired and not shared:
            raise UserError(f"--paired: {algo} and {other} have no seed in common. Leave the option out.")
        single += [_pair(algo, other, [task], groups=groups, samples=samples, paired=options.paired) for task in shared]
        if len(shared) > 1:
            overall.append(_pair(algo, other, shared, groups=groups, samples=samples, paired=options.paired))
    corrected = estimates.holm([pair.p for pair in single])
    return (*(replace(pair, p_holm=p) for pair, p in zip(single, corrected, strict=True)), *overall)


def _ranked(samples: _Samples, tasks: Mapping[str, Task]) -> list[str]:
    """Returns the algorithms, those with the highest mean normalized score first."""
    means: dict[str, list[float]] = {}
    for (task, algo), scores in samples.scores.items():
        means.setdefault(algo, []).append(float(tasks[task].normalized(scores).mean()))
    return sorted(means, key=lambda algo: -sum(means[algo]) / len(means[algo]))


def _common_seeds(groups: Groups, task: str, algo: str, other: str) -> list[int]:
    """Returns the seeds that both have, each once. Of runs with equal seeds, only the last one has a partner."""
    seeds = [dict.fromkeys(trial.seed for trial in groups[task, name]) for name in (algo, other)]
    return [seed for seed in seeds[0] if seed is not None and seed in seeds[1]]


def _pair(
    algo: str, other: str, shared: Sequence[Task], *, groups: Groups, samples: _Samples, paired: bool
) -> PairResult:
    """Compares two algorithms on one or several tasks that both have."""
    (scores, drawn), (other_scores, other_drawn) = (samples.normalized(name, shared) for name in (algo, other))
    both = None if drawn is None or other_drawn is None else [drawn, other_drawn]
    if paired:
        partners = []  # scores of runs with equal seeds by task, [n, 2]
        for k, task in enumerate(shared):
            places = [{t.seed: i for i, t in enumerate(groups[task.name, name])} for name in (algo, other)]
            seeds = _common_seeds(groups, task.name, algo, other)
            columns = [x[k][[place[s] for s in seeds]] for x, place in zip((scores, other_scores), places, strict=True)]
            partners.append(np.stack(columns, axis=-1))
        scores, other_scores = ([x[..., i] for x in partners] for i in (0, 1))
        both = None
        if min(map(len, partners)) > 1:
            rng = estimates.random_numbers(algo, other, *(task.name for task in shared), "pairs")
            picks = estimates.resample(partners, rng)
            both = [[x[..., i] for x in picks] for i in (0, 1)]
    unit = abs(shared[0].one - shared[0].zero) if len(shared) == 1 else 1.0
    test = estimates.paired_t if paired else estimates.welch
    return PairResult(
        algo=algo,
        other=other,
        task=shared[0].name if len(shared) == 1 else None,
        num_tasks=len(shared),
        paired=paired,
        runs=(sum(map(len, scores)), sum(map(len, other_scores))),
        probability=estimates.estimate(
            lambda x, y: estimates.probability_of_improvement(x, y, paired=paired), scores, other_scores, samples=both
        ),
        difference=estimates.estimate(
            lambda x, y: unit * (estimates.mean(x) - estimates.mean(y)), scores, other_scores, samples=both
        ),
        p=test(scores[0], other_scores[0]) if len(shared) == 1 else float("nan"),
    )

"""Comparison of pairs of algorithms: probability of improvement, difference of means, and tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coterie.core.errors import UserError
from coterie.reports import aggregates, bootstrap, significance
from coterie.reports.comparison import PairResult, Task
from coterie.reports.options import CompareOptions
from coterie.reports.scores import Groups, Samples


def compare_pairs(
    groups: Groups, samples: Samples, tasks: Mapping[str, Task], options: CompareOptions
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
    algos = _ranked(groups, samples, tasks)
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
    corrected = significance.holm([pair.p for pair in single])
    return (*(replace(pair, p_holm=p) for pair, p in zip(single, corrected, strict=True)), *overall)


def _ranked(groups: Groups, samples: Samples, tasks: Mapping[str, Task]) -> list[str]:
    """Returns the algorithms, those with the highest mean normalized score first."""
    means: dict[str, list[float]] = {}
    for task, algo in groups:
        means.setdefault(algo, []).append(float(tasks[task].normalized(samples.scores[task, algo]).mean()))
    return sorted(means, key=lambda algo: -sum(means[algo]) / len(means[algo]))


def _common_seeds(groups: Groups, task: str, algo: str, other: str) -> list[int]:
    """Returns the seeds that both have, each once. Of runs with equal seeds, only the last one has a partner."""
    seeds = [dict.fromkeys(trial.seed for trial in groups[task, name]) for name in (algo, other)]
    return [seed for seed in seeds[0] if seed is not None and seed in seeds[1]]


def _normalized(algo: str, shared: Sequence[Task], samples: Samples) -> list[np.ndarray]:
    """Returns bootstrap samples of normalized scores by task, [R, n]."""
    drawn = [(task, samples.samples[task.name, algo]) for task in shared]
    return [task.normalized(x) for task, x in drawn if x is not None]


def _pair(
    algo: str, other: str, shared: Sequence[Task], *, groups: Groups, samples: Samples, paired: bool
) -> PairResult:
    """Compares two algorithms on one or several tasks that both have."""
    scores: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for task in shared:
        seeds = _common_seeds(groups, task.name, algo, other)
        for part, name in zip(scores, (algo, other), strict=True):
            x = samples.scores[task.name, name]
            if paired:
                position = {trial.seed: i for i, trial in enumerate(groups[task.name, name])}
                x = x[[position[seed] for seed in seeds]]
            part.append(task.normalized(x))
    drawn: tuple[Sequence[np.ndarray], Sequence[np.ndarray]] | None = None
    if min(len(x) for part in scores for x in part) > 1:
        if paired:
            rng = bootstrap.random_numbers(algo, other, *(task.name for task in shared), "pairs")
            drawn = bootstrap.resample_pairs(*scores, rng)
        else:
            drawn = _normalized(algo, shared, samples), _normalized(other, shared, samples)
    unit = abs(shared[0].one - shared[0].zero) if len(shared) == 1 else 1.0
    test = significance.paired_t if paired else significance.welch
    return PairResult(
        algo=algo,
        other=other,
        task=shared[0].name if len(shared) == 1 else None,
        num_tasks=len(shared),
        paired=paired,
        runs=(sum(map(len, scores[0])), sum(map(len, scores[1]))),
        probability=bootstrap.estimate_of_two(
            lambda x, y: aggregates.probability_of_improvement(x, y, paired=paired), *scores, drawn
        ),
        difference=bootstrap.estimate_of_two(
            lambda x, y: unit * (aggregates.mean(x) - aggregates.mean(y)), *scores, drawn
        ),
        p=test(scores[0][0], scores[1][0]) if len(shared) == 1 else float("nan"),
    )

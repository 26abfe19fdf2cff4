"""The comparison of groups of runs: records that tables, figures and reports are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coterie.reports.options import Score
from coterie.reports.records import Trial

Axis = Literal["steps", "seconds"]


@dataclass(frozen=True)
class Estimate:
    """A statistic with its 95% bootstrap interval.

    Attributes:
        value: Value of the statistic; NaN if it is not defined.
        low, high: Bounds of the interval; NaN without one, such as for a single seed.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        """True if there is an interval. Its upper bound may be infinite."""
        return not math.isnan(self.low)

    def report(self) -> dict[str, float | None]:
        """Returns the numbers; None for those that are not finite."""
        return {key: value if math.isfinite(value) else None for key, value in vars(self).items()}


@dataclass(frozen=True)
class Band:
    """A curve with its pointwise 95% bootstrap band.

    Attributes:
        x: Environment steps, seconds, or thresholds of a performance profile, ascending, [P].
        value: Values of the statistic, [P].
        low, high: Bounds of the band, NaN without one, [P].
    """

    x: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class TimeToThreshold:
    """Time until the evaluations of runs first reach a threshold, linearly interpolated between evaluations.

    Attributes:
        threshold: The threshold, in the unit of the metric.
        reached: Runs that reach it.
        runs: All runs.
        steps: Median of the environment steps over the runs; infinite if less than half of them reach it.
        seconds: The same of the wall time; NaN if unknown.
    """

    threshold: float
    reached: int
    runs: int
    steps: Estimate
    seconds: Estimate


@dataclass(frozen=True)
class Task:
    """A task, and the anchors of its normalized scores.

    Attributes:
        name: Label.
        zero, one: Values of the metric whose normalized scores are 0 and 1.
        random: Return of the random policy, a mean over runs; None if unknown.
        reference: Highest published score of the algorithms compared; None if unknown.
    """

    name: str
    zero: float
    one: float
    random: float | None = None
    reference: float | None = None

    def normalized(self, x: np.ndarray) -> np.ndarray:
        """Returns normalized scores, (x - zero) / (one - zero)."""
        return (x - self.zero) / (self.one - self.zero)


@dataclass(frozen=True)
class Statistics:
    """Statistics of one group of scores. The optimality gap is always of normalized scores."""

    mean: Estimate
    median: Estimate
    iqm: Estimate
    optimality_gap: Estimate


@dataclass(frozen=True)
class TaskResult:
    """Results of one algorithm on one task.

    Attributes:
        task: Label of the task.
        algo: Label of the algorithm.
        trials: Its runs, with ascending seeds.
        scores: Score of each run in the unit of the metric, [n].
        statistics: Statistics of the scores.
        std: Standard deviation of the scores over seeds, with n - 1 in its denominator; NaN for one seed.
        other_scores: Interquartile mean of the other kinds of score that all runs have, such as the peak.
        steps, seconds: Interquartile mean of the evaluations over environment steps and wall time; None if the runs do
            not overlap or times are unknown.
        time: Time to the threshold; None without one.
    """

    task: str
    algo: str
    trials: tuple[Trial, ...]
    scores: np.ndarray
    statistics: Statistics
    std: float
    other_scores: Mapping[Score, Estimate]
    steps: Band | None
    seconds: Band | None
    time: TimeToThreshold | None

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """Seeds of the runs."""
        return tuple(trial.seed for trial in self.trials)


@dataclass(frozen=True)
class OverallResult:
    """Results of one algorithm over all tasks, of normalized scores.

    Attributes:
        algo: Label of the algorithm.
        tasks: Labels of the tasks that it has runs on. Statistics of fewer tasks than others are not comparable.
        runs: Number of runs.
        statistics: Statistics over runs and tasks.
        profile: Performance profile: fraction of runs with a higher score, by normalized score.
        steps: Interquartile mean of normalized evaluations over environment steps; None if tasks do not overlap.
        seconds: The same over wall time.
    """

    algo: str
    tasks: tuple[str, ...]
    runs: int
    statistics: Statistics
    profile: Band
    steps: Band | None = None
    seconds: Band | None = None


@dataclass(frozen=True)
class PairResult:
    """Comparison of two algorithms, on one task or over all tasks that both have.

    Attributes:
        algo: The first algorithm.
        other: The second algorithm.
        task: Label of the task; None over several tasks.
        num_tasks: Number of tasks, those that both have.
        paired: True if runs with equal seeds are compared.
        runs: Number of runs of each; of pairs if paired.
        probability: Probability that a run of the first algorithm is better than one of the second.
        difference: Difference of the means, positive if the first is better: in the unit of the metric on one task, of
            normalized scores over tasks.
        p: Two-sided p-value of equal means on one task: Welch's test, or the paired t-test; NaN for one seed.
        p_holm: The same after Holm's correction for all comparisons on single tasks; NaN over tasks.
    """

    algo: str
    other: str
    task: str | None
    num_tasks: int
    paired: bool
    runs: tuple[int, int]
    probability: Estimate
    difference: Estimate
    p: float = math.nan
    p_holm: float = math.nan

    @property
    def is_significant(self) -> bool:
        """True if the corrected p-value is below 0.05, or over tasks, if the interval of the probability is not on both
        sides of 0.5.
        """
        if self.task is not None:
            return self.p_holm < 0.05
        return self.probability.low > 0.5 or self.probability.high < 0.5


@dataclass(frozen=True)
class Comparison:
    """A comparison of algorithms on tasks.

    Attributes:
        metric: Metric, such as `eval/return_mean`.
        lowest: True if lower values are better. Normalized scores are higher if better in any case.
        score: Score of each run.
        normalization: Definition of the normalized scores 0 and 1, as a phrase.
        resampling: Definition of the bootstrap, as a phrase.
        tasks: Tasks by label.
        algos: Labels of the algorithms.
        results: Results by task and algorithm.
        overall: Results over all tasks by algorithm.
        pairs: Comparisons of pairs of algorithms, on each task and over all tasks.
        notes: Sentences that a reader of the numbers must know.
        sentences: The main results as sentences for a paper.
        settings: Settings in which groups differ, by dotted key and then by `task | algorithm`.
    """

    metric: str
    lowest: bool
    score: Score
    normalization: str
    resampling: str
    tasks: Mapping[str, Task]
    algos: tuple[str, ...]
    results: Mapping[tuple[str, str], TaskResult]
    overall: Mapping[str, OverallResult]
    pairs: tuple[PairResult, ...]
    notes: tuple[str, ...]
    sentences: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def score_name(self) -> str:
        """What a score over several tasks is called."""
        return "score" if self.normalization == "none" else "normalized score"

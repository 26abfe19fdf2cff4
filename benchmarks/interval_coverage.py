"""Measures how often the 95% intervals of `coterie compare` contain the true value.

Scores are normally distributed, so the mean and the interquartile mean of infinitely many runs are 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.reports import estimates
from coterie.reports.estimates import interval, resample

EXPERIMENTS, SAMPLES = 4000, 2000


def coverage(seeds: int, tasks: int, statistic: Callable[[estimates.Scores], np.ndarray]) -> float:
    """Returns the fraction of experiments whose interval contains 0."""
    rng = np.random.default_rng([seeds, tasks])
    inside = 0
    for _ in range(EXPERIMENTS):
        low, high = interval(statistic(resample(list(rng.normal(size=(tasks, seeds))), rng, SAMPLES)))
        inside += bool(low <= 0 <= high)
    return inside / EXPERIMENTS


if __name__ == "__main__":
    print(f"{EXPERIMENTS:,} experiments, {SAMPLES:,} bootstrap samples each")
    print("seeds  tasks  mean    IQM")
    for seeds in (3, 5, 10):
        for tasks in (1, 5):
            values = [coverage(seeds, tasks, statistic) for statistic in (estimates.mean, estimates.interquartile_mean)]
            print(f"{seeds:5}  {tasks:5}  {values[0]:.1%}  {values[1]:.1%}", flush=True)

"""Scores of `defaults.py` in normalized form: the files `defaults.json` and `defaults.md` of the benchmark page.

A score is normalized between the random policy (0) and the best mean of all algorithms on the task (1).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from default_tasks import Task
from reporting import in_words, origin, table, whole_number

from coterie.functional.intervals import mean_interval_95
from coterie.reports import estimates

Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""Returns by task and algorithm, one for each seed."""


def collect(found: Mapping[str, Mapping[str, Any]], tasks: Sequence[Task]) -> dict[str, Any]:
    """Returns the content of `defaults.json`: returns by task and algorithm, and those of the random policy."""
    runs: dict[str, dict[str, Any]] = {}
    for task in tasks:
        mine = {key: run for key, run in found.items() if key.split(" | ")[2] == task.name and "score" in run}
        if mine:
            scores: dict[str, list[float]] = {}
            for key in sorted(mine, key=lambda key: int(key.rsplit(" | ", 1)[1])):
                scores.setdefault(key.split(" | ")[1], []).append(mine[key]["score"])
            random = {key.rsplit(" | ", 1)[1]: run["random"] for key, run in mine.items()}
            runs[task.name] = {"steps": task.steps, "random": list(random.values()), "scores": scores}
    seconds: dict[str, float] = {}
    for key, run in found.items():
        algo = key.split(" | ")[1]
        seconds[algo] = round(seconds.get(algo, 0.0) + run["seconds"], 1)
    revisions = sorted({run["revision"] for run in found.values()})
    commands = {key.split(" | ")[2]: run["command"] for key, run in found.items()}
    return {**origin(), "revisions": revisions, "commands": commands, "seconds": seconds, "tasks": runs}


def write(content: dict[str, Any], results: Path) -> None:
    """Writes both files."""
    (results / "defaults.json").write_text(json.dumps(content, indent=1) + "\n")
    (results / "defaults.md").write_text(page(content))


def page(content: Mapping[str, Any]) -> str:
    """Returns the results as Markdown."""
    tasks = content["tasks"]
    algorithms = sorted({algo for task in tasks.values() for algo in task["scores"]})
    order = sorted(algorithms, key=lambda algo: -_overall(tasks, algo)[0])
    revisions = ", ".join(content["revisions"])
    seeds = [len(scores) for task in tasks.values() for scores in task["scores"].values()]
    per_cell = " to ".join(str(n) for n in dict.fromkeys((min(seeds), max(seeds))))
    return "\n".join(
        [
            "# Defaults",
            "",
            f"{in_words(content['machine'])} ({revisions}), {content['date']}. `{content['command']}`",
            "",
            f"Seeds per cell: {per_cell}.",
            "",
            "## All tasks together",
            "",
            *table(
                ["algorithm", "tasks", "IQM", "95% interval", "mean", "below random", "minutes per run"],
                [_summary(tasks, algo, content["seconds"][algo]) for algo in order],
            ),
            "",
            "## Normalized scores",
            "",
            *table(["task", *order], [[f"`{name}`", *(_cell(task, a) for a in order)] for name, task in tasks.items()]),
            "",
            "## Returns",
            "",
            *table(
                ["task", "steps", "random", *order],
                [
                    [
                        f"`{name}`",
                        whole_number(task["steps"]),
                        f"{statistics.fmean(task['random']):.3g}",
                        *(_mean_and_half_width(task["scores"].get(a, ())) for a in order),
                    ]
                    for name, task in tasks.items()
                ],
            ),
            "",
        ]
    )


def normalized(task: Mapping[str, Any], algo: str) -> np.ndarray:
    """Returns the normalized scores of an algorithm on a task, [n]; all are 0 where no algorithm is above random."""
    random = statistics.fmean(task["random"])
    best = max(statistics.fmean(scores) for scores in task["scores"].values())
    scores = np.asarray(task["scores"][algo], dtype=float)
    return (scores - random) / (best - random) if is_learned(task) else np.zeros_like(scores)


def is_learned(task: Mapping[str, Any]) -> bool:
    """True if the interval of some algorithm lies above the random policy."""
    random = statistics.fmean(task["random"])
    return any(mean - width > random for mean, width in map(_interval, task["scores"].values()))


def is_below_random(task: Mapping[str, Any], algo: str) -> bool:
    """True if the algorithm's interval lies below the random policy, on a task that some algorithm learns."""
    mean, width = _interval(task["scores"][algo])
    return is_learned(task) and mean + width < statistics.fmean(task["random"])


def _interval(scores: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the half-width of its interval, 0 for a single seed."""
    mean, width = mean_interval_95(scores)
    return mean, 0.0 if math.isnan(width) else width


def _of(tasks: Mapping[str, Any], algo: str) -> list[np.ndarray]:
    return [normalized(task, algo) for task in tasks.values() if algo in task["scores"] and is_learned(task)]


def _overall(tasks: Mapping[str, Any], algo: str) -> tuple[float, float, float]:
    """Returns the interquartile mean with its interval."""
    scores = _of(tasks, algo)
    samples = estimates.resample(scores, estimates.random_numbers("defaults", algo))
    found = estimates.estimate(estimates.interquartile_mean, scores, samples=[samples])
    return found.value, found.low, found.high


def _summary(tasks: Mapping[str, Any], algo: str, seconds: float) -> list[str]:
    value, low, high = _overall(tasks, algo)
    mine = [task for task in tasks.values() if algo in task["scores"]]
    below = sum(is_below_random(task, algo) for task in mine)
    runs = sum(len(task["scores"][algo]) for task in mine)
    mean = float(estimates.mean(_of(tasks, algo)))
    return [
        algo,
        str(len(mine)),
        f"**{value:.2f}**",
        f"{low:.2f} to {high:.2f}",
        f"{mean:.2f}",
        str(below or ""),
        f"{seconds / runs / 60:.1f}",
    ]


def _cell(task: Mapping[str, Any], algo: str) -> str:
    """Normalized score with the half-width of its interval, red where it lies below random."""
    if algo not in task["scores"]:
        return ""
    if not is_learned(task):
        return "–"
    text = _mean_and_half_width(normalized(task, algo), digits=".2f")
    return f'<span class="below-random">{text} ▼</span>' if is_below_random(task, algo) else text


def _mean_and_half_width(values: Sequence[float] | np.ndarray, digits: str = ".3g") -> str:
    if not len(values):
        return ""
    mean, width = _interval([float(x) for x in values])
    return f"{mean:{digits}} ± {width:{digits}}" if len(values) > 1 else f"{mean:{digits}}"

"""The pages on the runs of `defaults.py`.

A normalized score lies between the random policy (0) and the best mean on the task (1) of all algorithms that ran with
several seeds. Those of a single run may be above 1.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from default_tasks import Task
from reporting import table, whole_number

from coterie.config import sources
from coterie.functional.intervals import mean_interval_95
from coterie.reports import estimates, published

Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""Returns by task and algorithm, one for each seed."""
SEVERAL = 3
"""Least number of seeds with which an algorithm's mean can be the best on a task, and its interval below random."""


def collect(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of a file of results: what its page and a command that goes on need of each run."""
    kept = ("score", "random", "seconds", "revision", "machine")
    runs = {key: {name: run[name] for name in kept} for key, run in sorted(found.items()) if "score" in run}
    commands = {key.split(" | ")[2]: shlex.join(found[key]["command"]) for key in runs if "command" in found[key]}
    return {"commands": commands, "runs": runs}


def by_task(content: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
    """Returns the returns on each task by algorithm, in the order of the seeds, and those of the random policy."""
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        mine = [(key.split(" | "), run) for key, run in content["runs"].items() if key.split(" | ")[2] == task.name]
        if mine:
            scores: dict[str, list[float]] = {}
            for (_, algo, _, _), run in sorted(mine, key=lambda item: int(item[0][3])):
                scores.setdefault(algo, []).append(run["score"])
            random = {seed: run["random"] for (_, _, _, seed), run in mine}
            level, played = task.threshold, list(random.values())
            found[task.name] = {"steps": task.steps, "threshold": level, "random": played, "scores": scores}
    return found


def seconds_per_run(content: Mapping[str, Any]) -> dict[str, float]:
    """Returns the mean seconds of a run by algorithm."""
    found: dict[str, list[float]] = {}
    for key, run in content["runs"].items():
        found.setdefault(key.split(" | ")[1], []).append(run["seconds"])
    return {algo: statistics.fmean(values) for algo, values in found.items()}


def origin_line(content: Mapping[str, Any], command: str) -> str:
    """Returns the line that names machines, revisions and the command."""
    machines, revisions = ({run[name] for run in content["runs"].values()} for name in ("machine", "revision"))
    return f"{'; '.join(sorted(machines))}. Revisions: {', '.join(sorted(revisions))}. `{command}`"


def page(content: Mapping[str, Any], reported: Sequence[Task]) -> str:
    """Returns the scores of all algorithms on the reported tasks as Markdown."""
    tasks, seconds = by_task(content, reported), seconds_per_run(content)
    algorithms = sorted({algo for task in tasks.values() for algo in task["scores"]})
    order = sorted(algorithms, key=lambda algo: -_overall(tasks, algo)[0])
    heads = [f"`{name}`" for name in tasks]
    return "\n".join(
        [
            "# Defaults",
            "",
            origin_line(content, "python benchmarks/defaults.py --report"),
            "",
            "## All tasks together",
            "",
            *table(
                [
                    *(
                        "algorithm",
                        "seeds",
                        "tasks",
                        "IQM",
                        "95% interval",
                        "IQM of solved tasks",
                        "mean",
                        "below random",
                    ),
                    "minutes per run",
                ],
                [_summary(tasks, algo, seconds[algo]) for algo in order],
            ),
            "",
            "## Normalized scores",
            "",
            *table(["algorithm", *heads], [[algo, *(_cell(task, algo) for task in tasks.values())] for algo in order]),
            "",
            "## Returns",
            "",
            *_returns(tasks, order),
            "",
        ]
    )


def _returns(tasks: Mapping[str, Any], algorithms: Sequence[str]) -> list[str]:
    """Lines of a table of returns: a row for each algorithm after the random policy, a column for each task."""
    rows = [["steps", *(whole_number(task["steps"]) for task in tasks.values())]]
    rows += [["random", *(f"{statistics.fmean(task['random']):.3g}" for task in tasks.values())]]
    rows += [[a, *(_mean_and_half_width(t["scores"].get(a, ())) for t in tasks.values())] for a in algorithms]
    return table(["algorithm", *(f"`{name}`" for name in tasks)], rows)


def normalized(task: Mapping[str, Any], algo: str) -> np.ndarray:
    """Returns the normalized scores of an algorithm on a task, [n]; all are 0 where no algorithm is above random."""
    random = statistics.fmean(task["random"])
    best = max(statistics.fmean(scores) for scores in _of_several_seeds(task))
    scores = np.asarray(task["scores"][algo], dtype=float)
    return (scores - random) / (best - random) if is_learned(task) else np.zeros_like(scores)


def is_learned(task: Mapping[str, Any]) -> bool:
    """True if the interval of some algorithm lies above the random policy."""
    random = statistics.fmean(task["random"])
    return any(mean - width > random for mean, width in map(_interval, _of_several_seeds(task)))


def is_solved(task: Mapping[str, Any]) -> bool:
    """True if an algorithm's mean reaches the published threshold of the task, or if there is none."""
    level = task["threshold"]
    return level is None or any(statistics.fmean(scores) >= level for scores in _of_several_seeds(task))


def is_below_random(task: Mapping[str, Any], algo: str) -> bool:
    """True if the algorithm's interval lies below the random policy's, on a task that some algorithm learns."""
    mean, width = _interval(task["scores"][algo])
    random, random_width = _interval(task["random"])
    several = len(task["scores"][algo]) >= SEVERAL
    return several and is_learned(task) and mean + width < random - random_width


def _of_several_seeds(task: Mapping[str, Any]) -> list[Sequence[float]]:
    """Returns the returns of each algorithm that ran with several seeds, or of all if none did."""
    scores = list(task["scores"].values())
    return [mine for mine in scores if len(mine) >= SEVERAL] or scores


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
    mine = [task for task in tasks.values() if algo in task["scores"] and is_learned(task)]
    below = sum(is_below_random(task, algo) for task in mine)
    mean = float(estimates.mean(_of(tasks, algo)))
    solved = _of({name: task for name, task in tasks.items() if is_solved(task)}, algo)
    seeds = {len(task["scores"][algo]) for task in tasks.values() if algo in task["scores"]}
    return [
        algo,
        " to ".join(str(n) for n in dict.fromkeys((min(seeds), max(seeds)))),
        str(len(mine)),
        f"**{value:.2f}**",
        f"{low:.2f} to {high:.2f}" if min(seeds) >= SEVERAL else "",
        f"{estimates.interquartile_mean(solved):.2f}" if solved else "",
        f"{mean:.2f}",
        str(below or ""),
        f"{seconds / 60:.1f}",
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


def spread_page(content: Mapping[str, Any], reported: Sequence[Task]) -> str:
    """Returns the results of README.md: the return of one agent on `simple_spread`, beside published ones."""
    (task,) = reported
    (found,) = by_task(content, reported).values()
    scores = {algo: np.asarray(values) / task.agents for algo, values in found["scores"].items()}
    order, seconds = sorted(scores, key=lambda algo: -scores[algo].mean()), seconds_per_run(content)
    return "\n".join(
        [
            "# simple_spread with defaults",
            "",
            origin_line(content, "python benchmarks/defaults.py --spread"),
            "",
            f"The random policy earns {statistics.fmean(found['random']) / task.agents:.1f}.",
            "",
            *table(
                ["algorithm", "Coterie", "seeds", "steps", "minutes, one core", "published", "steps there"],
                [
                    [
                        in_capitals(algo),
                        f"**{_mean_and_half_width(scores[algo], digits='.1f')}**",
                        str(len(scores[algo])),
                        whole_number(found["steps"]),
                        f"{seconds[algo] / 60:.1f}",
                        *_published_cells(algo, scores[algo]),
                    ]
                    for algo in order
                ],
            ),
            "",
        ]
    )


def sizes_page(content: Mapping[str, Any], reported: Sequence[Task]) -> str:
    """Returns the return of one agent in teams of several sizes, and the minutes of a run."""
    columns = ["agents", "algorithm", "return of one agent", "random", "seeds", "minutes, one core"]
    rows = []
    found = by_task(content, reported)
    for task in (task for task in reported if task.name in found):
        scores = {algo: np.asarray(values) / task.agents for algo, values in found[task.name]["scores"].items()}
        seconds = seconds_per_run(
            {"runs": {key: run for key, run in content["runs"].items() if task.name == key.split(" | ")[2]}}
        )
        random = statistics.fmean(found[task.name]["random"]) / task.agents
        for algo in sorted(scores, key=lambda algo: -scores[algo].mean()):
            values = f"**{_mean_and_half_width(scores[algo], digits='.1f')}**", f"{random:.1f}", str(len(scores[algo]))
            rows.append([str(task.agents), in_capitals(algo), *values, f"{seconds[algo] / 60:.1f}"])
    command = "python benchmarks/defaults.py --sizes"
    lines = ["# Teams of several sizes with defaults", "", origin_line(content, command), ""]
    return "\n".join([*lines, *table(columns, rows), ""])


def time_page(content: Mapping[str, Any], reported: Sequence[Task]) -> str:
    """Returns the returns of algorithms in about the same time, and the minutes of their runs."""
    algorithms = list(dict.fromkeys(algo for task in reported for algo in task.algos))
    steps = {(task.name, algo): task.steps for task in reported for algo in task.algos}
    seconds = seconds_per_run(content)
    rows = []
    for name, task in by_task(content, reported).items():
        cells = (_mean_and_half_width(task["scores"].get(algo, ())) for algo in algorithms)
        counts = dict.fromkeys(whole_number(steps[name, algo]) for algo in algorithms)
        rows.append([f"`{name}`", " or ".join(counts), f"{statistics.fmean(task['random']):.3g}", *cells])
    rows.append(["minutes per run", "", "", *(f"{seconds[algo] / 60:.2f}" for algo in algorithms if algo in seconds)])
    command = "python benchmarks/defaults.py --time"
    lines = ["# With and without replay in the same time", "", origin_line(content, command), ""]
    return "\n".join([*lines, *table(["task", "steps", "random", *map(in_capitals, algorithms)], rows), ""])


def _published_cells(algo: str, scores: np.ndarray) -> list[str]:
    """Returns the published return and its steps, empty without one."""
    papers = published.load("papoudakis2021")
    row = papers.row("spread")
    if algo not in row.published:
        return ["", ""]
    level, (mean, width) = row.published[algo].mean, _interval([float(x) for x in scores])
    better = " (better)" if level > mean + width else ""
    return [f"{level:.1f}{better}", whole_number(papers.steps(row, algo))]


def in_capitals(algo: str) -> str:
    """Returns an algorithm's name as publications write it."""
    return {"poca": "MA-POCA", "sable": "Sable"}.get(algo, algo.upper().replace("_", "-"))


def gymnasium_page(content: Mapping[str, Any], reported: Sequence[Task]) -> str:
    """Returns whether tasks of Gymnasium are solved with defaults; tasks without a run are not shown to be."""
    found = by_task(content, reported)
    rows = []
    for task in reported:
        name = f"`{task.env.removeprefix('gym/')}`"
        if task.name not in found:
            rows.append([name, *[""] * 4, f"{task.threshold:g}", "runs, not shown"])
            continue
        for algo, values in found[task.name]["scores"].items():
            assert task.threshold is not None
            solved = sum(value >= task.threshold for value in values)
            rows.append(
                [
                    name,
                    in_capitals(algo),
                    whole_number(task.steps),
                    f"{statistics.fmean(found[task.name]['random']):.4g}",
                    _mean_and_half_width(values, digits=".4g"),
                    f"{task.threshold:g}",
                    f"{solved} of {len(values)}",
                ]
            )
    columns = ["task", "algorithm", "steps", "random", "return", "threshold", "seeds that reach it"]
    command = "python benchmarks/defaults.py --gymnasium"
    return "\n".join(["# Gymnasium with defaults", "", origin_line(content, command), "", *table(columns, rows), ""])


def presets_page(content: Mapping[str, Any]) -> str:
    """Returns what presets of an algorithm for a task gain over its defaults."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    random: dict[str, list[float]] = {}
    for key, run in content["runs"].items():
        variant, algo, task, _ = key.split(" | ")
        found.setdefault((task, algo), {}).setdefault(variant, []).append(run["score"])
        random.setdefault(task, []).append(run["random"])
    rows = [
        [
            f"`{task}`",
            algo,
            f"{statistics.fmean(random[task]):.3g}",
            *(_mean_and_half_width(both.get(variant, ())) for variant in ("default", "preset")),
            "yes" if sources.preset("algo_env", f"{algo}/{task.split()[0]}") else "no",
        ]
        for (task, algo), both in sorted(found.items())
    ]
    columns = ["task", "algorithm", "random", "default", "preset", "kept"]
    command = "python benchmarks/defaults.py --presets"
    return "\n".join(["# Presets and defaults", "", origin_line(content, command), "", *table(columns, rows), ""])

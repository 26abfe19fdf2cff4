"""Trains algorithms with their defaults, or with other settings, on tasks without presets for the task.

    python benchmarks/defaults.py --list                                   # tasks of both kinds
    python benchmarks/defaults.py --choice --algos mappo,ippo --jobs 2     # the defaults on the tasks for choices
    python benchmarks/defaults.py --choice --algos mappo --variant gamma-95 algo.gamma=0.95
    python benchmarks/defaults.py --choice --table                         # scores of all variants
    python benchmarks/defaults.py --report --jobs 2                        # the tasks that are reported

A run is one process with one thread. Its score is the mean return of the task's team over the episodes of the last
evaluation. Scores are kept in a file, so that the command can be repeated and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from default_tasks import CHOICE, REPORT, Task
from reporting import machine, table

from coterie.core.errors import UserError

HERE = Path(__file__).resolve().parent
RUNS = HERE / "runs" / "defaults"
DISCRETE = ("mappo", "ippo", "maa2c", "ia2c", "poca", "coma", "qmix", "vdn", "iql", "qplex", "maddpg", "masac")
CONTINUOUS = ("mappo", "ippo", "maa2c", "ia2c", "poca", "maddpg", "matd3", "masac")
EPISODES = 200
COMMON = ("device=cpu", "threads=1", "progress=off", f"eval.episodes={EPISODES}", "log.tensorboard=false")
CHOICE_SEEDS, REPORT_SEEDS = (1000, 1001), (0, 1, 2, 3, 4)
DEFAULT = "default"
"""Variant without settings."""


@dataclass(frozen=True)
class Job:
    """One run: an algorithm with the settings of a variant on a task."""

    algo: str
    task: Task
    variant: str
    settings: tuple[str, ...]
    seed: int

    @property
    def key(self) -> str:
        return f"{self.variant} | {self.algo} | {self.task.name} | {self.seed}"

    @property
    def words(self) -> list[str]:
        """Arguments of `coterie train`."""
        task = self.task
        others = [f"teams.{team}.algo=random" for team in task.others]
        steps = [f"steps={task.steps}", f"eval.every={task.steps // 10}", f"seed={self.seed}"]
        return [f"algo={self.algo}", f"env={task.env}", *task.settings, *others, *COMMON, *steps, *self.settings]


def main(argv: list[str]) -> int:
    if argv[:1] == ["--run"]:  # used when this script starts itself
        return run(argv[1:])
    given = _parser().parse_args(argv)
    tasks = REPORT if given.report else CHOICE
    if given.only:
        tasks = tuple(task for task in tasks if any(word in task.name for word in given.only))
    if given.list:
        for task in tasks:
            print(f"{task.name:<50} {task.team:<10} {task.actions:<10} {task.steps:,} steps")
        return 0
    path = given.runs / ("report.json" if given.report else "choice.json")
    if given.table:
        print("\n".join(scores_table(_read(path), tasks)))
        return 0
    seeds = given.seeds or (REPORT_SEEDS if given.report else CHOICE_SEEDS)
    execute([job for job in jobs(given, tasks, seeds) if job.key not in _read(path)], path, given.jobs)
    return 0


def _parser() -> argparse.ArgumentParser:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(word) for word in text.split(","))

    def words(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--choice", action="store_true", help="tasks that settings are chosen on")
    kind.add_argument("--report", action="store_true", help="tasks that are reported")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the variant")
    parser.add_argument("--variant", default=DEFAULT, help="name of the settings")
    parser.add_argument("--algos", type=words, default=(), help="algorithms, separated by commas")
    parser.add_argument("--seeds", type=numbers, default=(), help="seeds, separated by commas")
    parser.add_argument("--only", type=words, default=(), help="parts of the names of tasks, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="number of runs at the same time")
    parser.add_argument("--list", action="store_true", help="print the tasks and stop")
    parser.add_argument("--table", action="store_true", help="print the scores and stop")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the scores")
    return parser


def jobs(given: argparse.Namespace, tasks: tuple[Task, ...], seeds: tuple[int, ...]) -> Iterator[Job]:
    """All runs, seed by seed, so that a stopped command has some of everything."""
    if (given.variant == DEFAULT) == bool(given.settings):
        raise UserError("--variant: name the settings, and only if there are some")
    for seed in seeds:
        for task in tasks:
            for algo in given.algos or (DISCRETE if task.actions == "discrete" else CONTINUOUS):
                yield Job(algo, task, given.variant, tuple(given.settings), seed)


def execute(waiting: list[Job], path: Path, parallel: int) -> None:
    """Executes the jobs and adds their scores to the file."""
    running: dict[subprocess.Popen[str], tuple[Job, float]] = {}
    facts, total = machine(), len(waiting)
    path.parent.mkdir(parents=True, exist_ok=True)
    while running or waiting:
        while waiting and len(running) < parallel:
            job = waiting.pop(0)
            words = [sys.executable, __file__, "--run", job.task.team, *job.words]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            running[process] = (job, time.perf_counter())
        time.sleep(0.1)
        for process in [process for process in running if process.poll() is not None]:
            job, began = running.pop(process)
            out, err = process.communicate()
            found = json.loads(out.splitlines()[-1]) if process.returncode == 0 else {"error": err.splitlines()[-1:]}
            found |= {"seconds": round(time.perf_counter() - began, 1), "revision": facts["revision"]}
            found |= {"command": ["coterie", "train", *job.words]}
            path.write_text(json.dumps(_read(path) | {job.key: found}, indent=1) + "\n")
            left = len(waiting) + len(running)
            print(f"{total - left}/{total} {job.key}: {found.get('score', found.get('error'))}", flush=True)


def run(words: list[str]) -> int:
    """Trains in this process without presets for the task, and prints its score and evaluations as JSON."""
    from coterie.commands import train as training
    from coterie.config import sources
    from coterie.config.resolve import resolve
    from coterie.runs.curves import Run

    presets = sources.preset
    sources.preset = lambda kind, name: [] if kind == "algo_env" else presets(kind, name)
    team, *settings = words
    with tempfile.TemporaryDirectory() as folder:
        training.train(resolve([*settings, f"out={folder}/run"]))
        read = Run.load(Path(folder) / "run")
        curve = read.curve(team, "eval/return_mean") or read.curve("", "eval/return_mean")
    assert curve is not None
    values = [round(float(x), 4) for x in curve.value]
    last = {key: round(float(x), 4) for key, x in read.rows[-1].items() if isinstance(x, float)}
    print(json.dumps({"score": values[-1], "evaluations": values, "last": last}))
    return 0


def scores_table(found: dict[str, Any], tasks: tuple[Task, ...]) -> list[str]:
    """Mean score over seeds: a line for each algorithm and variant, a column for each task."""
    rows: dict[tuple[str, str], dict[str, list[float]]] = {}
    for key, value in found.items():
        variant, algo, task, _ = key.split(" | ")
        if "score" in value:
            rows.setdefault((algo, variant), {}).setdefault(task, []).append(value["score"])
    names = [task.name for task in tasks if any(task.name in row for row in rows.values())]
    shown = [
        [algo, variant, *(f"{sum(row[n]) / len(row[n]):.4g} ({len(row[n])})" if n in row else "" for n in names)]
        for (algo, variant), row in sorted(rows.items())
    ]
    return table(["algorithm", "variant", *names], shown)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)

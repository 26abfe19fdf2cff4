"""Trains algorithms with their defaults, or with other settings, on tasks without presets for the task.

    python benchmarks/defaults.py --list                                   # tasks of both kinds
    python benchmarks/defaults.py --choice --algos mappo,ippo --jobs 2     # the defaults on the tasks for choices
    python benchmarks/defaults.py --choice --algos mappo --variant gamma-95 algo.gamma=0.95
    python benchmarks/defaults.py --choice --table                         # scores of all variants
    python benchmarks/defaults.py --report --jobs 2                        # the tasks that are reported
    python benchmarks/defaults.py --report --page                          # writes the results, also with the others
    python benchmarks/defaults.py --spread --jobs 2                        # the results in README.md
    python benchmarks/defaults.py --sizes --jobs 2                         # teams of 3, 5 and 10 agents
    python benchmarks/defaults.py --time --jobs 2                          # with and without replay in the same time
    python benchmarks/defaults.py --gymnasium --jobs 2                     # whether tasks of Gymnasium are solved
    python benchmarks/defaults.py --presets --jobs 2                       # presets for tasks beside the defaults

A run has one thread. Its score is the mean return of the task's team over the episodes of the last
evaluation. Scores are kept in a file, so that the command can be repeated and goes on where it stopped; runs whose
results were written with `--page` are not repeated either.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import default_page
from default_tasks import CHOICE, GYMNASIUM, REPORT, SIZES, SPREAD, TIME, Task
from reporting import in_words, machine, origin, table

from coterie.core.errors import UserError

HERE = Path(__file__).resolve().parent
RUNS = HERE / "runs" / "defaults"
OF_ONE_AGENT = ("ppo", "ddqn", "ddpg", "td3", "sac")
"""Algorithms of single agents, which tables of teams leave out; PPO and DDQN are IPPO and IQL there."""
EVALUATIONS = 4
COMMON = ("device=cpu", "threads=1", "progress=off", "log.tensorboard=false")
STUDIES: dict[str, tuple[tuple[Task, ...], tuple[int, ...]]] = {
    "choice": (CHOICE, (1000, 1001)),
    "report": (REPORT, (0, 1, 2, 3, 4)),
    "spread": (SPREAD, tuple(range(100, 110))),
    "sizes": (SIZES, (100, 101, 102)),
    "time": (TIME, (0, 1, 2)),
    "gymnasium": (GYMNASIUM, tuple(range(100, 105))),
}
"""Tasks and seeds by option."""
RESULTS = {
    "report": "defaults",
    "spread": "defaults_spread",
    "sizes": "defaults_sizes",
    "time": "defaults_time",
    "gymnasium": "defaults_gymnasium",
    "presets": "defaults_presets",
}
"""Files of results by option."""
DEFAULT = "default"
"""Variant without settings."""
PRESET = "preset"
"""Variant with the preset of the algorithm for the task."""
BUILT_IN = (
    "board/",
    "coop/",
    "foraging/",
    "gym/",
    "matrix/",
    "overcooked/",
    "particle/",
    "skirmish/",
    "sparse/",
    "warehouse/",
)
MOST_STEPS = 500_000
"""Steps of a comparison with a preset at most."""


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
        evaluation = [f"eval.episodes={task.episodes}", f"eval.every={task.steps // EVALUATIONS}"]
        run = [f"steps={task.steps}", *evaluation, f"seed={self.seed}"]
        return [f"algo={self.algo}", f"env={task.env}", *task.settings, *others, *COMMON, *run, *self.settings]


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    tasks, seeds = STUDIES.get(given.study, ((), (1000, 1001)))
    if given.only:
        tasks = tuple(task for task in tasks if any(word in task.name for word in given.only))
    if given.list:
        for task in tasks:
            print(f"{task.name:<50} {task.team:<10} {task.actions:<10} {task.steps:,} steps")
        return 0
    path = given.runs / f"{given.study}.json"
    results = given.results / f"{RESULTS.get(given.study, given.study)}.json"
    written = _read(results)
    if given.table:
        print("\n".join(scores_table(_read(path), tasks)))
        return 0
    if given.page:
        new = default_page.collect(_read(path))
        content = origin() | {part: dict(sorted({**written.get(part, {}), **new[part]}.items())) for part in new}
        results.write_text(json.dumps(content, indent=1) + "\n")
        results.with_suffix(".md").write_text(_page(given.study, content, tasks))
        return 0
    chosen = given.seeds or seeds
    plan = preset_jobs(given, chosen) if given.study == "presets" else jobs(given, tasks, chosen)
    done = {*written.get("runs", {}), *_read(path)}
    execute([job for job in plan if job.key not in done], path, given.jobs)
    return 0


def _page(study: str, content: dict[str, Any], tasks: tuple[Task, ...]) -> str:
    if study == "presets":
        return default_page.presets_page(content)
    pages = {
        "spread": default_page.spread_page,
        "sizes": default_page.sizes_page,
        "time": default_page.time_page,
        "gymnasium": default_page.gymnasium_page,
    }
    return pages.get(study, default_page.page)(content, tasks)


def _parser() -> argparse.ArgumentParser:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(word) for word in text.split(","))

    def words(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group(required=True)
    helps = (
        "tasks that settings are chosen on",
        "tasks that are reported",
        "simple_spread",
        "simple_spread with teams of several sizes",
        "value decomposition with and without replay in the same time",
        "tasks of Gymnasium",
    )
    for name, text in zip((*STUDIES, "presets"), (*helps, "presets for tasks beside the defaults"), strict=True):
        kind.add_argument(f"--{name}", action="store_const", const=name, dest="study", help=text)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the variant")
    parser.add_argument("--variant", default=DEFAULT, help="name of the settings")
    parser.add_argument("--algos", type=words, default=(), help="algorithms, separated by commas")
    parser.add_argument("--seeds", type=numbers, default=(), help="seeds, separated by commas")
    parser.add_argument("--only", type=words, default=(), help="parts of the names of tasks, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="number of runs at the same time")
    parser.add_argument("--list", action="store_true", help="print the tasks and stop")
    parser.add_argument("--table", action="store_true", help="print the scores and stop")
    parser.add_argument("--page", action="store_true", help="write the files of the benchmark page and stop")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the scores")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="with --page: output folder")
    return parser


def jobs(given: argparse.Namespace, tasks: tuple[Task, ...], seeds: tuple[int, ...]) -> Iterator[Job]:
    """All runs, seed by seed, so that a stopped command has some of everything."""
    if (given.variant == DEFAULT) == bool(given.settings):
        raise UserError("--variant: name the settings, and only if there are some")
    for seed in seeds:
        for task in tasks:
            for algo in task.algos or algorithms(task.actions):
                if not given.algos or algo in given.algos:
                    yield Job(algo, task, given.variant, tuple(given.settings), seed)


def algorithms(actions: str) -> list[str]:
    """Returns the algorithms that train on tasks with such actions: all that can, but those of single agents."""
    from coterie.algos import registry

    capabilities = {name: registry.algorithm(name).capabilities for name in registry.ALGOS if name not in OF_ONE_AGENT}
    return [name for name, of in capabilities.items() if of.learns and actions in of.actions]


def preset_jobs(given: argparse.Namespace, seeds: tuple[int, ...]) -> Iterator[Job]:
    """All presets of an algorithm for a task of the built-in worlds and of Gymnasium, and the defaults beside them."""
    from coterie.config import sources
    from coterie.envs.make import make

    tasks: dict[str, Task] = {}
    for seed in seeds:
        for name in sources.presets("algo_env"):
            algo, _, env = name.partition("/")
            if not env.startswith(BUILT_IN) or "original" in env:
                continue
            if given.algos and algo not in given.algos:
                continue
            if given.only and not any(word in env for word in given.only):
                continue
            if env not in tasks:
                roles = make(env).spec.roles
                sizes = {role.group: sum(other.n for other in roles if other.group == role.group) for role in roles}
                team = max(sizes, key=lambda group: sizes[group])
                tasks[env] = Task(env, team, others=tuple(group for group in sizes if group != team))
            steps = [int(setting.value) for setting in sources.preset("algo_env", name) if setting.key == "steps"]
            task = replace(tasks[env], steps=min([*steps, MOST_STEPS]))
            for variant in (PRESET, DEFAULT):
                yield Job(algo, task, variant, (), seed)


def execute(waiting: list[Job], path: Path, parallel: int) -> None:
    """Executes the jobs and adds their scores to the file."""
    facts, total = machine(), len(waiting)
    path.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(parallel, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(score, job): job for job in waiting}
        for number, future in enumerate(as_completed(futures), 1):
            job, measured = futures[future], {"revision": facts["revision"], "machine": in_words(facts)}
            found = future.result() | measured
            path.write_text(json.dumps(_read(path) | {job.key: found}, indent=1) + "\n")
            print(f"{number}/{total} {job.key}: {found.get('score', found.get('error'))}", flush=True)


def score(job: Job) -> dict[str, Any]:
    """Returns the results of a job, or its error, and the seconds that it took."""
    began = time.perf_counter()
    try:
        found = train(job.task.team, job.words, with_presets=job.variant == PRESET)
    except UserError as error:
        found = {"error": str(error)}
    return found | {"seconds": round(time.perf_counter() - began, 1), "command": ["coterie", "train", *job.words]}


def train(team: str, settings: list[str], *, with_presets: bool = False) -> dict[str, Any]:
    """Trains without presets for the task. Returns the team's score, that of the random policy, and evaluations."""
    from coterie.assembly.resolve import resolve
    from coterie.commands import train as training
    from coterie.config import sources
    from coterie.runs.curves import Run

    presets = sources.preset
    if not with_presets:
        sources.preset = lambda kind, name: [] if kind == "algo_env" else presets(kind, name)
    try:
        with tempfile.TemporaryDirectory() as folder:
            training.train(resolve([*settings, f"out={folder}/run"]))
            read = Run.load(Path(folder) / "run")
            curve = read.curve(team, "eval/return_mean") or read.curve("", "eval/return_mean")
            random = json.loads((Path(folder) / "run" / "manifest.json").read_text())["random"]
    finally:
        sources.preset = presets
    assert curve is not None
    values = [round(float(x), 4) for x in curve.value]
    last = {key: round(float(x), 4) for key, x in read.rows[-1].items() if isinstance(x, float)}
    return {"score": values[-1], "random": random.get(team, random.get("")), "evaluations": values, "last": last}


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

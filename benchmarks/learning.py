"""Trains the jobs of `jobs.py` and collects their results in `benchmarks/results`.

    python benchmarks/learning.py --list                     # the jobs
    python benchmarks/learning.py                            # all jobs, sequentially
    python benchmarks/learning.py --only spread-openai-mappo --seeds 0,1 --jobs 2
    python benchmarks/learning.py --only simple-ppo algo.lr=1e-3 --again
    python benchmarks/learning.py --collect                  # writes learning.json, learning.md and the curves

Every run is a separate process with one thread in benchmarks/runs/<job>/seed<k>. Completed runs are skipped and
interrupted ones are resumed, so the command can be repeated. Trailing settings override those of the jobs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from jobs import JOBS, SEEDS, Job, command

from coterie.assembly.resolve import Resolved, load_resolved, resolve
from coterie.core.errors import UserError, nearest
from coterie.runs.checkpoints import Checkpoints

HERE = Path(__file__).resolve().parent
RUNS, RESULTS = HERE / "runs", HERE / "results"

MAY_DIFFER = ("out", "steps", "threads", "device", "progress", "eval", "checkpoint", "log")
"""Settings that may differ between a run and its job without making it a different experiment."""


@dataclass(frozen=True)
class Task:
    """One run to start or resume; `words` are the arguments of `python -m coterie`."""

    job: Job
    seed: int
    folder: Path
    words: list[str]


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    chosen = [_job(name) for name in given.only] or list(JOBS)
    seeds = tuple(int(seed) for seed in given.seeds.split(","))
    if given.list:
        for job in chosen:
            print(f"{job.name:<24} coterie train {shlex.join(job.overrides)}")
        return 0
    if given.collect:
        from gathering import gather

        gather(chosen, given.runs, given.results, given.episodes)
        return 0
    tasks = [task for job in chosen for seed in seeds if (task := plan(job, seed, given))]
    return run_all(tasks, given.jobs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that override those of the jobs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a job; may be given several times")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="number of parallel runs, one thread each")
    parser.add_argument("--again", action="store_true", help="remove the chosen runs first")
    parser.add_argument("--list", action="store_true", help="print the jobs and stop")
    parser.add_argument("--collect", action="store_true", help="collect results instead of training")
    parser.add_argument("--episodes", type=int, default=1000, help="with --collect: episodes of the final evaluation")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="with --collect: output folder")
    return parser


def _job(name: str) -> Job:
    found = {job.name: job for job in JOBS}
    if name not in found:
        raise UserError(f"--only {name}: no such job. {nearest(name, found).capitalize()}")
    return found[name]


# ------------------------------------------------------------------------------------------------------------- planning


def plan(job: Job, seed: int, given: argparse.Namespace) -> Task | None:
    """Remaining work of one run, None if it is complete."""
    folder = given.runs / job.name / f"seed{seed}"
    if given.again and folder.exists():
        shutil.rmtree(folder)
    words = command(job, seed, str(folder), tuple(given.overrides))
    expected = resolve(words)
    if not (folder / "config.yaml").exists():
        return Task(job, seed, folder, ["train", *words])
    saved = load_resolved(folder / "config.yaml")
    if other := differences(saved, expected):
        raise UserError(
            f"{folder}: trained with other settings ({', '.join(other[:4])}). Add --again to train it again."
        )
    done = steps_done(folder)
    if done is not None and done >= expected.config.steps:
        print(f"{job.name} seed {seed}: complete, {done:,} steps")
        return None
    more = [f"steps={expected.config.steps}"] if expected.config.steps > saved.config.steps else []
    return Task(job, seed, folder, ["resume", str(folder), *more])


def differences(one: Resolved, other: Resolved) -> list[str]:
    """Differences that make two configurations different experiments, each as `key=actual, not expected`."""
    mine, yours = (
        {k: v for k, v in r.requested.items() if k.partition(".")[0] not in MAY_DIFFER} for r in (one, other)
    )
    keys = [key for key in {**mine, **yours} if mine.get(key) != yours.get(key)]
    return [f"{key}={mine.get(key)}, not {yours.get(key)}" for key in keys]


def steps_done(folder: Path) -> int | None:
    """Steps of the last checkpoint of a run, None if it has none."""
    found = Checkpoints(folder / "checkpoints").latest()
    return None if found is None else found.steps


# -------------------------------------------------------------------------------------------------------------- running


def run_all(tasks: list[Task], parallel: int) -> int:
    """Runs the tasks in parallel and returns 1 if one failed. On Ctrl-C every run writes a checkpoint."""
    waiting, running, failed = list(tasks), {}, 0
    stopping = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while running or (waiting and not stopping):
        try:
            while waiting and len(running) < parallel and not stopping:
                task = waiting.pop(0)
                running[_start(task)] = (task, time.perf_counter())
            time.sleep(0.2)
        except KeyboardInterrupt:
            stopping = True
            for process in running:
                process.send_signal(signal.SIGINT)
        for process in [process for process in running if process.poll() is not None]:
            task, began = running.pop(process)
            failed += process.returncode != 0
            end = "done" if process.returncode == 0 else f"exit code {process.returncode}, see {_log(task)}"
            print(f"{task.job.name} seed {task.seed}: {end} after {time.perf_counter() - began:,.0f} s", flush=True)
    return min(failed, 1)


def _start(task: Task) -> subprocess.Popen[bytes]:
    """Starts the run as a separate process with one thread; its output goes to a log file next to its folder."""
    words = [sys.executable, "-m", "coterie", *task.words]
    task.folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"{task.job.name} seed {task.seed}: {task.words[0]}", flush=True)
    with _log(task).open("a") as log:
        log.write(f"$ {shlex.join(words)}\n")
        log.flush()
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is passed on by this process, once
        )


def _log(task: Task) -> Path:
    return task.folder.with_suffix(".log")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)

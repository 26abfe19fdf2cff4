"""Seconds from the start of `coterie train` until a published level is reached.

    python benchmarks/time_to_level.py [--seeds 1,2,3] [--level -133.5] [--results FOLDER]

MAPPO on simple spread of the original particle worlds with 25 steps, returns per agent. The level is that of Papoudakis
et al. 2021 for 20 million steps. It counts as reached at the first evaluation during training whose mean is not below
it. The time includes the start of Python, imports, the choice of threads and all evaluations. Writes time_to_level.json
and time_to_level.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from reporting import in_words, origin, table, whole_number

HERE = Path(__file__).resolve().parent
SETTINGS = ("algo=mappo", "env=particle/simple_spread", "env.variant=openai", "env.episode_limit=25", "device=cpu")
EVALUATION = ("eval.every=100k", "eval.episodes=256")
AGENTS = 3
RETURN = "eval/return_mean"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3", help="training seeds, separated by commas")
    parser.add_argument("--level", type=float, default=-133.5, help="mean return per agent")
    parser.add_argument("--steps", default="4M", help="environment steps after which a run gives up")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="output folder")
    given = parser.parse_args(argv)
    made = origin()
    runs = []
    for seed in given.seeds.split(","):
        runs.append({"seed": int(seed), **run(seed, given.level, given.steps)})
        print(runs[-1], flush=True)
    content = {**made, "level": given.level, "steps": given.steps, "runs": runs}
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "time_to_level.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "time_to_level.md").write_text(page(content))
    print(given.results / "time_to_level.md")
    return 0


def run(seed: str, level: float, steps: str) -> dict[str, Any]:
    """Seconds, environment steps and mean return per agent at the first evaluation at the level; Nones if none is."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run/metrics.jsonl"
        words = [*SETTINGS, *EVALUATION, f"steps={steps}", f"seed={seed}", "progress=off", f"out={log.parent}"]
        began = time.perf_counter()
        training = subprocess.Popen([sys.executable, "-m", "coterie", "train", *words], stdout=DEVNULL, stderr=DEVNULL)
        try:
            while True:
                running = training.poll() is None
                seconds = time.perf_counter() - began
                found = first_at(level, log)
                if found is not None:
                    return {"seconds": round(seconds, 1), **found}
                if not running:
                    if training.returncode:
                        raise RuntimeError(f"the run ended with {training.returncode}")
                    return {"seconds": None, "steps": None, "return": None}
                time.sleep(0.1)
        finally:
            if training.poll() is None:
                training.send_signal(signal.SIGINT)
            training.wait()


def first_at(level: float, log: Path) -> dict[str, Any] | None:
    """Steps and return of the first evaluation at the level in a log that is being written."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    for row in map(json.loads, lines):
        if RETURN in row and row[RETURN] / AGENTS >= level:
            return {"steps": row["steps"], "return": round(row[RETURN] / AGENTS, 1)}
    return None


def page(content: Mapping[str, Any]) -> str:
    """Results as Markdown."""
    runs, machine = content["runs"], content["machine"]
    lines = [[str(one["seed"]), *(["not reached", "", ""] if one["seconds"] is None else _cells(one))] for one in runs]
    reached = [one["seconds"] for one in runs if one["seconds"] is not None]
    median = f"{statistics.median(reached):.1f} s" if len(reached) == len(runs) else "not reached by all seeds"
    return "\n".join(
        [
            "# Time to a published level",
            "",
            f"{in_words(machine)} ({machine['revision']}), {content['date']}. `{content['command']}`",
            "",
            f"`coterie train {' '.join([*SETTINGS, *EVALUATION])}` until the mean of an evaluation is at least "
            f"{content['level']:g} per agent; at most {content['steps']} steps. Median: **{median}**.",
            "",
            *table(["seed", "seconds", "steps", "evaluation per agent"], lines),
            "",
        ]
    )


def _cells(one: Mapping[str, Any]) -> list[str]:
    return [f"{one['seconds']:.1f}", whole_number(one["steps"]), f"{one['return']:.1f}"]


if __name__ == "__main__":
    sys.exit(main())

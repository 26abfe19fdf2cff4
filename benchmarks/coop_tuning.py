"""Tunes the algorithms of the cooperative comparison on coop/pushblock, each with the same grid, steps and seeds.

    python benchmarks/coop_tuning.py                   # trains all configurations and writes the results
    python benchmarks/coop_tuning.py --collect         # writes the results of completed runs

Every algorithm is trained with every pair of learning rate and entropy coefficient; its other settings are those of its
preset. The seeds are not among those of the learning benchmark. A configuration's score is the mean over seeds of the
highest evaluation during training. The best one becomes the preset of the algorithm on coop/pushblock, which
learning.py measures. Writes coop_tuning.json and coop_tuning.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gathering import finished
from jobs import SEEDS, Job
from learning import RESULTS, RUNS, plan, run_all
from reporting import in_words, origin, table

from coterie.core.errors import UserError
from coterie.runs.plots import Run

ENV = "coop/pushblock"
COMPARED = (f"env={ENV}", "eval.every=125k")
ALGORITHMS = ("poca", "coma", "mappo", "ippo")
LEARNING_RATES = ("3e-4", "1e-3")
ENTROPY_COEFS = ("0.01", "0.03")
TUNING_SEEDS = (100, 101)
assert not set(TUNING_SEEDS) & set(SEEDS)


def jobs(steps: str) -> list[Job]:
    """All configurations, as jobs of the learning benchmark."""
    return [
        Job(
            f"{algo}-{lr}-{entropy}",
            (*COMPARED, f"algo={algo}", f"steps={steps}", f"algo.lr={lr}", f"algo.entropy_coef={entropy}"),
            *("team", "sum", algo),
        )
        for lr in LEARNING_RATES
        for entropy in ENTROPY_COEFS
        for algo in ALGORITHMS
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that override those of the jobs")
    parser.add_argument("--steps", default="250k", help="steps of each run")
    parser.add_argument("--seeds", default=",".join(map(str, TUNING_SEEDS)), help="seeds, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="number of parallel runs, one thread each")
    parser.add_argument("--again", action="store_true", help="remove the runs first")
    parser.add_argument("--collect", action="store_true", help="collect results instead of training")
    parser.add_argument("--runs", type=Path, default=RUNS / "coop_tuning", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="output folder")
    given = parser.parse_args(argv)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if not given.collect:
        tasks = [task for job in jobs(given.steps) for seed in seeds if (task := plan(job, seed, given))]
        if run_all(tasks, given.jobs):
            return 1
    collect(jobs(given.steps), seeds, given)
    return 0


def collect(configurations: Sequence[Job], seeds: Sequence[int], given: argparse.Namespace) -> None:
    """Writes coop_tuning.json and coop_tuning.md.

    Raises:
        UserError: If a run is not complete.
    """
    found: dict[str, list[dict[str, Any]]] = {algo: [] for algo in ALGORITHMS}
    git, words = [], []
    for job in configurations:
        folders = [given.runs / job.name / f"seed{seed}" for seed in seeds]
        if unfinished := [folder for folder in folders if not finished(folder)]:
            raise UserError(f"{unfinished[0]}: not complete. Train it first.")
        manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
        git += [manifest["git"] for manifest in manifests]
        words += [in_words({**manifest["hardware"], **manifest["versions"]}) for manifest in manifests]
        curves = [evaluations(folder) for folder in folders]
        highest = [max(values) for values in curves]
        settings = dict(word.split("=", 1) for word in job.overrides)
        found[job.picture].append(
            {
                "lr": settings["algo.lr"],
                "entropy_coef": settings["algo.entropy_coef"],
                "command": ["coterie", "train", *job.overrides],
                "evaluations": curves,
                "highest": highest,
                "score": statistics.fmean(highest),
            }
        )
    revisions = {(entry["revision"] or "?")[:10] + "*" * entry["modified"] for entry in git}
    content = {
        **origin(),
        "env": ENV,
        "steps": given.steps,
        "seeds": list(seeds),
        "trained_on": sorted(set(words)),
        "trained_with": sorted(revisions),
        "found": found,
        "chosen": {algo: best(entries) for algo, entries in found.items()},
    }
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "coop_tuning.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "coop_tuning.md").write_text(page(content))


def evaluations(folder: Path) -> list[float]:
    """Mean returns of the team in the evaluations of a run, in order."""
    run = Run.load(folder)
    curve = run.curve("team", "eval/return_mean") or run.curve("", "eval/return_mean")
    assert curve is not None
    return [float(value) for value in curve.value]


def best(entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Settings with the highest score; the first of equal ones."""
    entry = max(entries, key=lambda entry: entry["score"])
    return {"lr": entry["lr"], "entropy_coef": entry["entropy_coef"]}


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    rows = []
    for algo, entries in content["found"].items():
        for entry in entries:
            chosen = content["chosen"][algo] == {key: entry[key] for key in ("lr", "entropy_coef")}
            score = f"{entry['score']:.2f}"
            seeds = " ".join(f"{value:.2f}" for value in entry["highest"])
            rows.append([algo, entry["lr"], entry["entropy_coef"], f"**{score}**" if chosen else score, seeds])
    lines = [
        "# Tuning of the cooperative comparison",
        "",
        f"Mean return on {content['env']} after {content['steps']} steps, the highest evaluation of each seed (seeds "
        f"{', '.join(map(str, content['seeds']))}, which the learning benchmark does not report). Every algorithm has "
        "the same grid; its other settings are those of its preset. Bold: the chosen settings. Trained by "
        "`python benchmarks/coop_tuning.py` and collected with `--collect`: "
        f"{'; '.join(content['trained_on'])} ({', '.join(content['trained_with'])}), {content['date']}.",
        "",
        *table(["algorithm", "`algo.lr`", "`algo.entropy_coef`", "score", "seeds"], rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)

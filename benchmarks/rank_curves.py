"""Learning curves of 1, 2 and 4 ranks: trains the same job with several seeds each, and compares them statistically.

    python benchmarks/rank_curves.py [--seeds 0,1,2,3,4] [--steps 500000] [--runs FOLDER] [--results FOLDER]

The job is IPPO in `particle/simple_spread`, 64 environments of all ranks together, one thread per rank. Completed runs
are skipped and interrupted ones are resumed, so the command can be repeated. The comparison is that of
`coterie compare`: the interquartile mean of the last evaluations with its bootstrapped interval, the probability of
improvement, and Welch's tests with Holm's correction. Writes rank_curves.json and rank_curves.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import reporting

from coterie.assembly.resolve import load_resolved, resolve
from coterie.commands.compare import compare_runs
from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.reports.comparison import Comparison, TaskResult
from coterie.reports.options import CompareOptions
from coterie.runs.checkpoints import Checkpoints

HERE = Path(__file__).resolve().parent
RANKS = (1, 2, 4)
JOB = (
    *("algo=ippo", "env=particle/simple_spread", "env.variant=openai", "num_envs=64", "algo.rollout_length=100"),
    *("threads=1", "device=cpu", "eval.episodes=256", "eval.num_envs=64", "checkpoint.policy_seconds=0"),
    *("log.tensorboard=false", "progress=off"),
)


def command(folder: Path, *, ranks: int, seed: int, steps: int, more: Sequence[str]) -> list[str] | None:
    """Returns the command that starts or resumes a run; None if it is complete.

    Raises:
        UserError: If the folder has a run with other settings.
    """
    words = [*JOB, f"ranks={ranks}", f"seed={seed}", f"steps={steps}", f"eval.every={max(1, steps // 20)}", *more]
    if not (folder / "manifest.json").exists():
        return ["train", *words, f"out={folder}"]
    expected, saved = resolve(words).requested, load_resolved(folder / "config.yaml").requested
    other = [key for key in expected if key != "out" and expected[key] != saved.get(key)]
    if other:
        raise UserError(f"{folder}: trained with other settings ({', '.join(other)}). Choose another --runs.")
    last = Checkpoints(folder / "checkpoints").latest()
    return None if last is not None and last.steps >= steps else ["resume", str(folder)]


def train(runs: Path, seeds: Sequence[int], steps: int, more: Sequence[str]) -> list[Path]:
    """Trains what is missing, with the numbers of ranks in turns for each seed. Returns the folders of all runs."""
    folders = [(runs / f"ranks{ranks}" / f"seed{seed}", ranks, seed) for seed in seeds for ranks in RANKS]
    for folder, ranks, seed in folders:
        words = command(folder, ranks=ranks, seed=seed, steps=steps, more=more)
        print(f"{ranks} ranks, seed {seed}: {'complete' if words is None else words[0]}", flush=True)
        if words is not None:
            subprocess.run([sys.executable, "-m", "coterie", *words], check=True, stdout=subprocess.DEVNULL)
    return [folder for folder, _, _ in folders]


# ----------------------------------------------------------------------------------------------------------- results


def ranks_of(result: TaskResult) -> int:
    """Returns the number of ranks of a group of runs."""
    return int(result.trials[0].run.settings.get("ranks", 1))


def numbers(comparison: Comparison) -> dict[str, Any]:
    """Returns the numbers of the comparison as JSON: groups by their number of ranks, and pairs of groups."""
    groups = {result.algo: result for result in comparison.results.values()}
    names = {algo: ranks_of(result) for algo, result in groups.items()}
    found = {}
    for result in sorted(groups.values(), key=ranks_of):
        scores = result.scores
        found[str(ranks_of(result))] = {
            "scores": {str(trial.seed): float(x) for trial, x in zip(result.trials, scores, strict=True)},
            "mean": float(np.mean(scores)),
            "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
            "iqm": result.statistics.iqm.report(),
            "steps": result.trials[0].series.steps.tolist(),
            "curves": {str(trial.seed): trial.series.mean.tolist() for trial in result.trials},
        }
    pairs = [
        {
            "ranks": [names[pair.algo], names[pair.other]],
            "probability_of_improvement": pair.probability.report(),
            "difference": pair.difference.report(),
            "p": _finite(pair.p),
            "p_holm": _finite(pair.p_holm),
        }
        for pair in comparison.pairs
    ]
    return {"score": comparison.score, "resampling": comparison.resampling, "ranks": found, "pairs": pairs}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def page(content: dict[str, Any]) -> str:
    """Returns the Markdown page of the results."""
    found, seeds = content["ranks"], content["seeds"]
    rows = [
        [ranks, f"{x['mean']:.1f}", _interval(x["iqm"]), ", ".join(f"{score:.1f}" for score in x["scores"].values())]
        for ranks, x in found.items()
    ]
    pairs = [
        [
            f"{pair['ranks'][0]} and {pair['ranks'][1]}",
            *(_interval(pair[key], 2) for key in ("difference", "probability_of_improvement")),
            *("" if pair[key] is None else f"{pair[key]:.2f}" for key in ("p", "p_holm")),
        ]
        for pair in content["pairs"]
    ]
    lines = [
        "# Learning curves of several ranks",
        "",
        f"Mean return per episode of the last of 20 evaluations (256 episodes) after {content['steps']:,} steps, seeds "
        f"{', '.join(map(str, seeds))}. Settings: `{' '.join(content['settings'])}`",
        "",
        f"{reporting.in_words(content['machine'])} ({content['machine']['revision']}), {content['date']}, load average "
        f"{content['load']:.1f} at the end. `{content['command']}`",
        "",
        *reporting.table(["ranks", "mean", "interquartile mean (95% interval)", "by seed"], rows),
        "",
        "Welch's tests, and their p-values after Holm's correction:",
        "",
        *reporting.table(
            ["ranks", "difference", "probability that the first is better", "p", "corrected p"], pairs
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _interval(x: dict[str, float | None], digits: int = 1) -> str:
    """Returns a number with its interval."""
    value, low, high = (None if n is None else f"{n:.{digits}f}" for n in (x["value"], x["low"], x["high"]))
    return str(value) if low is None else f"{value} ({low} to {high})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that replace those of the job")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="seeds, separated by commas")
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--runs", type=Path, default=HERE / "runs" / "rank_curves", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="output folder")
    given = parser.parse_args(argv)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    folders = train(given.runs, seeds, given.steps, given.overrides)
    paths = tuple(map(str, folders))
    comparison = compare_runs(paths, CompareOptions(normalize="none")).comparison
    content = {
        **reporting.origin(), "seeds": seeds, "steps": given.steps, "load": os.getloadavg()[0],
        "settings": [*JOB, *given.overrides], **numbers(comparison),
    }  # fmt: skip
    given.results.mkdir(parents=True, exist_ok=True)
    write_text(given.results / "rank_curves.json", json.dumps(content, indent=1) + "\n")
    write_text(given.results / "rank_curves.md", page(content))
    print(f"wrote {given.results / 'rank_curves.json'} and {given.results / 'rank_curves.md'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)

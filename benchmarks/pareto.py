"""Pareto-AC and other algorithms on the two matrix games whose Pareto optimum is risky.

    python benchmarks/pareto.py                   # trains all runs one after the other and writes the results
    python benchmarks/pareto.py --seeds 100,101       # only some seeds

Runs have the preset of their algorithm for the game. That of Pareto-AC was tuned, with seeds from 1000. A run
reaches the Pareto optimum if the greedy policies earn the largest payoff in every round. Writes pareto.json and
pareto.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reporting import in_words, origin, table

import coterie
from coterie.runs.loggers import read

HERE = Path(__file__).resolve().parent
GAMES = {"climbing": 11.0, "penalty": 10.0}
"""Largest payoff per round by game."""
ROUNDS = 25
ALGORITHMS = ("pac", "mappo")
SEEDS = tuple(range(100, 110))
"""Seeds that no tuning saw."""
COMMON: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "progress": "off",
    "steps": 50_000,
    "eval.every": 50_000,
    "eval.mode": "greedy",
    "eval.episodes": 20,
    "checkpoint.every": 0,
    "log.tensorboard": False,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds, separated by commas")
    parser.add_argument("--algos", default=",".join(ALGORITHMS), help="algorithms, separated by commas")
    parser.add_argument("--runs", type=Path, default=HERE / "runs" / "pareto", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the results")
    given = parser.parse_args(argv)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    payoffs = {
        game: {algo: [payoff(game, algo, seed, given.runs) for seed in seeds] for algo in given.algos.split(",")}
        for game in GAMES
    }
    content = {**origin(), "payoffs": payoffs, "seeds": seeds, "settings": COMMON}
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "pareto.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "pareto.md").write_text(page(content))


def payoff(game: str, algo: str, seed: int, folder: Path) -> float:
    """Returns the payoff per round of the greedy policies after a run; an earlier run is not repeated."""
    out = folder / f"{game}-{algo}-{seed}"
    if not (out / "metrics.jsonl").exists():
        coterie.train(algo=algo, env=f"matrix/{game}", seed=seed, out=str(out), **COMMON)
    evaluations = [row["eval/return_mean"] for row in read(out / "metrics.jsonl") if "eval/return_mean" in row]
    found = evaluations[-1] / ROUNDS
    print(f"{game:<10} {algo:<6} seed {seed:<4} {found:6.2f} of {GAMES[game]:g}", flush=True)
    return round(found, 2)


def page(content: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = []
    for game, by_algo in content["payoffs"].items():
        for algo, found in by_algo.items():
            reached = sum(x == GAMES[game] for x in found)
            rows.append([game, algo, f"{reached} of {len(found)}", " ".join(f"{x:g}" for x in found)])
    lines = [
        "# Pareto optima of matrix games",
        "",
        f"Payoff per round of the greedy policies after 50,000 steps, of at most {GAMES['climbing']:g} in climbing and "
        f"{GAMES['penalty']:g} in penalty. Only Pareto-AC has a preset that was tuned for these games.",
        "",
        *table(("game", "algorithm", "reach it", "payoffs"), rows),
        "",
        f"Trained by `{content['command']}`: {in_words(content['machine'])}, {content['date']}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

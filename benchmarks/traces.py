"""Time of updates with traced gradient steps beside the same updates without traces.

    python benchmarks/traces.py                        # five minutes
    python benchmarks/traces.py --only vdn --series 3

Two learners of each algorithm train on particle/simple_spread with the defaults in this process, in turns and with one
thread. The CPU time of this thread counts, which other processes disturb little, and the least of some series of
updates. Prints the table and writes traces.json and traces.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reporting import in_words, origin, table

import coterie.algos.learner as learner
from coterie.algos.traced import STEPS_BEFORE, TracedStep
from coterie.assembly.arithmetic import configure_arithmetic
from coterie.assembly.build import build
from coterie.assembly.resolve import resolve_kwargs
from coterie.commands.benchmark import TrainingLoop
from coterie.core.process import configure_process, rare_garbage_collection

HERE = Path(__file__).resolve().parent
ALGORITHMS = ("vdn", "qmix", "masac", "maddpg", "coma", "mappo", "poca", "happo", "mat", "magpo", "pqn_vdn")
ENV = "particle/simple_spread"
UPDATES = 3  # of a series


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=ALGORITHMS, help="may be given several times")
    parser.add_argument("--series", type=int, default=8, help="series of updates per learner")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="output folder")
    given = parser.parse_args(argv)
    content: dict[str, Any] = {**origin(), "series": given.series, "rows": []}
    for algo in given.only or ALGORITHMS:
        content["rows"].append(measure(algo, given.series))
        given.results.mkdir(parents=True, exist_ok=True)
        (given.results / "traces.json").write_text(json.dumps(content, indent=2) + "\n")
        (given.results / "traces.md").write_text(page(content))
    print((given.results / "traces.md").read_text())
    return 0


def measure(algo: str, series: int) -> dict[str, Any]:
    """Returns the milliseconds of an update without and with traces."""
    with rare_garbage_collection():
        loops = {name: warmed_up(algo, traced=name == "traced") for name in ("plain", "traced")}
        times: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(series):
            for name, loop in loops.items():
                times[name].append(update_ms(loop))
    plain, traced = (min(times[name]) for name in ("plain", "traced"))
    return {"algo": algo, "plain_ms": plain, "traced_ms": traced, "ratio": traced / plain}


def warmed_up(algo: str, *, traced: bool) -> TrainingLoop:
    """Returns a training loop that has taken more gradient steps than precede a trace."""
    learner.TracedStep = TracedStep if traced else lambda step, **parts: step  # pyright: ignore[reportAttributeAccessIssue]
    try:
        resolved = resolve_kwargs(None, algo=algo, env=ENV, threads=1, device="cpu")
        configure_process(1)
        configure_arithmetic(resolved.config)
        loop = TrainingLoop(build(resolved.config))
    finally:
        learner.TracedStep = TracedStep
    (algorithm,) = loop.algorithms.values()
    updates = 0
    while updates <= STEPS_BEFORE:  # each takes at least one gradient step, once there is enough experience
        loop.run_round()
        updates += getattr(algorithm, "_updates", 1) > 0
    return loop


def update_ms(loop: TrainingLoop) -> float:
    """Returns the milliseconds of CPU time that this thread takes for an update."""
    seconds = 0.0
    for _ in range(UPDATES):
        rollouts, _ = loop.collector.advance(loop.chunk_length)
        started = time.thread_time()
        for name, algorithm in loop.algorithms.items():
            algorithm.update(rollouts[name], 0.0)
        seconds += time.thread_time() - started
        loop.collector.pop_finished()
    return 1000 * seconds / UPDATES


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    rows = [
        [row["algo"], f"{row['plain_ms']:.1f}", f"{row['traced_ms']:.1f}", f"**{row['ratio']:.2f}**"]
        for row in sorted(content["rows"], key=lambda row: row["ratio"])
    ]
    lines = [
        "# Traced gradient steps",
        "",
        f"{in_words(content['machine'])} ({content['machine']['revision']}), {content['date']}.",
        f"Made by `{content['command']}`: CPU milliseconds of one thread per update, "
        f"the least of {content['series']} series.",
        "",
        *table(["algorithm", "without traces", "with traces", "ratio"], rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

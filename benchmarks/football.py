"""Throughput of football/academy_3_vs_1_with_keeper: four environments in two workers, and two bare engines.

    python benchmarks/football.py [--seconds 6] [--rounds 5] [--results FOLDER]

Bare: two processes, each stepping one `FootballEnv` of the package with random actions and resetting it when an episode
ends; the sum of both. Coterie: four environments in worker processes, tensors in and out, random actions sampled in
advance, sent and received as the collector does: all environments together or, with `workers.overlap=true`, one half
while the other half steps. The variants are interleaved over several rounds and the medians are reported. Needs the
engine (`make football`) and an idle machine. Writes football.json and football.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting import origin, priority, table

from coterie.config.schema import WorkersConfig
from coterie.core.types import Action
from coterie.envs.contract.partial_step import env_parts
from coterie.envs.contract.vector import VectorEnv
from coterie.envs.make import make

HERE = Path(__file__).resolve().parent
TASK, PLAYERS = "academy_3_vs_1_with_keeper", 3
BARE = "two bare engines in two processes"
OURS, HALVES = "Coterie, 4 environments in 2 workers", "Coterie, 4 environments in 2 workers per half"
SETS = 100  # action batches, sampled in advance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rounds = measured(given.seconds, given.rounds)
    median = {who: float(np.median(speeds)) for who, speeds in rounds.items()}
    content = {
        **origin(),
        "task": f"football/{TASK}",
        "seconds": given.seconds,
        "priority": priority(),
        "rounds": {who: [round(speed, 1) for speed in speeds] for who, speeds in rounds.items()},
        "steps_per_s": {who: round(speed, 1) for who, speed in median.items()},
        "share": {who: round(median[who] / median[BARE], 3) for who in (OURS, HALVES)},
    }
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "football.json").write_text(json.dumps(content, indent=2) + "\n")
    (given.results / "football.md").write_text(page(content))
    print(given.results / "football.md", content["steps_per_s"], content["share"])


def measured(seconds: float, rounds: int) -> dict[str, list[float]]:
    """Steps per second of each round, by stepping method."""
    context = multiprocessing.get_context("spawn")
    lines = []
    for seed in range(2):
        here, there = context.Pipe()
        context.Process(target=bare, args=(there, seed), daemon=True).start()
        lines.append(here)
    for line in lines:
        line.recv()  # ready
    envs = {
        who: make(f"football/{TASK}", num_envs=4, seed=0, workers=WorkersConfig(count=2, overlap=who == HALVES))
        for who in (OURS, HALVES)
    }
    found: dict[str, list[float]] = {BARE: []} | {who: [] for who in envs}
    for env in envs.values():
        env.reset()
        ours(env, 1.0)
    for _ in range(rounds):
        for line in lines:
            line.send(seconds)
        found[BARE].append(sum(line.recv() for line in lines))
        for who, env in envs.items():
            found[who].append(ours(env, seconds))
    for env in envs.values():
        env.close()
    for line in lines:
        line.send(0.0)
    return found


def ours(env: VectorEnv, seconds: float) -> float:
    """Steps per second of all environments; each part receives its next actions as soon as its last step arrives."""
    parts, generator = env_parts(env), torch.Generator().manual_seed(0)
    shape = (parts[0].num_envs, PLAYERS, 1)
    drawn = [{"left": Action(torch.randint(19, shape, generator=generator))} for _ in range(SETS)]
    steps, began = 0, time.perf_counter()
    for part in parts:
        part.send(drawn[0])
    while time.perf_counter() < began + seconds:
        steps += 1
        for part in parts:
            part.receive()
            part.send(drawn[steps % SETS])
    for part in parts:
        part.receive()
    return (steps + 1) * env.num_envs / (time.perf_counter() - began)


def bare(line: Any, seed: int) -> None:
    """Steps one bare engine for each number of seconds received and sends its speed; 0 ends the process."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gfootball.env.config import Config
        from gfootball.env.football_env import FootballEnv
    env = FootballEnv(Config({"level": TASK, "players": [f"agent:left_players={PLAYERS}"]}))
    env.reset()
    actions = np.random.default_rng(seed).integers(19, size=(SETS, PLAYERS))
    line.send("ready")
    while seconds := line.recv():
        steps, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            if env.step(actions[steps % SETS])[2]:
                env.reset()
            steps += 1
        line.send(steps / (time.perf_counter() - began))


def page(content: dict[str, Any]) -> str:
    """Results as Markdown."""
    facts = content["machine"]
    rows = [[who, f"{speed:,.0f}", ", ".join(f"{s:,.0f}" for s in content["rounds"][who])]
            for who, speed in content["steps_per_s"].items()]  # fmt: skip
    lines = [
        "# Football",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, gfootball 2.10.2, PyTorch {facts['torch']}, Coterie "
        f"{facts['coterie']} ({facts['revision']}), {content['date']}. Steps per second on "
        f"`{content['task']}`, three controlled players, "
        f"random actions; medians of {len(content['rounds'][OURS])} interleaved rounds of {content['seconds']:g} "
        f"seconds, measured by `python benchmarks/football.py`{content['priority']}.",
        "",
        *table(["stepping method", "median", "rounds"], rows),
        "",
        f"Coterie reaches {content['share'][OURS]:.2f} of the speed of the bare engines, and "
        f"{content['share'][HALVES]:.2f} double-buffered. The bare engines return raw observations and run "
        "independently. Coterie's environments wait for the slowest one of the batch or half, and a reset takes as "
        "long as six steps.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

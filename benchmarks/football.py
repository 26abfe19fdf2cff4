"""Steps a second of football's academy_3_vs_1_with_keeper: four copies in two workers, and two bare engines.

    python benchmarks/football.py [--seconds 6] [--rounds 5] [--results FOLDER]

Bare: two processes, each with one of the package's own FootballEnv and nothing around it, in a loop of random actions
with a reset where an episode ends; the steps of both together. Coterie: four copies in worker processes, with tensors
out and in, random actions drawn beforehand, sent and received as the collector of a run does: all copies together, or
(`workers.overlap=true`) one half while the other steps. All are measured by turns, round after round, and the medians
are told. Needs the engine (`make football`), and a machine with nothing else to do. Writes football.json and
football.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import time
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting import machine, priority, table

from coterie.envs.make import make
from coterie.envs.parts import parts_of
from coterie.envs.vector import VectorEnv
from coterie.schema import WorkersConfig
from coterie.types import Action

HERE = Path(__file__).resolve().parent
TASK, PLAYERS = "academy_3_vs_1_with_keeper", 3
BARE = "two bare engines in two processes"
OURS, HALVES = "Coterie, 4 copies in 2 workers", "Coterie, 4 copies in 2 workers a half"
SETS = 100  # of actions, drawn before


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
        "machine": machine(),
        "date": datetime.now().astimezone().date().isoformat(),
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
    """Steps a second by who steps, round by round."""
    context = multiprocessing.get_context("spawn")
    lines = []
    for seed in range(2):
        here, there = context.Pipe()
        context.Process(target=bare, args=(there, seed), daemon=True).start()
        lines.append(here)
    for line in lines:
        line.recv()  # it is ready
    envs = {
        who: make(f"football/{TASK}", copies=4, seed=0, workers=WorkersConfig(count=2, overlap=who == HALVES))
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
    """Steps a second of all copies, each part being sent its next actions as soon as its last step is heard of."""
    parts, generator = parts_of(env), torch.Generator().manual_seed(0)
    shape = (parts[0].copies, PLAYERS, 1)
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
    return (steps + 1) * env.copies / (time.perf_counter() - began)


def bare(line: Any, seed: int) -> None:
    """Steps one engine of the package for as many seconds as it is told, and says how fast; 0 ends it."""
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
    """The results as Markdown."""
    facts = content["machine"]
    rows = [[who, f"{speed:,.0f}", ", ".join(f"{s:,.0f}" for s in content["rounds"][who])]
            for who, speed in content["steps_per_s"].items()]  # fmt: skip
    lines = [
        "# Football",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, gfootball 2.10.2, PyTorch {facts['torch']}, Coterie "
        f"{facts['coterie']} ({facts['revision']}), {content['date']}. Steps a second on "
        f"`{content['task']}`, three players controlled, "
        f"random actions; medians of {len(content['rounds'][OURS])} rounds of {content['seconds']:g} seconds taken by "
        f"turns, made by `python benchmarks/football.py`{content['priority']}.",
        "",
        *table(["who steps", "median", "rounds"], rows),
        "",
        f"Coterie's steps are {content['share'][OURS]:.2f} of the bare engines', and in halves "
        f"{content['share'][HALVES]:.2f}. The bare ones are the package's `FootballEnv`, which shows raw observations, "
        "and go each at its own pace; Coterie's copies wait for the slowest, of all or of their half: a reset takes as "
        "long as six steps.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

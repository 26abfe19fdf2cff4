"""Throughput of external environments: in this process, in workers, and with the tools of other libraries.

    python benchmarks/workers.py [--num-envs 16] [--seconds 1] [--only NAME] [--results FOLDER]

Random actions are sampled in advance, so only stepping is measured: the upper quartile of several rounds, with one
PyTorch thread, on an idle machine. Writes workers.json and workers.md. `--only` measures one environment again and
keeps the figures of the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from piped import Game, Piped
from reporting import origin, priority, table

from coterie.config.schema import WorkersConfig
from coterie.envs.contract.traces import random_actions
from coterie.envs.make import make

HERE = Path(__file__).resolve().parent
NAMES = (
    "gym/CartPole-v1",
    "gym/Pendulum-v1",
    "pettingzoo/mpe2.simple_spread_v3",
    "lbforaging/Foraging-8x8-2p-2f-coop-v3",
)
PROCESSES = 2
ROUNDS = 7
SETS = 25  # action batches, sampled in advance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.results.mkdir(parents=True, exist_ok=True)
    file = given.results / "workers.json"
    known = json.loads(file.read_text())["steps_per_s"] if given.only else {}
    found = {
        name: measured(name, given.num_envs, given.seconds / ROUNDS) if given.only in (None, name) else known[name]
        for name in NAMES
        if given.only in (None, name) or name in known
    }
    content = {**origin(), "num_envs": given.num_envs, "priority": priority()}
    file.write_text(json.dumps(content | {"steps_per_s": found}, indent=2) + "\n")
    (given.results / "workers.md").write_text(page(content, found))
    print(given.results / "workers.md")


def measured(name: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Steps per second of all environments, by stepping method."""
    games = [Game(name) for _ in range(num_envs)]
    for k, game in enumerate(games):
        game.reset(k)
    actions = [[game.sample() for game in games] for _ in range(SETS)]
    found = {"bare loop": speed(lambda k: bare(games, actions[k]), num_envs, seconds)}
    for game in games:
        game.close()
    for kind in ("sync", "async") if name.startswith("gym/") else ():
        env = gymnasium.make_vec(name.removeprefix("gym/"), num_envs=num_envs, vectorization_mode=kind)
        env.reset(seed=0)
        drawn = [env.action_space.sample() for _ in range(SETS)]
        found[f"gymnasium {kind}"] = speed(lambda k, env=env, drawn=drawn: env.step(drawn[k]), num_envs, seconds)
        env.close()
    for processes in (num_envs, PROCESSES):
        runner = Piped(name, num_envs, processes)
        who = "pipes, one process per environment" if processes == num_envs else f"pipes, {processes} processes"
        found[who] = speed(lambda k, runner=runner: runner.step(actions[k]), num_envs, seconds)
        runner.close()
    ray_backend = [("ray", PROCESSES)] if name == NAMES[0] else []  # the communication cost is the same for all
    for kind, workers in [("processes", 0), ("processes", 1), ("processes", PROCESSES), *ray_backend]:
        env = make(name, {}, num_envs, 0, workers=WorkersConfig.model_validate({"count": workers, "kind": kind}))
        row, generator = env.reset(), torch.Generator().manual_seed(0)
        ours = [random_actions(env.spec, row, generator) for _ in range(SETS)]
        who = "Coterie, this process" if not workers else f"Coterie, {workers} worker{'s' * (workers > 1)}"
        who += " on Ray" * (kind == "ray")
        found[who] = speed(lambda k, env=env, ours=ours: env.step(ours[k]), num_envs, seconds)
        env.close()
    return found


def bare(games: Sequence[Game], actions: Sequence[Any]) -> None:
    """One step of the environments in a plain loop."""
    for game, action in zip(games, actions, strict=True):
        game.advance(action)


def speed(step: Callable[[int], Any], num_envs: int, seconds: float) -> float:
    """Upper quartile of the speeds of several rounds of `seconds` each."""
    found = []
    for _ in range(ROUNDS + 1):
        steps, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for k in range(SETS):
                step(k)
            steps += SETS
        found.append(steps * num_envs / (time.perf_counter() - began))
    return float(np.quantile(found[1:], 0.75))  # the first round is a warm-up


def page(content: dict[str, Any], found: dict[str, dict[str, float]]) -> str:
    """Results as Markdown."""
    facts = content["machine"]
    kinds = list(dict.fromkeys(kind for speeds in found.values() for kind in speeds))
    rows = [
        [kind, *(f"{speeds[kind]:,.0f}" if kind in speeds else "" for speeds in found.values())]
        for kind in [kind for kind in kinds if "Coterie" not in kind] + [kind for kind in kinds if "Coterie" in kind]
    ]
    names = [name.partition("/")[2] for name in found]
    best = [max(speed for who, speed in speeds.items() if "Coterie" in who) for speeds in found.values()]
    async_ = [speeds.get("gymnasium async", speeds["pipes, one process per environment"]) for speeds in found.values()]
    piped = [speeds[f"pipes, {PROCESSES} processes"] for speeds in found.values()]
    above = [speeds["bare loop"] / speeds["Coterie, this process"] - 1 for speeds in found.values()]
    ratios = [
        ["in this process, overhead over the bare loop", *(f"{part:.0%}" for part in above)],
        ["best, relative to gymnasium async or one piped process per environment", *_times(best, async_)],
        [f"best, relative to {PROCESSES} piped processes", *_times(best, piped)],
    ]
    lines = [
        "# Workers",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, gymnasium {gymnasium.__version__}, PyTorch {facts['torch']}, Coterie "
        f"{facts['coterie']} ({facts['revision']}), {content['date']}. Steps per second of {content['num_envs']} "
        f"environments with random actions, measured by `python benchmarks/workers.py`{content['priority']}.",
        "",
        *table(["stepping method", *names], rows),
        "",
        *table(["Coterie", *names], ratios),
    ]
    return "\n".join(lines) + "\n"


def _times(ours: list[float], theirs: list[float]) -> list[str]:
    return [f"{a / b:.2f} x" for a, b in zip(ours, theirs, strict=True)]


if __name__ == "__main__":
    main()

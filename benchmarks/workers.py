"""Steps a second of an outside library's environments, stepped here, by workers, and by gymnasium's own vectors.

    python benchmarks/workers.py [--copies 16] [--seconds 2] [--results FOLDER]

Random actions are drawn beforehand, so that stepping is all that is measured: the upper quartile of some rounds, in one
thread of PyTorch, on a machine with nothing else to do. Writes workers.json and workers.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from reporting import machine, table

from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.hosting.opening import opened
from coterie.envs.paths import random_actions
from coterie.envs.workers.processes import Processes

HERE = Path(__file__).resolve().parent
GYM = ("CartPole-v1", "Pendulum-v1")
ROUNDS = 7
SETS = 50  # of actions, drawn before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: measured(name, given.copies, given.seconds / ROUNDS) for name in GYM}
    content = {"machine": machine(), "date": datetime.now().astimezone().date().isoformat(), "copies": given.copies}
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "workers.json").write_text(json.dumps(content | {"steps_per_s": found}, indent=2) + "\n")
    (given.results / "workers.md").write_text(page(content, found))
    print(given.results / "workers.md")


def measured(name: str, copies: int, seconds: float) -> dict[str, float]:
    """Steps a second of all copies, by who steps them."""
    found = {"bare loop": speed(bare(name, copies), copies, seconds)}
    for kind in ("sync", "async"):
        env = gymnasium.make_vec(name, num_envs=copies, vectorization_mode=kind)
        env.reset(seed=0)
        actions = [env.action_space.sample() for _ in range(SETS)]
        found[f"gymnasium {kind}"] = speed(lambda k, env=env, actions=actions: env.step(actions[k]), copies, seconds)
        env.close()
    for workers in (0, 1, 2):
        env = hosted(name, copies, workers)
        row, generator = env.reset(), torch.Generator().manual_seed(0)
        drawn = [random_actions(env.spec, row, generator) for _ in range(SETS)]
        who = "Coterie, this process" if not workers else f"Coterie, {workers} worker{'s' * (workers > 1)}"
        found[who] = speed(lambda k, env=env, drawn=drawn: env.step(drawn[k]), copies, seconds)
        env.close()
    return found


def bare(name: str, copies: int) -> Callable[[int], Any]:
    """The library's own environments in a plain loop: nothing is kept of what they show."""
    envs = [gymnasium.make(name) for _ in range(copies)]
    for k, env in enumerate(envs):
        env.reset(seed=k)
    actions = [[env.action_space.sample() for env in envs] for _ in range(SETS)]

    def step(k: int) -> None:
        for env, action in zip(envs, actions[k], strict=True):
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def hosted(name: str, copies: int, workers: int) -> HostedEnv:
    if workers:
        return HostedEnv(Processes(f"gym/{name}", {}, copies, workers), 0, "cpu")
    layout, make = opened(f"gym/{name}", {})
    return HostedEnv(Alone(make, layout, copies), 0, "cpu")


def speed(step: Callable[[int], Any], copies: int, seconds: float) -> float:
    """The upper quartile of the speeds of some rounds of so many seconds."""
    found = []
    for _ in range(ROUNDS + 1):
        steps, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for k in range(SETS):
                step(k)
            steps += SETS
        found.append(steps * copies / (time.perf_counter() - began))
    return float(np.quantile(found[1:], 0.75))  # the first one warms up


def page(content: dict[str, Any], found: dict[str, dict[str, float]]) -> str:
    """The results as Markdown."""
    facts, kinds = content["machine"], list(next(iter(found.values())))
    rows = [[kind, *(f"{found[name][kind]:,.0f}" for name in found)] for kind in kinds]
    lines = [
        "# Workers",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, gymnasium {gymnasium.__version__}, PyTorch {facts['torch']}, Coterie "
        f"{facts['coterie']} ({facts['revision']}), {content['date']}. Steps a second of {content['copies']} copies "
        "with random actions, made by `python benchmarks/workers.py`.",
        "",
        *table(["who steps", *found], rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

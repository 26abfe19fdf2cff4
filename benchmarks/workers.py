"""Steps a second of outside libraries' environments: stepped here, by workers, and by what others use.

    python benchmarks/workers.py [--copies 16] [--seconds 1] [--only NAME] [--results FOLDER]

Random actions are drawn beforehand, so that stepping is all that is measured: the upper quartile of some rounds, in one
thread of PyTorch, on a machine with nothing else to do. Writes workers.json and workers.md. `--only` measures one
environment anew and leaves the others' figures as they are.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from piped import Game, Piped
from reporting import machine, priority, table

from coterie.envs.make import make
from coterie.envs.paths import random_actions
from coterie.schema import WorkersConfig

HERE = Path(__file__).resolve().parent
NAMES = (
    "gym/CartPole-v1",
    "gym/Pendulum-v1",
    "pettingzoo/mpe2.simple_spread_v3",
    "lbforaging/Foraging-8x8-2p-2f-coop-v3",
)
PROCESSES = 2
ROUNDS = 7
SETS = 25  # of actions, drawn before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.results.mkdir(parents=True, exist_ok=True)
    file = given.results / "workers.json"
    known = json.loads(file.read_text())["steps_per_s"] if given.only else {}
    found = {
        name: measured(name, given.copies, given.seconds / ROUNDS) if given.only in (None, name) else known[name]
        for name in NAMES
        if given.only in (None, name) or name in known
    }
    date = datetime.now().astimezone().date().isoformat()
    content = {"machine": machine(), "date": date, "copies": given.copies, "priority": priority()}
    file.write_text(json.dumps(content | {"steps_per_s": found}, indent=2) + "\n")
    (given.results / "workers.md").write_text(page(content, found))
    print(given.results / "workers.md")


def measured(name: str, copies: int, seconds: float) -> dict[str, float]:
    """Steps a second of all copies, by who steps them."""
    games = [Game(name) for _ in range(copies)]
    for k, game in enumerate(games):
        game.reset(k)
    actions = [[game.sample() for game in games] for _ in range(SETS)]
    found = {"bare loop": speed(lambda k: bare(games, actions[k]), copies, seconds)}
    for game in games:
        game.close()
    for kind in ("sync", "async") if name.startswith("gym/") else ():
        env = gymnasium.make_vec(name.removeprefix("gym/"), num_envs=copies, vectorization_mode=kind)
        env.reset(seed=0)
        drawn = [env.action_space.sample() for _ in range(SETS)]
        found[f"gymnasium {kind}"] = speed(lambda k, env=env, drawn=drawn: env.step(drawn[k]), copies, seconds)
        env.close()
    for processes in (copies, PROCESSES):
        runner = Piped(name, copies, processes)
        who = "pipes, a process a copy" if processes == copies else f"pipes, {processes} processes"
        found[who] = speed(lambda k, runner=runner: runner.step(actions[k]), copies, seconds)
        runner.close()
    on_ray = [("ray", PROCESSES)] if name == NAMES[0] else []  # the cost of telling them is the same for all
    for kind, workers in [("processes", 0), ("processes", 1), ("processes", PROCESSES), *on_ray]:
        env = make(name, {}, copies, 0, workers=WorkersConfig.model_validate({"count": workers, "kind": kind}))
        row, generator = env.reset(), torch.Generator().manual_seed(0)
        ours = [random_actions(env.spec, row, generator) for _ in range(SETS)]
        who = "Coterie, this process" if not workers else f"Coterie, {workers} worker{'s' * (workers > 1)}"
        who += " on Ray" * (kind == "ray")
        found[who] = speed(lambda k, env=env, ours=ours: env.step(ours[k]), copies, seconds)
        env.close()
    return found


def bare(games: Sequence[Game], actions: Sequence[Any]) -> None:
    """A step of the library's own environments in a plain loop."""
    for game, action in zip(games, actions, strict=True):
        game.advance(action)


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
    facts = content["machine"]
    kinds = list(dict.fromkeys(kind for speeds in found.values() for kind in speeds))
    rows = [
        [kind, *(f"{speeds[kind]:,.0f}" if kind in speeds else "" for speeds in found.values())]
        for kind in [kind for kind in kinds if "Coterie" not in kind] + [kind for kind in kinds if "Coterie" in kind]
    ]
    names = [name.partition("/")[2] for name in found]
    best = [max(speed for who, speed in speeds.items() if "Coterie" in who) for speeds in found.values()]
    async_ = [speeds.get("gymnasium async", speeds["pipes, a process a copy"]) for speeds in found.values()]
    piped = [speeds[f"pipes, {PROCESSES} processes"] for speeds in found.values()]
    above = [speeds["bare loop"] / speeds["Coterie, this process"] - 1 for speeds in found.values()]
    ratios = [
        ["in this process, above the bare loop", *(f"{part:.0%}" for part in above)],
        ["the best, to gymnasium async or pipes of a process a copy", *_times(best, async_)],
        [f"the best, to pipes of {PROCESSES} processes", *_times(best, piped)],
    ]
    lines = [
        "# Workers",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, gymnasium {gymnasium.__version__}, PyTorch {facts['torch']}, Coterie "
        f"{facts['coterie']} ({facts['revision']}), {content['date']}. Steps a second of {content['copies']} copies "
        f"with random actions, made by `python benchmarks/workers.py`{content['priority']}.",
        "",
        *table(["who steps", *names], rows),
        "",
        *table(["Coterie", *names], ratios),
    ]
    return "\n".join(lines) + "\n"


def _times(ours: list[float], theirs: list[float]) -> list[str]:
    return [f"{a / b:.2f} x" for a, b in zip(ours, theirs, strict=True)]


if __name__ == "__main__":
    main()

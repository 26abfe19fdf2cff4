"""Benefit of `workers.overlap`: milliseconds that the collector takes per step of all environments.

    python benchmarks/halves.py [--num-envs 16] [--seconds 0.5] [--results FOLDER]

Both variants use the same number of processes. Reported is the lower quartile over rollouts of eight steps with one
PyTorch thread. Writes halves.json and halves.md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from reporting import origin, priority, table

from coterie.config.schema import WorkersConfig
from coterie.envs.make import make
from coterie.nets.config import NetworkConfig
from coterie.policies.stochastic import StochasticPolicy
from coterie.training.collector import Collector

HERE = Path(__file__).resolve().parent
SLOW = "gym/slowworld:Slow-v0"
CASES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "computes 1 ms, 2 x 256 units": (SLOW, {"ms": 1.0}, [256, 256]),
    "waits 0.2 ms, 2 x 1,024 units": (SLOW, {"ms": 0.2, "waits": True}, [1024, 1024]),
    "waits 1 ms, 2 x 256 units": (SLOW, {"ms": 1.0, "waits": True}, [256, 256]),
    "waits 1 ms, 2 x 1,024 units": (SLOW, {"ms": 1.0, "waits": True}, [1024, 1024]),
    "BipedalWalker-v3, 2 x 256 units": ("gym/BipedalWalker-v3", {}, [256, 256]),
    "rware-tiny-2ag-v2, 2 x 256 units": ("rware/rware-tiny-2ag-v2", {}, [256, 256]),
}
ROLLOUT_LENGTH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for case, (name, params, hidden) in CASES.items():
        found[case] = {
            f"{processes} processes{', double-buffered' * overlap}": took(
                name, params, hidden, given.num_envs, WorkersConfig(count=processes // (1 + overlap), overlap=overlap),
                given.seconds,
            )
            for processes in (2, 4)
            for overlap in (False, True)
        }  # fmt: skip
    content = {**origin(), "num_envs": given.num_envs, "priority": priority()}
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "halves.json").write_text(json.dumps(content | {"ms_per_step": found}, indent=2) + "\n")
    (given.results / "halves.md").write_text(page(content, found))
    print(given.results / "halves.md")


def took(
    name: str, params: dict[str, Any], hidden: list[int], num_envs: int, workers: WorkersConfig, seconds: float
) -> float:
    """Milliseconds per step of all environments, acting included."""
    env = make(name, params, num_envs, 0, workers=workers)
    (team,) = env.spec.default_teams()
    network = NetworkConfig(hidden, share_params="all")
    policy = StochasticPolicy(team, network, torch.Generator().manual_seed(0), env.device)
    collector = Collector(env, {team.name: policy}, 0)
    collector.advance(ROLLOUT_LENGTH)
    times, began = [], time.perf_counter()
    while time.perf_counter() < began + seconds:
        at = time.perf_counter()
        collector.advance(ROLLOUT_LENGTH)
        times.append((time.perf_counter() - at) / ROLLOUT_LENGTH * 1000)
    env.close()
    return sorted(times)[len(times) // 4]


def page(content: dict[str, Any], found: dict[str, dict[str, float]]) -> str:
    """Results as Markdown."""
    facts, kinds = content["machine"], list(next(iter(found.values())))
    lines = [
        "# Double-buffered workers",
        "",
        f"{facts['cpu']}, {facts['cores']} cores, PyTorch {facts['torch']}, Coterie {facts['coterie']} "
        f"({facts['revision']}), {content['date']}. Milliseconds per step of {content['num_envs']} environments, "
        "acting included, by environment and policy size, measured by `python benchmarks/halves.py`"
        f"{content['priority']}.",
        "",
        *table(
            ["environment and policy", *kinds],
            [[case, *(f"{times[kind]:.2f}" for kind in kinds)] for case, times in found.items()],
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

"""Folders of runs that were not trained, and files of marl-eval, for tests of comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def write_run(path: Path, seed: int = 0, algo: str = "mappo", env: str = "particle/simple_spread", **more: Any) -> Path:
    """Writes a run with evaluations at 0, 1,000 and 2,000 of 2,000 steps. more: config, teams, values, manifest."""
    path.mkdir(parents=True)
    config = {
        "algo": {"name": algo, "lr": 1e-3},
        "env": {"name": env},
        "seed": seed,
        "steps": 2000,
        "eval": {"every": 1000},
    }
    for section, settings in more.get("config", {}).items():
        config[section] = {**config.get(section, {}), **settings} if isinstance(settings, dict) else settings
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    roles = {"agent": {"agents": ["agent_0", "agent_1", "agent_2"]}}
    manifest = {"seed": seed, "levels": {"random": {"agent": -10.0}}, "teams": {"agent": {"roles": roles}}}
    (path / "manifest.json").write_text(json.dumps(manifest | more.get("manifest", {})))
    rows = []
    for i, value in enumerate(more.get("values", (0.0, 5.0, 10.0 + seed))):
        row: dict[str, Any] = {"steps": i * 1000, "time/wall_s": i * 7.0, "eval/episodes": more.get("episodes", 32)}
        for team in more.get("teams", ("",)):
            words = ["eval", *[team] * bool(team)]
            row["/".join([*words, "return_mean"])] = value
            row["/".join([*words, "return_error"])] = 0.5
            row["/".join(["loss", *[team] * bool(team), "policy"])] = 0.1
        rows.append(json.dumps(row))
    (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    return path


def write_like_benchmarl(path: Path) -> Path:
    """Writes a file as BenchMARL does: one seed, episodes of evaluations, and the highest one as absolute metric."""
    metrics = [
        {"agents_return": [-9.0, -7.0], "return": [-9.0, -7.0]},
        {"agents_return": [-3.0, -4.0], "return": [-3.0, -4.0]},
    ]
    steps = {f"step_{i}": {"step_count": 6000 * i, **values} for i, values in zip((1, 20), metrics, strict=True)}
    run = {"absolute_metrics": {"agents_return": [-3.0], "return": [-3.0]}, **steps}
    path.write_text(json.dumps({"vmas": {"balance": {"mappo": {"seed_0": run}}}}, indent=4))
    return path


def write_like_mava(path: Path) -> Path:
    """Writes a file as Mava does: means of evaluations with times and speeds, and that of a fresh evaluation."""
    runs = {}
    for seed in (42, 6):
        values = [(1024, 0.0, 370.5, 0.125), (2048, 6.5, 27500.25, 0.75 + seed / 1000)]
        steps = {
            f"step_{i}": {"step_count": s, "elapsed_time": t, "steps_per_second": [v], "mean_episode_return": [x]}
            for i, (s, t, v, x) in enumerate(values)
        }
        absolute = {"steps_per_second": [2700.5], "mean_episode_return": [0.5 + seed / 1000]}
        runs[f"seed_{seed}"] = {"absolute_metrics": absolute, **steps}
    path.write_text(json.dumps({"LevelBasedForaging": {"2s-8x8-2p-2f-coop": {"ff_mappo": runs}}}, indent=4))
    return path


def write_marl_eval(path: Path, metric: str = "return", algo: str = "mappo") -> Path:
    """Writes a file of marl-eval with the seeds 4 and 2 of one algorithm on simple_spread."""
    steps = {f"step_{i}": {"step_count": 1000 * i, "elapsed_time": 2.0 * i, metric: [i, i + 1.0]} for i in range(3)}
    runs = {f"seed_{seed}": {**steps, "absolute_metrics": {metric: [5.0, 6.0, 7.0]}} for seed in (4, 2)}
    path.write_text(json.dumps({"particle": {"simple_spread": {algo: runs}}}))
    return path

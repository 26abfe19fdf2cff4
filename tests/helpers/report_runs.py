"""Folders of runs with evaluations, for tests of reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def write_run(path: Path, seed: int = 0, algo: str = "mappo", env: str = "matrix/climbing", **more: Any) -> Path:
    """Writes a run of 2,000 steps with five evaluations, whose returns depend on the algorithm and the seed.

    more: `gain` of the algorithm, `steps` done, and entries of the manifest.
    """
    path.mkdir(parents=True)
    config = {
        "algo": {"name": algo, "lr": 1e-3 if algo == "ippo" else 5e-4},
        "env": {"name": env},
        "seed": seed,
        "steps": 2000,
        "eval": {},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    gain, done = more.pop("gain", 10.0), more.pop("steps", 2000)
    manifest = {
        "seed": seed,
        "started": "2026-01-02T03:04:05+00:00",
        "command": ["/somewhere/bin/coterie", "train", f"algo={algo}", f"env={env}", f"seed={seed}"],
        "levels": {"random": {"agent": -5.0}},
        "hardware": {"cpu": "Some CPU", "cores": 2, "memory_bytes": 2**34, "gpus": []},
        "versions": {"python": "3.11", "coterie": "0.2.0"},
        "git": {"revision": "0123456789abcdef", "modified": True},
        **more,
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    rows = [
        {
            "steps": steps,
            "time/wall_s": steps / 100 + seed,
            "eval/episodes": 32,
            "eval/return_mean": -5.0 + (gain + seed) * steps / 2000,
            "eval/return_error": 0.5,
        }
        for steps in range(0, done + 1, 500)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_runs(path: Path) -> Path:
    """Writes runs of two algorithms on two tasks, three seeds each, into a folder. Returns the folder."""
    for env in ("matrix/climbing", "matrix/penalty"):
        for algo, gain in (("ippo", 10.0), ("vdn", 20.0)):
            for seed in range(3):
                write_run(path / f"{algo}-{env.replace('/', '-')}-{seed}", seed, algo, env, gain=gain)
    return path

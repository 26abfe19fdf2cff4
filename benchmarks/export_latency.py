"""Time per decision of exported policies and of the player in PyTorch, one environment at a time.

    python benchmarks/export_latency.py

Trains IPPO on particle/simple_spread for a few steps, with and without a GRU, exports it, and measures the fastest of
ten rounds of 200 calls of `Player.act`, which acts for three agents. Every process uses one thread.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coterie
from coterie.export.export import export

ROUNDS, CALLS = 10, 200
NETWORKS = (("MLP 64-64", "none"), ("MLP 64-64 and GRU 64", "gru"))


def main() -> None:
    """Prints one row per network and player, in microseconds per call."""
    torch.set_num_threads(1)
    obs = {f"agent_{i}": np.random.default_rng(i).normal(size=18).astype(np.float32) for i in range(3)}
    print(f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}")
    for name, rnn in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            settings: dict[str, Any] = {"algo.rnn": rnn, "progress": "off", "eval.episodes": 8, "steps": 2000}
            run = Path(folder) / "run"
            coterie.train(algo="ippo", env="particle/simple_spread", num_envs=8, out=run, **settings)
            players: dict[str, Callable[[Any], Any]] = {"PyTorch": coterie.load(run).player(mode="greedy").act}
            for form in ("onnx", "numpy"):
                out = Path(folder) / form
                export(run, out, form)
                players[form] = _module(out).Player(out, mode="greedy").act
            for player, act in players.items():
                print(f"{name:22} {player:8} {1e6 * _seconds(act, obs):6.0f} us", flush=True)


def _seconds(act: Callable[[Any], Any], obs: dict[str, np.ndarray]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            act(obs)
        rounds.append((time.perf_counter() - start) / CALLS)
    return min(rounds)


def _module(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("coterie_player", folder / "coterie_player.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())

"""The types of the settings of `coterie.train`, as a type checker sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).resolve().parents[2]

CALLS = """
from typing import Any

import gymnasium

import coterie
from coterie.algos.ppo import PPO


class Guess(gymnasium.Env):
    pass


class Noop(coterie.Callback):
    pass


settings: coterie.TrainSettings = {"steps": 1e6, "eval": {"every": "50k"}}
dotted: dict[str, Any] = {"algo.lr": 1e-3, "teams.adversary.algo": "random"}

# right
coterie.train()
coterie.train("mappo", "particle/simple_spread").summary
coterie.train("mappo", "particle/simple_spread", steps=1e6, seed=3, out="runs/x", overwrite=True)
coterie.train(algo="my.module:Mine", env="my.module:make", config_file="a.yaml", callbacks=[Noop()])
coterie.train(algo={"name": "mappo", "lr": 1e-3, "hidden_sizes": [64, 64], "rnn": "gru"}, env=Guess)
coterie.train(algo={"name": PPO, "anything": 3}, env={"name": Guess, "length": 20})
coterie.train(algo={"name": "mappo/original"}, env={"name": "particle/simple_spread", "agents": 5})
coterie.train(algo={"name": "qmix", "buffer_size": 5000, "network": Guess}, env={"name": "gym/Pendulum-v1", "g": 9.8})
coterie.train(teams={"agent": {"algo": {"name": "ippo", "lr": 1e-4}}, "adversary": {"algo": "random"}})
coterie.train(eval={"episodes": 100, "mode": "greedy"}, checkpoint={"keep": True}, network="a:b", threads="auto")
coterie.train(rewards={"icm": {"weight": 0.1}}, init={"run": "runs/x"}, init_like=None)  # wrong
coterie.train(curriculum={"lessons": [{"name": "a", "parameters": {"x": {"uniform": [0, 1]}}}]}, randomize={"x": 3})
coterie.train("mappo", lr=1e-3, gamma=0.99, hidden_sizes=[64], epochs=4)
coterie.train("qmix", gamma="high")  # wrong
coterie.train(**settings)
coterie.train("mappo", "particle/simple_spread", **dotted)
coterie.train(setps=1e6)  # wrong
coterie.train(steps=[1])  # wrong
coterie.train(seed="three")  # wrong
coterie.train(eval={"evry": 3})  # wrong
coterie.train(eval={"mode": "gredy"})  # wrong
coterie.train(algo={"name": "mappo", "lrr": 1e-3})  # wrong
coterie.train(algo={"name": "mappo", "buffer_size": 5000})  # wrong
coterie.train(algo={"name": "vdac", "mixer_input": "state", "clip_eps": 0.1, "network": "attention", "epochs": 2})
coterie.train(algo={"name": "mat", "network": "attention"})  # wrong
coterie.train(algo={"name": "seac", "share_params": "role"})  # wrong
coterie.train(algo={"name": "hatrpo", "clip_eps": 0.1})  # wrong
coterie.train(algo=3)  # wrong
coterie.train("mappo", "particle/simple_spread", 1e6)  # wrong
"""


@pytest.mark.slow
def test_pyright_accepts_right_calls_and_refuses_wrong_ones(tmp_path: Path):
    (tmp_path / "calls.py").write_text(CALLS)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}
    expected = {number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith("# wrong")}
    assert errors == expected, json.dumps(found, indent=1)


def test_the_types_can_be_imported_and_name_the_sections():
    keys = coterie.TrainSettings.__annotations__
    assert {"steps", "eval", "teams", "network"} <= set(keys)
    assert "algo" not in keys  # it is an argument of its own

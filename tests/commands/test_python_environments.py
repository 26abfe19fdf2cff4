"""Runs whose environment is a function or class of Python code."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import coterie
from coterie.__main__ import main
from coterie.config import callables
from coterie.core.errors import UserError
from tinyruns import assert_same, checkpoint_state, shorten_checks


def local_env() -> type[gymnasium.Env]:
    """Returns a class that no module has, as a notebook's."""

    class Guess(gymnasium.Env):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def __init__(self, length: int = 4):
            self.length = length

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
            super().reset(seed=seed)
            self.time = 0
            return self._draw(), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
            reward = float((action == 1) == (self.number > 0))
            self.time += 1
            return self._draw(), reward, self.time >= self.length, False, {}

        def _draw(self) -> np.ndarray:
            self.number = self.np_random.uniform(-1, 1)
            return np.array([self.number], np.float32)

    return Guess


def small(out: Path, env: Any, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_sizes": [8], "rollout_length": 10, "num_minibatches": 2, "epochs": 2}
    settings = {"num_envs": 4, "steps": 80, "threads": 1, "device": "cpu", "progress": "off"}
    settings["log"] = {"tensorboard": False}
    eval_ = {"episodes": 4, "num_envs": 4, "every": 1000, "min_episodes": 1}
    return {"algo": {"name": "ppo", **sizes}, "env": env, "out": out, "eval": eval_, **settings, **more}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts as a process to which nothing was passed."""
    monkeypatch.setattr(callables, "_functions", {})


@pytest.mark.slow
def test_a_class_without_a_module_is_trained_on_and_recorded(tmp_path: Path) -> None:
    result = coterie.train(**small(tmp_path / "run", {"name": local_env(), "length": 3}))
    manifest = json.loads((result.run / "manifest.json").read_text())
    assert manifest["env"] == "python:local_env.Guess"
    source = manifest["env_source"]
    assert (source["name"], source["file"]) == ("local_env.<locals>.Guess", __file__)
    assert Path(__file__).read_text().splitlines()[source["line"] - 1].strip() == "class Guess(gymnasium.Env):"
    assert coterie.evaluate(result, episodes=4)["teams"]["agent"]["length_mean"] == 3


@pytest.mark.slow
def test_a_new_process_needs_the_code_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = local_env()
    whole = coterie.train(**small(tmp_path / "whole", env))
    callables._functions.clear()
    assert main(["resume", str(whole.run), "steps=160"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "made by Python code that this process does not have (local_env.Guess)" in error
    assert "coterie.resume(run, env=make_env)" in error
    assert coterie.resume(whole, steps=160, env=env).summary.steps >= 160
    callables._functions.clear()
    assert coterie.load(whole, env=env).act(np.zeros(1, np.float32)) in (0, 1)


@pytest.mark.slow
def test_workers_receive_the_code_in_memory_with_equal_results(tmp_path: Path) -> None:
    env = local_env()
    alone = coterie.train(**small(tmp_path / "alone", env))
    shared = coterie.train(**small(tmp_path / "shared", env, workers={"count": 2}))
    assert_same(checkpoint_state(shared.run)["algorithms"], checkpoint_state(alone.run)["algorithms"])
    code = callables.serialize("python:local_env.Guess")
    assert code is not None
    files = [file for file in shared.run.rglob("*") if file.is_file()]
    assert len(files) > 3
    assert not any(code[:40] in file.read_bytes() or b"np_random" in file.read_bytes() for file in files)


def make_guess(length: int = 4) -> gymnasium.Env:
    return local_env()(length)  # type: ignore[call-arg]


def test_functions_of_modules_have_an_importable_name() -> None:
    from coterie.envs.worlds.coop import scripts

    function = next(value for value in vars(scripts).values() if getattr(value, "__module__", "") == scripts.__name__)
    assert callables.name_of(function) == f"{scripts.__name__}:{function.__name__}"
    assert callables.source_of(callables.name_of(function)) is None
    assert callables.serialize(callables.name_of(function)) is None


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: make_guess(), "python:lambda"),
        (functools.partial(make_guess, 3), "python:make_guess"),
        (local_env(), "python:local_env.Guess"),
    ],
)
def test_other_code_has_a_name_of_this_process(make: Callable[..., Any], name: str) -> None:
    assert callables.name_of(make) == name
    assert callables.find(name) is make
    code = callables.serialize(name)
    callables._functions.clear()
    callables.deserialize(name, code)
    assert isinstance(callables.find(name)(), gymnasium.Env)


def test_code_that_cannot_be_sent_is_refused_with_a_fix() -> None:
    lock = threading.Lock()
    name = callables.name_of(lambda: lock)
    with pytest.raises(UserError, match=r"cannot be sent to workers: TypeError: .*set workers.count=0"):
        callables.serialize(name)


def test_the_check_accepts_functions_and_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_checks(monkeypatch)
    assert coterie.check_env(local_env(), length=5).ok
    assert coterie.check_env("particle/simple").ok
    with pytest.raises(UserError, match=r"env\.size.*no such setting"):
        coterie.check_env(local_env(), size=5)


@pytest.mark.slow
def test_the_environment_of_a_named_one_cannot_be_replaced(tmp_path: Path) -> None:
    result = coterie.train(**small(tmp_path / "run", "probe/action"))
    with pytest.raises(UserError, match="the run's environment is probe/action, which is made by its name"):
        coterie.resume(result, env=local_env())


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UserError, match=r"env=3: the run's environment is python:make. Pass the function or class"):
        callables.keep("env", ["python:make"], 3)


@pytest.mark.slow
def test_every_function_that_opens_a_run_takes_its_code(tmp_path: Path) -> None:
    env = local_env()
    run = coterie.train(**small(tmp_path / "run", env)).run

    def again(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        callables._functions.clear()
        with pytest.raises(UserError, match="made by Python code that this process does not have"):
            function(*args, **more)
        return function(*args, env=env, **more)

    assert again(coterie.evaluate, run, episodes=4)["teams"]["agent"]["length_mean"] == 4
    longer = coterie.evaluate(run, episodes=4, env=env, **{"env.length": 6})
    assert longer["teams"]["agent"]["length_mean"] == 6
    assert again(coterie.record, run, episodes=2, out=tmp_path / "demos.safetensors").episodes == 2
    with pytest.raises(UserError, match="cannot be combined with a run"):
        coterie.record(run, env=env, seed=1, **{"env.length": 3})
    baseline = coterie.evaluate(algo="random", env=env, episodes=4, progress="off", device="cpu", threads=1)
    assert baseline["env"] == "python:local_env.Guess"


def local_game() -> Callable[..., Any]:
    """Returns a factory of a game of two sides that no module has."""

    def make_game(num_envs: int, seed: int, device: Any = "cpu", limit: int = 3) -> Any:
        return coterie.make("matrix/rock_paper_scissors", num_envs, seed, device, episode_limit=limit)

    return make_game


@pytest.mark.slow
def test_leagues_and_best_responses_take_the_code(tmp_path: Path) -> None:
    game = local_game()
    run = coterie.train(**small(tmp_path / "run", game) | {"algo": {"name": "ippo", "hidden_sizes": [8]}}).run
    callables._functions.clear()
    found = coterie.league({"a": run, "random": "random"}, episodes=4, env=game)
    assert found.members == ("a", "random")
    callables._functions.clear()
    response = coterie.exploit(run, steps=80, episodes=4, env=game, progress="off")
    assert response.steps >= 80

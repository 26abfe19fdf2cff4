"""Objects of other interfaces: the factory's error and the check name the interface and how to wrap it."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.envs.make import make

HERE = __name__
BOX, CHOICE = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)


def kind(module: str = "pond", **members: Any) -> Any:
    """Instance of a class that another library could define."""
    return type("Thing", (), {"__module__": module, **members})()


def method(self: Any, *_: Any, **__: Any) -> None:
    pass


def functional(self: Any, state: Any, action: Any) -> None:
    pass


def functional_with_key(self: Any, key: Any, state: Any, action: Any, params: Any = None) -> None:
    pass


GYM_SPACES = {"observation_space": BOX, "action_space": CHOICE}
CALLS = {"reset": method, "step": method}

FOREIGN: dict[str, tuple[Any, str]] = {
    "class": (lambda: Old, "the class Old. Return an instance of it"),
    "class_of_gymnasium": (lambda: gymnasium.Env, "the class Env. Return an instance"),
    "module": (lambda: types.ModuleType("pond"), "the module pond"),
    "function": (lambda: make, "the function make. Return its result"),
    "anonymous": (lambda: lambda: None, "a function. Call it"),
    "nothing": (lambda: None, "None"),
    "pair": (lambda: (Old(), {}), "a tuple of 2"),
    "list": (lambda: [Old()], "a list of 1"),
    "dict": (lambda: {"env": Old()}, "a dict"),
    "name": (lambda: "CartPole-v1", "'CartPole-v1'"),
    "number": (lambda: 3, "3"),
    "spec": (lambda: gymnasium.spec("CartPole-v1"), "an entry of Gymnasium's registry. Return gymnasium.make"),
    "vector": (lambda: gymnasium.vector.SyncVectorEnv([Old, Old]), "a gymnasium.vector.VectorEnv"),
    "sb3": (lambda: kind("stable_baselines3.common.vec_env.dummy_vec_env", **GYM_SPACES, **CALLS), "Stable-Baselines3"),
    "vec_env": (lambda: kind(step_async=method, step_wait=method, **GYM_SPACES, **CALLS), "a VecEnv"),
    "envpool": (lambda: kind("envpool.python.envpool", **GYM_SPACES, **CALLS), "a batch of EnvPool"),
    "torchrl": (lambda: kind("torchrl.envs.common", **CALLS), "an environment of TorchRL"),
    "dm_env": (lambda: kind(observation_spec=method, action_spec=method, **CALLS), "an environment of dm_env"),
    "open_spiel": (lambda: kind("pyspiel", new_initial_state=method), "a game of OpenSpiel"),
    "open_spiel_state": (lambda: kind("pyspiel", apply_action=method, legal_actions=method), "a game of OpenSpiel"),
    "open_spiel_rl": (lambda: kind("open_spiel.python.rl_environment", **CALLS), "a game of OpenSpiel"),
    "gymnax": (
        lambda: kind("gymnax.environments.environment", reset=method, step=method, observation_space=method),
        "a functional environment",
    ),
    "jax": (lambda: kind(reset=method, step=functional, **GYM_SPACES), "a functional environment"),
    "jaxmarl": (
        lambda: kind(reset=method, step=functional_with_key, observation_space=method, agents=["a"]),
        "a functional environment",
    ),
    "old_gym": (lambda: kind("gym.core", **CALLS), "an environment of the old package gym"),
    "old_gym_by_methods": (lambda: kind(seed=method, **CALLS), "an environment of the old package gym"),
}


class Old(gymnasium.Env):
    """The interface of old Gym, with the spaces of Gymnasium."""

    observation_space, action_space = BOX, CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, {}


class TimeStep(Old):
    """Results of dm_env."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return types.SimpleNamespace(step_type=0, reward=None, discount=None, observation=0)


def foreign(kind: str = "") -> Any:
    return FOREIGN[kind][0]()


def exits() -> Any:
    sys.exit(3)


def needs(size: Any) -> Any:
    return Old()


@pytest.mark.parametrize("name", FOREIGN)
def test_the_interface_is_named_when_an_environment_is_made(name: str):
    with pytest.raises(UserError) as error:
        make(f"{HERE}:foreign", {"kind": name})
    assert FOREIGN[name][1] in str(error.value)


def batch(num_envs: int, seed: int, device: Any, kind: str = "") -> Any:
    return FOREIGN[kind][0]()


@pytest.mark.parametrize("name", ["class", "vec_env"])
def test_the_interface_is_named_when_a_batch_is_made(name: str):
    with pytest.raises(UserError) as error:
        make(f"{HERE}:batch", {"kind": name})
    assert FOREIGN[name][1] in str(error.value)
    assert "A factory with a parameter num_envs returns a coterie.envs.contract.vector.VectorEnv" in str(error.value)


@pytest.mark.parametrize(("factory", "expected"), [("Old", "the interface of old Gym"), ("TimeStep", "dm_env")])
def test_results_of_other_interfaces_are_named(factory: str, expected: str):
    with pytest.raises(UserError, match=expected):
        make(f"{HERE}:{factory}").reset()


@pytest.mark.parametrize(("factory", "expected"), [("exits", "SystemExit: 3"), ("needs", "argument: 'size'")])
def test_a_factory_that_fails_is_one_line(factory: str, expected: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", f"env={HERE}:{factory}", "algo=random", "steps=8"]) in (2, 3)
    error = capsys.readouterr().err
    assert expected in error
    assert "Traceback" not in error
    assert main(["check-env", f"{HERE}:{factory}", "--json"]) == 1
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("extra", [("seed",), ("observation_spec", "action_spec"), ("new_initial_state",)])
def test_methods_of_others_beside_those_of_a_supported_interface_are_accepted(
    extra: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    begin = {"reset": lambda self, seed=None: (np.zeros(2, np.float32), {}), "step": method}
    env = kind(**dict.fromkeys(extra, method), **GYM_SPACES, **begin)
    monkeypatch.setitem(FOREIGN, "duck", (lambda: env, ""))
    assert make(f"{HERE}:foreign", {"kind": "duck"}).spec.n == 1

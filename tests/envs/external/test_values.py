"""Values of rewards and end flags: other types are one line in every interface, and global settings are restored."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import EnvironmentFailedError, NonFiniteError
from coterie.core.types import Action
from coterie.envs.contract.vector import GlobalSettings, VectorEnv, reset_env, step_env
from coterie.envs.external.returned import WrongReturn, to_flag, to_flags, to_number, to_numbers
from coterie.envs.make import make
from gymnasium_worlds import played
from returning import PARTS, STEPS, Single

HERE = __name__
NO_FLAGS = ["False", None, float("nan"), 2, 0.5, [], [True, False], 1j, object()]
NO_NUMBERS = ["3.0", np.str_("3"), b"3", None, 1j, np.complex64(1), [1.0, 2.0], np.zeros(2), [], np.array(None), {}]
NO_NUMBERS += [np.datetime64("2020-01-01"), datetime.timedelta(1), object(), torch.ones(2)]
FLAGS = [True, np.True_, 1, 1.0, np.array(True), np.array([1]), torch.tensor(True), np.int8(1)]
NUMBERS = [3, 3.0, np.float16(3), np.array(3.0), np.array([3.0]), torch.tensor([3.0], requires_grad=True), np.int64(3)]


@pytest.mark.parametrize("value", FLAGS, ids=lambda value: type(value).__name__)
def test_flags_of_any_library_are_read(value: Any):
    assert to_flag(value, "terminated") is True


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: type(value).__name__)
def test_numbers_of_any_library_are_read(value: Any):
    assert to_number(value, "the reward") == 3


@pytest.mark.parametrize("value", NO_FLAGS, ids=lambda value: type(value).__name__)
def test_other_flags_are_named(value: Any):
    with pytest.raises(WrongReturn, match=r"terminated is .*, expected True or False") as error:
        to_flag(value, "terminated")
    assert "\n" not in str(error.value)
    with pytest.raises(WrongReturn, match="the flags are"):
        to_flags([value, value], "the flags", 2)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_other_rewards_are_named(value: Any):
    with pytest.raises(WrongReturn, match=r"the reward is .*, expected one number") as error:
        to_number(value, "the reward")
    assert "\n" not in str(error.value)
    if not isinstance(value, list | np.ndarray | torch.Tensor):
        with pytest.raises(WrongReturn, match="the rewards are"):
            to_numbers([value, value], "the rewards", 2)


def return_instead(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Lets environments of `returning` return values in place of parts of a step, of two agents for the second one."""

    def change(*parts: Any) -> Any:
        named = dict(zip(PARTS, parts, strict=True))
        several = isinstance(named["rewards"], dict)
        return tuple((named | {k: named[k] | {"a_1": x} if several else x for k, x in values.items()}).values())

    monkeypatch.setitem(STEPS, "value", change)


@pytest.mark.parametrize("interface", ["single", "several"])
@pytest.mark.parametrize(("part", "value"), [("rewards", "1.0"), ("terminations", float("nan")), ("truncations", 2)])
def test_a_wrong_value_is_one_line_that_names_the_agent(
    part: str, value: Any, interface: str, monkeypatch: pytest.MonkeyPatch
):
    return_instead(monkeypatch, **{part: value})
    env = make(f"returning:{interface}", {"fault": "value"}, num_envs=2)
    env.reset(0)
    with pytest.raises(Exception, match=r"reward|terminat|truncat") as error:
        list(played(env, 3))
    assert "\n" not in str(error.value)
    assert ("a_1" in str(error.value)) == (interface == "several")


@pytest.mark.parametrize("interface", ["single", "several"])
def test_returns_are_right_for_values_of_other_libraries(interface: str, monkeypatch: pytest.MonkeyPatch):
    return_instead(monkeypatch, rewards=torch.tensor([1.0], requires_grad=True), truncations=np.array(0))
    env = make(f"returning:{interface}", {"fault": "value"}, num_envs=1)
    env.reset(0)
    steps = [step_env(env, actions_of(env))[0] for _ in range(4)]
    assert sum(float(step.reward[0, -1]) for step in steps) == 4
    assert [bool(step.episode_terminated) for step in steps] == [False] * 3 + [True]


@pytest.mark.parametrize("reward", [3e38, -1e16])
def test_an_absurd_reward_is_named_instead_of_the_learning_rate(
    reward: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    return_instead(monkeypatch, rewards=reward)
    env = {"name": "returning:single", "fault": "value"}
    with np.errstate(over="ignore"), pytest.raises(NonFiniteError, match="the reward is") as error:
        coterie.train(algo="ippo", env=env, steps=400, num_envs=2, progress="off", out=str(tmp_path / "run"))
    assert "number 0, agent agent, step" in str(error.value)


# ------------------------------------------------------------------------------------------------------ global settings

CHANGES: dict[str, Any] = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "gradient": lambda: torch.set_grad_enabled(False),
    "device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "NumPy": lambda: np.seterr(divide="raise"),
}


class Changing(Single):
    """Changes a setting of the process where it is told to."""

    change: ClassVar[Any] = None
    where: ClassVar[str] = ""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        if self.where == "init":
            self.change()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        if self.where == "reset":
            type(self).change()
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, ...]:
        if self.where == "step":
            type(self).change()
        return super().step(action)


@pytest.mark.parametrize(
    ("setting", "where"),
    [*zip(CHANGES, itertools.cycle(("init", "reset")), strict=False), ("dtype", "step"), ("gradient", "step")],
)
def test_settings_of_the_process_are_restored_and_named(
    setting: str, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(Changing, "change", staticmethod(CHANGES[setting]))
    monkeypatch.setattr(Changing, "where", where)
    monkeypatch.setattr("coterie.envs.contract.vector._reported", set())
    before = GlobalSettings.now()
    env = make(f"{HERE}:Changing", num_envs=1)
    reset_env(env, 0)
    for _ in range(2):
        step_env(env, actions_of(env))
    assert GlobalSettings.now() == before
    assert capsys.readouterr().err.count(f"environment '{HERE}:Changing' changed") == 1


def actions_of(env: VectorEnv) -> dict[str, Any]:
    return {
        role.name: Action(discrete=torch.zeros(env.num_envs, role.n, 1, dtype=torch.int64)) for role in env.spec.roles
    }


def test_returns_do_not_depend_on_the_default_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(Changing, "change", staticmethod(CHANGES["dtype"]))
    monkeypatch.setattr(Changing, "where", "step")
    settings = {"eval": {"every": 0}, "log": {"tensorboard": False}, "algo.rollout_length": 10, "env.episode_limit": 4}
    env = {"name": f"{HERE}:Changing", "fault": "value"}
    return_instead(monkeypatch)
    run = coterie.train(
        algo="ppo", env=env, steps=40, num_envs=1, progress="off", threads=1, out=str(tmp_path / "run"), **settings
    )
    assert coterie.evaluate(run, episodes=2)["teams"]["agent"]["return_mean"] == 4
    return_instead(monkeypatch, rewards="x")
    with pytest.raises(EnvironmentFailedError, match="the reward is"):
        coterie.evaluate(run, episodes=2)

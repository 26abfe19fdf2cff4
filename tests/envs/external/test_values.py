"""Values of rewards and end flags: other types are one line in every interface, and global settings are restored."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import coterie
from coterie.core.errors import EnvironmentFailedError, NonFiniteError
from coterie.core.types import Action
from coterie.envs.contract.vector import GlobalSettings, VectorEnv, reset_env, step_env
from coterie.envs.external.returned import WrongReturn, to_flag, to_flags, to_number, to_numbers
from coterie.envs.make import make
from gymnasium_worlds import played

HERE = __name__
SPACE = spaces.Box(-1, 1, (2,))
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


class Single(gymnasium.Env):
    """Returns `values` in place of reward, terminated and truncated."""

    observation_space, action_space = SPACE, spaces.Discrete(2)
    values: ClassVar[dict[str, Any]] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.age += 1
        values = {"reward": 1.0, "terminated": self.age == 7, "truncated": False} | self.values
        return np.zeros(2, np.float32), *values.values(), {}


class Several:
    """The same with two agents, of which one returns `Single.values`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        self.possible_agents, self.agents, self.one = ["a_0", "a_1"], [], Single()

    def observation_space(self, agent: str) -> spaces.Space:
        return SPACE

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, self.one.reset(seed=seed)[0]), {}

    def step(self, actions: Any) -> tuple[dict, ...]:
        seen, *values, _ = self.one.step(0)
        plain = 1.0, self.one.age == 7, False
        if plain[1]:
            self.agents = []
        return (
            dict.fromkeys(self.possible_agents, seen),
            *({"a_0": usual, "a_1": value} for usual, value in zip(plain, values, strict=True)),
            {},
        )

    def close(self) -> None:
        pass


@pytest.mark.parametrize("interface", ["Single", "Several"])
@pytest.mark.parametrize(
    ("part", "value"),
    [("reward", "1.0"), ("terminated", float("nan")), ("truncated", 2)],
)
def test_a_wrong_value_is_one_line_that_names_the_agent(
    part: str, value: Any, interface: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Single, "values", {part: value})
    env = make(f"{HERE}:{interface}", num_envs=2)
    env.reset(0)
    with pytest.raises(Exception, match=r"reward|terminat|truncat") as error:
        list(played(env, 3))
    assert "\n" not in str(error.value)
    assert ("a_1" in str(error.value)) == (interface == "Several")


@pytest.mark.parametrize("interface", ["Single", "Several"])
def test_returns_are_right_for_values_of_other_libraries(interface: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Single, "values", {"reward": torch.tensor([1.0], requires_grad=True), "truncated": np.array(0)})
    env = make(f"{HERE}:{interface}", num_envs=1)
    env.reset(0)
    steps = [step_env(env, actions_of(env))[0] for _ in range(7)]
    assert sum(float(step.reward[0, -1]) for step in steps) == 7
    assert [bool(step.episode_terminated) for step in steps] == [False] * 6 + [True]


@pytest.mark.parametrize("reward", [3e38, -1e16])
def test_an_absurd_reward_is_named_instead_of_the_learning_rate(
    reward: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Single, "values", {"reward": reward})
    with np.errstate(over="ignore"), pytest.raises(NonFiniteError, match="the reward is") as error:
        coterie.train(algo="ippo", env=Single, steps=400, num_envs=2, progress="off", out=str(tmp_path / "run"))
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

    def __init__(self) -> None:
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
    settings = {"eval": {"every": 0}, "log": {"tensorboard": False}, "algo.rollout_length": 10, "env.episode_limit": 7}
    run = coterie.train(
        algo="ppo", env=Changing, steps=40, num_envs=1, progress="off", threads=1, out=str(tmp_path / "run"), **settings
    )
    assert coterie.evaluate(run, episodes=2)["teams"]["agent"]["return_mean"] == 7
    monkeypatch.setattr(Single, "values", {"reward": "x"})
    with pytest.raises(EnvironmentFailedError, match="the reward is"):
        coterie.evaluate(run, episodes=2)

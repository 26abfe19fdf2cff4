"""Actions of every space reach the environment in its own form, in training, evaluation, players and exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import AECEnv

import coterie
from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec
from coterie.envs.contract.traces import random_actions
from coterie.envs.external.batched_spaces import BatchActuator
from coterie.envs.external.mask_sources import as_mask
from coterie.envs.external.spaces import Actuator, space_entry
from coterie.envs.make import make
from coterie.export.portable.native_actions import native_action
from coterie.export.portable.player import Player
from coterie.export.portable.policy_files import PolicyError
from tinyruns import shorten_checks

INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
SPACES: dict[str, spaces.Space] = {
    "multi_binary": spaces.MultiBinary(3),
    "multi_binary_2d": spaces.MultiBinary([2, 2]),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [-2, 0]]),
    "number": spaces.Box(-3, 5, (), np.float32),
    "matrix": spaces.Box(-3, 5, (2, 2), np.float64),
    "integers": spaces.Box(-2, 2, (3,), np.int64),
    "flags": spaces.Box(0, 1, (2,), np.bool_),
    "nested": spaces.Dict(
        {
            "b": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Dict({"x": spaces.Box(0, 9, (2,), np.uint8)})]),
            "a": spaces.MultiBinary(2),
            "c": spaces.Box(0, 1, (0,), np.int8),
        }
    ),
    "nothing": spaces.Dict(
        {"a": spaces.Box(-1, 1, (0,)), "b": spaces.Discrete(2), "c": spaces.Box(0, 1, (0,), np.int8)}
    ),
    "tuple": spaces.Tuple([spaces.Tuple([spaces.Discrete(2)]), spaces.Box(-1, 1, ()), spaces.MultiDiscrete([2, 2])]),
}


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spaces show at once."""
    shorten_checks(monkeypatch)


class Strict(gymnasium.Env):
    """Refuses actions that are not in its space, and rewards nothing."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, kind: str = "number"):
        self.action_space = SPACES[kind]
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        require(self.action_space, action)
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time >= 5, False, {}


def require(space: spaces.Space, action: Any) -> None:
    """Raises a TypeError unless an action has the form of the space's samples and is contained in it."""
    form, expected = form_of(action), form_of(space.sample())
    if form != expected or not space.contains(action):
        raise TypeError(f"{action!r} of the form {form}, expected {expected}")


def form_of(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: form_of(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(form_of(part) for part in action)
    return ("int",) if isinstance(action, int | np.integer) else (str(action.dtype), action.shape)


def draws(space: spaces.Space, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns random choices [number, K] and numbers [number, C]."""
    spec, generator = ActionSpec.of(space), np.random.default_rng(0)
    picks = np.stack([generator.integers(n, size=number) for n in spec.choices] or [np.zeros((number, 0))], -1)
    picks = picks.reshape(number, -1).astype(np.int64)
    return picks, generator.uniform(-1.1, 1.1, (number, spec.continuous)).astype(np.float32)


@pytest.mark.parametrize("kind", SPACES)
def test_native_actions_of_all_converters_are_equal(kind: str):
    space = SPACES[kind]
    picks, numbers = draws(space, 50)
    batch, portable = BatchActuator(space)(picks, numbers), json.loads(json.dumps(space_entry(space, bounds=True)))
    for i, native in enumerate(Actuator(space)(picks, numbers)):
        require(space, native)
        exported = native_action(portable, {"discrete": list(picks[i]), "continuous": list(numbers[i])})
        require(space, exported)
        for other in (exported, at(batch, i)):
            np.testing.assert_equal(other, native)


def at(batch: Any, i: int) -> Any:
    if isinstance(batch, dict):
        return {key: at(part, i) for key, part in batch.items()}
    return tuple(at(part, i) for part in batch) if isinstance(batch, tuple) else batch[i]


@pytest.mark.parametrize("dtype", [*INTEGERS, np.bool_])
def test_integers_of_every_type_have_equal_shares_and_exact_ends(dtype: Any):
    info = None if dtype is np.bool_ else np.iinfo(dtype)
    low, high = (0, 1) if info is None else (max(info.min, -2), 2)
    grid = np.linspace(-1, 1, 2001, dtype=np.float32)[:, None]
    for space in (spaces.Box(low, high, (1,), dtype), spaces.Box(low, high, (), dtype)):
        found = np.concatenate([np.ravel(x) for x in Actuator(space)(None, grid)])
        counts = np.unique(found, return_counts=True)[1]
        assert found.dtype == dtype
        assert len(counts) == high - low + 1
        assert counts.max() - counts.min() <= 2  # a number at the edge of two shares
    if info is not None:
        everything = spaces.Box(info.min, info.max, (1,), dtype)
        ends = np.array([[-1], [1], [-7], [7]], np.float32)
        for found in (Actuator(everything)(None, ends), BatchActuator(everything)(np.zeros((4, 0)), ends)):
            assert [int(x[0]) for x in found] == [info.min, info.max] * 2
        portable = space_entry(everything, bounds=True)
        found = [native_action(portable, {"continuous": [x]}) for x in ends[:, 0]]
        assert [int(x[0]) for x in found] == [info.min, info.max] * 2
        middle = Actuator(everything)(None, np.array([[0.5]], np.float32))[0]
        assert float(middle[0]) == pytest.approx(info.min + 0.75 * (float(info.max) - info.min), rel=0.02)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_converters_agree_on_every_integer_of_the_widest_spaces(dtype: Any):
    """Float64 cannot hold these bounds of 64 bits."""
    info = np.iinfo(dtype)
    space = spaces.Box(info.min + 3, info.max - 5, (3,), dtype)
    numbers = draws(space, 200)[1]
    batch, portable = BatchActuator(space)(np.zeros((200, 0)), numbers), space_entry(space, bounds=True)
    for i, native in enumerate(Actuator(space)(None, numbers)):
        exported = native_action(portable, {"discrete": [], "continuous": list(numbers[i])})
        assert native.tolist() == exported.tolist() == batch[i].tolist()
        assert native.dtype == exported.dtype == batch.dtype == dtype


class Turns(AECEnv):
    """Two agents act in turn for 8 steps each, and record their actions."""

    metadata: dict[str, Any] = {"name": "turns_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.possible_agents, self.taken = kind, ["a_0", "a_1"], []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return SPACES[self.kind]

    def observe(self, agent: str) -> np.ndarray:
        return np.zeros(2, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.time = list(self.possible_agents), 0
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations = self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        require(SPACES[self.kind], action)
        self.taken.append(action)
        self.time += 1
        self.terminations = dict.fromkeys(self.agents, self.time == 16)
        self.agent_selection = self.agents[self.time % 2]


def leaves(action: Any) -> list[Any]:
    """Numbers of an action, in order."""
    if isinstance(action, dict | tuple):
        return [x for part in (action.values() if isinstance(action, dict) else action) for x in leaves(part)]
    return np.ravel(action).tolist()


@pytest.mark.parametrize("kind", SPACES)
def test_agents_that_take_turns_have_all_choices_besides_waiting(kind: str, monkeypatch: pytest.MonkeyPatch):
    """The second choice of a MultiBinary was taken for waiting, and never made."""
    game = Turns(kind)
    monkeypatch.setattr(f"{__name__}.turns", lambda: game, raising=False)
    env, generator = make(f"{__name__}:turns", {}, num_envs=1), torch.Generator().manual_seed(0)
    timestep = env.reset()
    for _ in range(150):
        timestep = env.step(random_actions(env.spec, timestep, generator))[1]
    space, spec = SPACES[kind], ActionSpec.of(SPACES[kind])
    seen = [set(column) for column in zip(*map(leaves, game.taken), strict=True)]
    expected = [set(column) for column in zip(*(leaves(space.sample()) for _ in range(300)), strict=True)]
    assert len(seen) == len(spec.choices) + spec.continuous
    assert all(ours == theirs for ours, theirs in zip(seen, expected, strict=True) if len(theirs) < 8)
    assert spec.choices or all(len(ours) > 1 for ours in seen)


@pytest.mark.slow
def test_runs_players_and_exports_act_in_the_form_of_the_space(tmp_path: Path):
    kind = "nested"
    env = f"{__name__}:{kind}"
    settings: dict[str, Any] = {"hidden_sizes": [4], "rollout_length": 5, "num_minibatches": 1, "epochs": 1}
    run = coterie.train(
        algo="ppo", env=env, steps=20, num_envs=2, threads=1, device="cpu", progress="off", out=str(tmp_path / "run"),
        log={"tensorboard": False}, **{f"algo.{key}": value for key, value in settings.items()},
    )  # fmt: skip
    assert coterie.evaluate(run, episodes=2)["teams"]["agent"]["return_mean"] == 5
    space = SPACES[kind]
    require(space, coterie.load(run).player().act(np.zeros(2, np.float32)))
    require(space, coterie.load(run).player(mode="sample").act({"agent": np.zeros(2, np.float32)})["agent"])
    assert main(["export", str(tmp_path / "run"), "--format", "numpy", "--out", str(tmp_path / "export")]) == 0
    require(space, Player(tmp_path / "export", mode="sample").act(np.zeros(2, np.float32)))


def __getattr__(name: str) -> Any:
    """Factories of `Strict` by kind, for `env=MODULE:KIND`."""
    if name in SPACES:
        return lambda: Strict(name)
    raise AttributeError(name)


MASKS = [[float("nan"), 1, 1], [2, 1, 0], [-1, 0, 1], ["1", "0", "1"], [0.5, 1, 1]]


class Masked(gymnasium.Env):
    """Masks the second action at first."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {"action_mask": np.array([1, 0, 1])}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(2, np.float32), 1.0, False, False, {"action_mask": np.ones(3)}


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_masks_of_other_values_than_0_and_1_are_refused(mask: list[Any]):
    with pytest.raises(UserError, match=r"an action mask (holds|of type)") as error:
        as_mask(mask)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mask", [[1, 0, 1], [True, False, True], [1.0, 0.0, 1.0]], ids=str)
def test_masks_of_0_and_1_of_any_type_are_read(mask: list[Any]):
    assert as_mask(mask).tolist() == [True, False, True]


def test_players_refuse_masks_of_other_values(tmp_path: Path):
    run = coterie.train(
        algo="ppo", env=Masked, steps=8, num_envs=1, threads=1, device="cpu", progress="off", eval={"every": 0},
        log={"tensorboard": False}, out=str(tmp_path / "run"), **{"env.episode_limit": 4, "algo.rollout_length": 4},
    )  # fmt: skip
    assert (
        main(["export", str(tmp_path / "run"), "--format", "numpy", "--out", str(tmp_path / "export"), "--trust"]) == 0
    )
    zeros = np.zeros(2, np.float32)
    for player in (coterie.load(run).player(), Player(tmp_path / "export")):
        assert player.act(zeros, [0, 0, 1]) == 2
        for mask in ([0.0, -1e9, 0.0], [2, 0, 0], [0.5, 1, 1]):
            with pytest.raises((UserError, PolicyError), match=r"action_mask of 'agent'.* holds"):
                player.act(zeros, mask)


class Blind(Strict):
    """Observes nothing."""

    observation_space = spaces.Box(0, 1, (0,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(0, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(0, np.float32), *super().step(action)[1:]


def test_an_observation_of_no_numbers_is_checked(capsys: pytest.CaptureFixture[str]):
    assert main(["check-env", f"{__name__}:Blind"]) == 0
    assert "nothing" in capsys.readouterr().out

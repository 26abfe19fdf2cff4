"""What the check refuses is what training refuses, for spaces and for values."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.checks.environment.rules import INTERFACE_RULES
from coterie.commands.check import check_env
from coterie.core.errors import ReportedError, UserError
from coterie.envs.external.spaces import Observer
from coterie.envs.external.spaces_fit import observation_problems
from tinyruns import shorten_checks, tiny

HERE = __name__
TWO, BITS, COLOR = spaces.Box(-1, 1, (2,)), spaces.MultiBinary(3), spaces.Box(0, 255, (9, 9, 3), np.uint8)
ARM = spaces.Dict(grip=spaces.Discrete(3), force=TWO)


def with_mask(mask: spaces.Space = BITS, **parts: spaces.Space) -> spaces.Dict:
    return spaces.Dict(parts | {"action_mask": mask})


OBSERVATIONS: dict[str, spaces.Space] = {
    "number": spaces.Box(-1, 1, ()),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "integers": spaces.Box(-5, 5, (2,), np.int64),
    "color": COLOR,
    "discrete": spaces.Discrete(4, start=-2),
    "one": spaces.Discrete(1),
    "multi": spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "multi matrix": spaces.MultiDiscrete([[2, 3], [2, 2]]),
    "bits": spaces.MultiBinary([2, 2]),
    "dict": spaces.Dict(a=TWO, b=spaces.Discrete(3), c=COLOR),
    "nested dict": spaces.Dict(a=ARM, b=TWO),
    "tuple of dicts": spaces.Tuple([ARM, spaces.Discrete(2)]),
    "empty dict": spaces.Dict({}),
    "tuple": spaces.Tuple([TWO, spaces.Discrete(3)]),
    "empty tuple": spaces.Tuple([]),
    "text": spaces.Text(3),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
    "one of": spaces.OneOf([spaces.Discrete(2), TWO]),
    "tuple of sequences": spaces.Tuple([spaces.Sequence(TWO), TWO]),
    "mask": with_mask(observation=TWO),
    "mask beside a dict": with_mask(observation=ARM),
    "mask beside sensors": with_mask(a=TWO, b=spaces.Discrete(2)),
    "mask beside text": with_mask(observation=spaces.Text(3)),
    "mask of numbers": with_mask(spaces.Box(0, 1, (3,)), observation=TWO),
    "mask of another size": with_mask(spaces.MultiBinary(4), observation=TWO),
    "mask alone": with_mask(),
}
ACTIONS: dict[str, spaces.Space] = {
    "one": spaces.Discrete(1),
    "discrete": spaces.Discrete(3, start=2),
    "multi": spaces.MultiDiscrete([2, 3], start=[1, 2]),
    "multi matrix": spaces.MultiDiscrete([[2, 3], [2, 2]]),
    "number": spaces.Box(-1, 1, ()),
    "integers": spaces.Box(-2, 2, (2,), np.int64),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "huge": spaces.Box(-3e38, 3e38, (1,)),
    "nothing": spaces.Box(-1, 1, (0,)),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict(a=spaces.Discrete(2), b=TWO),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Tuple([TWO, spaces.MultiBinary(2)])]),
    "empty tuple": spaces.Tuple([]),
    "text": spaces.Text(3),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
}
PAIRS = ("mask beside a dict", "text", "mask of another size", "empty tuple", "unbounded")
"""Spaces that agents of PettingZoo have, too."""


class Sampled(gymnasium.Env):
    """Observations are samples, with masks that allow everything."""

    def __init__(self, observes: str = "", acts: str = ""):
        self.observation_space = copy.deepcopy(OBSERVATIONS.get(observes, TWO))
        self.action_space = copy.deepcopy(ACTIONS.get(acts, spaces.Discrete(3)))

    def seen(self) -> Any:
        sample = self.observation_space.sample()
        if isinstance(sample, dict) and "action_mask" in sample:
            sample["action_mask"] = np.ones_like(sample["action_mask"])
        return sample

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.age = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.age += 1
        return self.seen(), 1.0, self.age == 5, False, {}


class Pair:
    """Two of them with PettingZoo's interface."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    possible_agents = ("a_0", "a_1")

    def __init__(self, observes: str = "", acts: str = ""):
        self.envs = {agent: Sampled(observes, acts) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space:
        return self.envs[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self.envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        observations = {agent: self.envs[agent].reset(seed=seed)[0] for agent in self.agents}
        return observations, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        results = [self.envs[agent].step(actions[agent]) for agent in self.agents]
        parts = tuple(dict(zip(self.agents, part, strict=True)) for part in zip(*results, strict=True))
        self.agents = [] if parts[2]["a_0"] else self.agents
        return parts

    def close(self) -> None:
        pass


def sampled(observes: str = "", acts: str = "") -> Any:
    return Sampled(observes, acts)


def pair(observes: str = "", acts: str = "") -> Any:
    return Pair(observes, acts)


def cases() -> list[Any]:
    every = [("observes", name) for name in OBSERVATIONS] + [("acts", name) for name in ACTIONS]
    return [
        pytest.param(kind, key, name, id=f"{kind}-{key}-{name}")
        for kind in ("sampled", "pair")
        for key, name in every
        if kind == "sampled" or name in PAIRS
    ]


@pytest.mark.parametrize(("kind", "key", "name"), cases())
def test_the_check_accepts_an_environment_if_and_only_if_training_starts(
    kind: str, key: str, name: str, monkeypatch: pytest.MonkeyPatch
):
    shorten_checks(monkeypatch)
    words = (f"env={HERE}:{kind}", f"env.{key}={name}", "algo=ippo", "num_envs=1", "algo.epochs=1")
    try:
        parts = build(resolve(tiny(*words, "algo.num_minibatches=1")).config)
        try:
            for team, rollout in parts.collector.advance(6)[0].items():
                parts.algorithms[team].update(rollout, 0.0)
        finally:
            parts.close()
        trained, said = True, ""
    except ReportedError as error:
        trained, said = False, str(error)
    report = check_env(f"{HERE}:{kind}", **{key: name})
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert report.ok == trained, (said, errors)


PICTURE = np.zeros((9, 9, 3), np.uint8)
VALUES: list[tuple[spaces.Space, Any]] = [
    *((TWO, value) for value in (None, "x", 1.0, np.zeros(3), np.zeros((1, 2)), [0.0, 0.0], (0, 0), np.zeros(2, int))),
    (TWO, np.zeros(1)),
    *((spaces.Box(-1, 1, (2, 3)), np.zeros(shape)) for shape in ((2, 3), (3, 2), (6,), (1, 2, 3), ())),
    *((spaces.Box(-1, 1, ()), value) for value in (0.5, np.zeros(1), np.zeros((1, 1)), np.zeros(2), None)),
    *((spaces.Box(-1, 1, (1,)), value) for value in (0.5, np.zeros(1), np.zeros((1, 1)))),
    *((spaces.Box(-5, 5, (2,), np.int64), np.array(value)) for value in ([1, 2], [0.5, 1.0], [True, False])),
    *((COLOR, value) for value in (PICTURE, PICTURE + 0.0, PICTURE + 0.5, PICTURE[..., 0], PICTURE.astype(int))),
    *((spaces.Discrete(4), value) for value in (0, 3, 4, -1, 2.0, 2.5, None, "1", np.int64(1), np.zeros(1, int))),
    *((spaces.Discrete(4, start=2), value) for value in (0, 2, 5, 6, True, np.zeros(2, int))),
    *((spaces.MultiDiscrete([2, 3]), value) for value in ([1, 2], [2, 0], [0, -1], [0.0, 1.0], [0.5, 0], 1, [0, 0, 0])),
    *((spaces.MultiDiscrete([[2, 3], [2, 2]]), np.zeros(shape, int)) for shape in ((2, 2), (4,), (1, 4))),
    *((BITS, value) for value in ([0, 1, 1], [0, 1, 2], [0.0, 1.0, 1.0], [True, False, True], [0, 1], None)),
    *((spaces.MultiBinary([2, 2]), np.zeros(shape, int)) for shape in ((2, 2), (4,), (1, 4))),
    *((ARM, value) for value in ({"grip": 1, "force": [0, 0]}, {"grip": 1}, {"grip": 5, "force": [0, 0]}, [1], None)),
    *((spaces.Tuple([TWO, BITS]), value) for value in (([0, 0], [0, 1, 1]), ([0, 0],), [[0, 0], [1, 1, 1]], None, 3)),
]


@pytest.mark.parametrize(("space", "value"), VALUES, ids=str)
def test_a_value_is_refused_by_the_check_if_and_only_if_training_refuses_it(space: spaces.Space, value: Any):
    found = [rule for rule, _ in observation_problems(space, value) if INTERFACE_RULES[rule].severity == "error"]
    try:
        for sensor in Observer(space).sensors:
            sensor.write(np.zeros(sensor.space.shape, sensor.space.dtype), value)
        written = True
    except UserError:
        written = False
    assert written == (not found), found

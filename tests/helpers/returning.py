"""Environments of one and of two agents whose `reset` or `step` returns something wrong, by the name of the fault."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SPACE = spaces.Box(-1, 1, (2,))
PARTS = ("observations", "rewards", "terminations", "truncations", "infos")
SHAPES: dict[str, Any] = {"none": None, "false": False, "true": True, "number": 0, "text": "x", "list": [0, 0]}
SHAPES["array"] = np.zeros(2)


class Single(gymnasium.Env):
    """Returns `reset` or `step` with a fault."""

    observation_space, action_space = SPACE, spaces.Discrete(2)

    def __init__(self, fault: str):
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        pair = self.np_random.random(2, np.float32), {}
        return RESETS[self.fault](*pair) if self.fault in RESETS else pair

    def step(self, action: Any) -> Any:
        self.age += 1
        result = self.np_random.random(2, np.float32), 1.0, self.age == 4, False, {}
        return STEPS[self.fault](*result) if self.fault in STEPS else result


class Several:
    """The same with two agents."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    possible_agents: Any = ["a_0", "a_1"]  # noqa: RUF012

    def __init__(self, fault: str):
        self.fault, self.one = fault, Single("")

    def observation_space(self, agent: str) -> Any:
        return SPACE

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a_0", "a_1"]
        pair = [dict.fromkeys(self.agents, part) for part in self.one.reset(seed=seed)]
        return RESETS[self.fault](*pair) if self.fault in RESETS else tuple(pair)

    def step(self, actions: Any) -> Any:
        parts = {name: dict.fromkeys(self.agents, part) for name, part in zip(PARTS, self.one.step(0), strict=True)}
        self.agents = [] if parts["terminations"]["a_0"] else self.agents
        if self.fault in STEPS:
            return STEPS[self.fault](*parts.values())
        name, _, shape = self.fault.partition(" ")
        return tuple((parts | {name: SHAPES[shape]}).values() if shape else parts.values())

    def close(self) -> None:
        pass


RESETS: dict[str, Any] = {
    "reset of nothing": lambda o, i: None,
    "reset of text": lambda o, i: "begun",
    "reset of a number": lambda o, i: 1,
    "reset of the observation": lambda o, i: o,
    "reset of three": lambda o, i: (o, i, i),
    "reset of a list of infos": lambda o, i: (o, []),
    "reset of a true info": lambda o, i: (o, True),
    "reset of two numbers": lambda o, i: (0.1, 0.2),
    "reset of two floats in a list": lambda o, i: [np.float32(0.1), np.float32(0.2)],
}
STEPS: dict[str, Any] = {
    "step of nothing": lambda *parts: None,
    "step of the observation": lambda o, *_: o,
    "step of four": lambda o, r, t, c, i: (o, r, t, i),
    "step of six": lambda *parts: (*parts, 0),
    "step of a dict": lambda *parts: dict(zip(PARTS, parts, strict=True)),
    "step with a list of infos": lambda o, r, t, c, i: (o, r, t, c, [i]),
}
"""By fault, what is returned instead of the given parts. Tests add faults of their own."""


def single(fault: str = "") -> Any:
    return Single(fault)


def several(fault: str = "") -> Any:
    return Several(fault)

"""Environments with one agent whose action masks are at different places. Illegal actions raise an AssertionError."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

PLACES = ("info", "observation", "sensors", "nested", "renamed", "action_masks", "action_mask", "attribute")
"""Places of the mask. The first observed number is the age of the environment over all episodes, its `phase`."""
SHOWN = ("observation", "sensors", "nested", "renamed")
"""Places within the observation."""
PHASE = spaces.Box(0, np.inf, (2,), np.float32)


def mask_of(phase: int, multi: bool) -> np.ndarray:
    """The mask of a phase: one of three choices is illegal, and with two components one of two."""
    third = [i != phase % 3 for i in range(3)]
    return np.array([phase % 2, (phase + 1) % 2, *third] if multi else third, np.int8)


class Masked(gymnasium.Env):
    """An episode has 5 steps; every step earns 1.

    Args:
        place: Place of the mask.
        multi: Two components, of 2 and 3 choices.
        split: The mask has one array per component.
        parts: The components are parts of a Dict, and so are those of the mask.
        late: First phase with a mask.
        gap: Every so many phases have none.
    """

    def __init__(
        self, place: str = "info", multi: bool = False, split: bool = False, late: int = 0, gap: int = 0,
        parts: bool = False,
    ):  # fmt: skip
        self.place, self.multi, self.split, self.late, self.gap, self.parts = place, multi, split, late, gap, parts
        self.action_space: Any = spaces.MultiDiscrete([2, 3]) if multi else spaces.Discrete(3)
        bits: Any = spaces.MultiBinary(5 if multi else 3)
        if split:
            bits = spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])
        if parts:
            speed, pair = spaces.Box(-1, 1, (1,)), spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])
            self.action_space = spaces.Dict({"speed": speed, "pair": pair, "turn": spaces.Discrete(3, start=1)})
            bits = spaces.Dict({"turn": spaces.MultiBinary(3), "pair": spaces.Tuple([spaces.MultiBinary(2)])})
        self.observation_space = {
            "observation": spaces.Dict({"observation": PHASE, "action_mask": bits}),
            "sensors": spaces.Dict({"action_mask": bits, "pos": PHASE, "vel": PHASE}),
            "nested": spaces.Dict({"observation": spaces.Dict({"pos": PHASE, "vel": PHASE}), "action_mask": bits}),
            "renamed": spaces.Dict({"pos": PHASE, "action_mask": bits}),
        }.get(place, PHASE)
        self.phase = self.age = 0

    def mask(self) -> Any:
        flat = mask_of(self.phase, self.multi)
        if self.parts:
            return {"turn": flat[2:], "pair": (flat[:2],) if self.place in SHOWN else (flat[:2], None)}
        return (flat[:2], flat[2:]) if self.split else flat

    def seen(self) -> Any:
        at = np.array([self.phase, self.age], np.float32)
        by_place: dict[str, Any] = {
            "observation": {"observation": at},
            "sensors": {"pos": at, "vel": at},
            "nested": {"observation": {"pos": at, "vel": at}},
            "renamed": {"pos": at},
        }
        return by_place[self.place] | {"action_mask": self.mask()} if self.place in by_place else at

    def info(self) -> dict[str, Any]:
        shows = self.place == "info" and self.phase >= self.late and not (self.gap and self.phase % self.gap == 1)
        return {"action_mask": self.mask()} if shows else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.phase, self.age = (0 if seed is not None else self.phase + 1), 0
        return self.seen(), self.info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        if self.info() or self.place != "info":
            if self.parts:
                action = action["pair"][0], action["turn"] - 1
            flat = [action[0], 2 + action[1]] if self.multi else [action]
            assert mask_of(self.phase, self.multi)[flat].all(), f"{action} is illegal in phase {self.phase}"
        self.phase, self.age = self.phase + 1, self.age + 1
        return self.seen(), 1.0, self.age == 5, False, self.info()


class ByMethods(Masked):
    """Has the method of MaskablePPO's convention."""

    def action_masks(self) -> Any:
        return self.mask()


class ByMethod(Masked):
    """Has a method in the singular."""

    def action_mask(self) -> Any:
        return self.mask()


class ByAttribute(Masked):
    """Has the current mask as an attribute, and a method that returns the mask of a state, as Gymnasium's Taxi has."""

    @property
    def action_masks(self) -> Any:
        return self.mask()

    def action_mask(self, state: int) -> Any:
        raise AssertionError(state)


KINDS: dict[str, type[Masked]] = {"action_masks": ByMethods, "action_mask": ByMethod, "attribute": ByAttribute}


class Duck:
    """The methods of Gymnasium without its class."""

    def __init__(self, env: Masked):
        self.env, self.observation_space, self.action_space = env, env.observation_space, env.action_space

    def reset(self, seed: int | None = None) -> Any:
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def masked(
    place: str = "info", multi: bool = False, split: bool = False, wrap: str = "", late: int = 0, gap: int = 0,
    parts: bool = False,
):  # fmt: skip
    """Returns an environment; wrap: `wrapper` of Gymnasium, or `duck`."""
    env: Any = KINDS.get(place, Masked)(place, multi, split, late, gap, parts)
    if wrap == "wrapper":
        return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.TransformReward(env, lambda reward: reward), 9)
    return Duck(env) if wrap == "duck" else env


def masked_vector(
    num_envs: int,
    place: str = "info",
    multi: bool = False,
    split: bool = False,
    mode: str = "NextStep",
    gap: int = 0,
    parts: bool = False,
) -> gymnasium.vector.VectorEnv:
    """Gymnasium's vector environment of these."""
    makers = [lambda: masked(place, multi, split, gap=gap, parts=parts)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


def masked_processes(num_envs: int, place: str = "info") -> gymnasium.vector.VectorEnv:
    return AsyncVectorEnv([lambda: masked(place)] * num_envs)


def expected_masks(phase: torch.Tensor, multi: bool) -> torch.Tensor:
    """The masks of phases [...], bool [..., sum A]."""
    rows = [torch.from_numpy(mask_of(int(one), multi)).bool() for one in phase.flatten()]
    return torch.stack(rows).reshape(*phase.shape, -1)

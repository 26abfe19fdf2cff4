"""User environments with Gymnasium's interface and one seeded fault each, by name.

`coterie check-env gymnasium_faults:single env.fault=NAME` must report each of them, and nothing without a fault.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Table = dict[str, tuple[str, str, Any]]
"""By fault: the violated rule, a part of its message, and the environment."""


class Drift(gymnasium.Env):
    """A correct environment: a point drifts in a plane until it leaves a square."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space: Any = spaces.Box(-10, 10, (2,))
    action_space: Any = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.at = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen(), {}

    def step(self, action):
        self.now += 1
        self.at = self.at + 0.3 * action
        return self.seen(), self.reward(), bool(np.abs(self.at).max() > 2), False, self.info()

    def seen(self) -> Any:
        return self.at.astype(np.float32)

    def reward(self) -> Any:
        return float(-np.abs(self.at).sum())

    def info(self) -> Any:
        return {}

    def render(self) -> Any:
        return np.zeros((40, 40, 3), np.uint8)


class Bare:
    """The same environment without Gymnasium's base class."""

    def __init__(self):
        self.drift = Drift()
        self.metadata, self.render_mode = Drift.metadata, "rgb_array"
        self.observation_space, self.action_space = self.drift.observation_space, self.drift.action_space

    def reset(self, seed=None):
        return self.drift.reset(seed=seed)

    def step(self, action):
        return self.drift.step(action)

    def render(self):
        return self.drift.render()


def drift(**changes: Any) -> type[Drift]:
    return type("Changed", (Drift,), changes)


def seen(value: Any, space: Any = Drift.observation_space) -> type[Drift]:
    """value: maps the correct observation to the returned one."""
    return drift(observation_space=space, seen=lambda self: value(Drift.seen(self)))


def late(value: Any) -> type[Drift]:
    """Like `seen`, but only from the third step of an episode on."""
    return drift(seen=lambda self: value(Drift.seen(self)) if self.now > 2 else Drift.seen(self))


def brought(change: Any) -> type[Drift]:
    return drift(step=lambda self, action: change(*Drift.step(self, action)))


def begun(change: Any) -> type[Drift]:
    return drift(reset=lambda self, *, seed=None, options=None: change(*Drift.reset(self, seed=seed)))


class NoSeed(Drift):
    def reset(self):
        return Drift.reset(self)


class Wild(Drift):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=random.Random().getrandbits(20))


class Numpys(Drift):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        np.random.seed(seed)  # noqa: NPY002
        self.at = np.random.rand(2).astype(np.float32)  # noqa: NPY002
        return self.seen(), {}


class Shared(Drift):
    """Stores its state on the class."""

    places: dict[str, Any] = {}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.places["at"] = self.at
        return self.seen(), {}

    def step(self, action):
        self.at = self.places["at"]
        result = super().step(action)
        self.places["at"] = self.at
        return result


class Reusing(Drift):
    def reset(self, *, seed=None, options=None):
        self.buffer = np.zeros(2, np.float32)
        return super().reset(seed=seed)

    def seen(self):
        self.buffer[:] = self.at
        return self.buffer


class Greedy(Drift):
    def step(self, action):
        action *= 0.5
        return super().step(action)


class Closing(Drift):
    closed = False

    def close(self):
        assert not self.closed, "already closed"
        self.closed = True


class Growing(Drift):
    """The observation space grows with every step."""

    widest = 10.0

    def step(self, action):
        self.widest += 1
        self.observation_space = spaces.Box(-self.widest, self.widest, (2,))
        return super().step(action)


class Breathing(Drift):
    """The observation space differs in the middle of every episode."""

    @property
    def observation_space(self):
        return spaces.Box(-3, 3, (2,)) if getattr(self, "now", 0) == 4 else Drift.observation_space


class Tiring(Drift):
    """The action space shrinks during an episode."""

    @property
    def action_space(self):
        return spaces.Box(-0.5, 0.5, (2,)) if getattr(self, "now", 0) > 2 else Drift.action_space


class Random(Drift):
    """Environments of the same factory have different spaces."""

    made = 0

    def __init__(self):
        Random.made += 1
        self.observation_space = spaces.Box(-10, 10, (2,)) if Random.made % 2 else spaces.Box(-11, 11, (2,))


class Spaceless:
    def reset(self, seed=None):
        return np.zeros(2), {}

    def step(self, action):
        return np.zeros(2), 0.0, False, False, {}


class Foreign:
    """A space of another library, such as Gym."""


_ONE = Drift()
_NAN = np.float32("nan")

SINGLE: Table = {
    "another_kind": ("factory", "returned a dict, which has no `reset` and `step`", dict),
    "one_for_all": ("factory-reuses-env", "returned the same object", lambda: _ONE),
    "state_on_the_class": ("shared-state", "another environment is stepped in between", Shared),
    "no_spaces": ("space-missing", "has no observation_space", Spaceless),
    "a_space_of_gym": (
        "space-type",
        "is a Foreign of gymnasium_faults, expected a space of gymnasium",
        drift(observation_space=Foreign()),
    ),
    "text_observed": ("space-type", "the observation space Text", drift(observation_space=spaces.Text(3))),
    "endless_actions": ("space-type", "infinite bounds", drift(action_space=spaces.Box(-np.inf, np.inf, (2,)))),
    "text_of_actions": ("space-type", "none of Discrete", drift(action_space=spaces.Text(2))),
    "space_widens": ("space-changes", "at step 1, but was Box(-10", Growing),
    "space_of_the_moment": (
        "space-changes",
        "Box(-3.0, 3.0, (2,), float32) at step 4, but was Box(-10",
        Breathing,
    ),
    "actions_of_the_moment": ("space-changes", "action_space is Box(-0.5", Tiring),
    "space_by_instance": ("space-changes", "in another environment of the same factory", Random),
    "reset_without_seed": ("reset-signature", "reset() takes no seed", NoSeed),
    "old_reset": (
        "reset-return",
        "reset() returned an ndarray, expected the pair (observation, info): returning only the observation",
        begun(lambda observation, info: observation),
    ),
    "old_step": (
        "step-return",
        "returned 4 values, expected five (observation, reward, terminated, truncated, info): four are",
        brought(lambda o, r, t, c, i: (o, r, t, i)),
    ),
    "step_of_nothing": ("step-return", "returned None, expected five", brought(lambda *_: None)),
    "info_of_text": ("reset-return", "a tuple of 2 whose second is 'new'", begun(lambda o, i: (o, "new"))),
    "info_is_a_list": ("info-type", "step() returned info of type list", drift(info=lambda self: [])),
    "step_raises": (
        "raises",
        "step() raised KeyError: 'pond' (gymnasium_faults.py, line",
        drift(reward=lambda self: {}["pond"]),
    ),
    "observation_of_none": (
        "observation-type",
        "is a NoneType, expected an array of [2] numbers",
        seen(lambda x: None),
    ),
    "a_list": ("observation-list", "the observation is a list, expected an array", seen(lambda x: x.tolist())),
    "a_list_of_choices": (
        "observation-list",
        "the observation['b'] is a list, expected an array",
        seen(lambda x: {"b": [1, 2]}, spaces.Dict(b=spaces.MultiDiscrete([3, 3]))),
    ),
    "wrong_shape": ("observation-shape", "has the shape [1, 2], expected [2]", seen(lambda x: x[None])),
    "shape_changes": (
        "observation-shape",
        "has the shape [3], expected [2], returned by step()",
        late(lambda x: np.append(x, x[0])),
    ),
    "parts_missing": (
        "observation-keys",
        "lacks ['b']; its space names ['a', 'b']",
        seen(lambda x: {"a": x}, spaces.Dict(a=Drift.observation_space, b=spaces.Discrete(2))),
    ),
    "fractions_as_picture": (
        "observation-dtype",
        "is float32, but its space is uint8: fractions are lost",
        seen(lambda x: np.ones((4, 4, 3), np.float32) * 0.3, spaces.Box(0, 255, (4, 4, 3), np.uint8)),
    ),
    "double_precision": ("observation-precision", "is float64, but its space is float32", seen(np.float64)),
    "nan_observed": ("observation-finite", "contains NaN or infinity", late(lambda x: x * _NAN)),
    "out_of_range": ("observation-range", "outside of Box(-10.0, 10.0", late(lambda x: x + 12)),
    "discrete_out_of_range": (
        "observation-range",
        "is 7, outside of Discrete(3)",
        seen(lambda x: 7, spaces.Discrete(3)),
    ),
    "observation_reused": ("observation-reused", "the observation of step 0 changed during later steps", Reusing),
    "action_changed": ("action-modified", "modified the action", Greedy),
    "reward_of_none": (
        "reward-type",
        "the reward is a NoneType (None), expected a number",
        drift(reward=lambda self: None),
    ),
    "reward_is_an_array": ("reward-type", "is a ndarray of shape [1]", drift(reward=lambda self: np.ones(1))),
    "reward_is_nan": ("non-finite", "the reward is nan", drift(reward=lambda self: float("nan"))),
    "reward_is_infinite": ("non-finite", "the reward is inf", drift(reward=lambda self: float("inf"))),
    "end_of_none": (
        "end-flag-type",
        "truncated is a NoneType (None), expected True or False",
        brought(lambda o, r, t, c, i: (o, r, t, None, i)),
    ),
    "at_once_over": (
        "one-step-episodes",
        "episodes ended with their first step",
        brought(lambda o, r, t, c, i: (o, r, True, c, i)),
    ),
    "never_over": ("no-episode-end", "no episode ended within", brought(lambda o, r, t, c, i: (o, r, False, False, i))),
    "another_life_for_a_seed": ("determinism", "differ from the reset on", Wild),
    "global_generator": ("global-rng", "the global generator of numpy", Numpys),
    "masks_of_numbers": (
        "mask-ignored",
        "info contains 'action_mask', but Box",
        begun(lambda o, i: (o, {"action_mask": [1, 1]})),
    ),
    "another_name_of_masks": (
        "mask-ignored",
        "info['legal_moves'] is not read",
        begun(lambda o, i: (o, {"legal_moves": [1]})),
    ),
    "factory_exits": ("raises", "SystemExit: 3", lambda: sys.exit(3)),
    "closes_once": ("close", "the second close() raised AssertionError: already closed", Closing),
    "picture_of_floats": (
        "render-output",
        "returned an array of float64 [9, 9, 3]",
        drift(render=lambda self: np.zeros((9, 9, 3))),
    ),
    "seed_forgotten": (
        "seed-ignored",
        "seeds 0 and 1 lead to the same",
        drift(reset=lambda self, *, seed=None, options=None: Drift.reset(self, seed=5)),
    ),
}


def single(fault: str = "") -> Any:
    """Returns a correct environment without a fault."""
    return SINGLE[fault][2]() if fault else Drift()

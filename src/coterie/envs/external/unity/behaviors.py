"""Unity behaviors as roles: names, sides, slots, spaces, and conversion of observations and actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError, nearest
from coterie.core.specs import RoleSpec
from coterie.envs.external.spaces import Observer

_VECTOR = "numbers"
"""Name of the sensor that concatenates all vector observations, if there are images as well."""


@final
@dataclass(frozen=True)
class Behavior:
    """A Unity behavior and the role of its agents.

    Attributes:
        native: Unity's name of the behavior.
        role: The role.
        start: Index of its first slot.
        observer: Conversion of observations to arrays.
        images: For every Unity sensor the name of its image, None for vector sensors.
        continuous: Number of continuous actions.
        branches: Number of choices of every discrete action.
    """

    native: str
    role: RoleSpec
    start: int
    observer: Observer
    images: tuple[str | None, ...]
    continuous: int
    branches: tuple[int, ...]

    @property
    def slots(self) -> range:
        """Indices of the role's agents."""
        return range(self.start, self.start + self.role.n)

    def observation(self, values: Sequence[np.ndarray]) -> Any:
        """Returns the values of an agent's sensors in the form of the role's observation space."""
        vectors = [x for x, image in zip(values, self.images, strict=True) if image is None]
        images = {name: x for x, name in zip(values, self.images, strict=True) if name is not None}
        if not images:
            return np.concatenate(vectors) if len(vectors) > 1 else vectors[0]
        if not vectors:
            return images if len(images) > 1 else next(iter(images.values()))
        return {_VECTOR: np.concatenate(vectors), **images}

    def action(self, native: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns an action of the role's space as float32 [C] and int32 [K]."""
        choices, numbers = native if self.branches and self.continuous else (native, native)
        return (
            np.asarray(numbers, np.float32).reshape(-1) if self.continuous else np.zeros(0, np.float32),
            np.asarray(choices, np.int32).reshape(-1) if self.branches else np.zeros(0, np.int32),
        )

    def replace_disallowed(self, choices: np.ndarray, disallowed: np.ndarray | None) -> np.ndarray:
        """Replaces disallowed choices by the first allowed one of their branch.

        Args:
            choices: [K].
            disallowed: [sum A] bool; None if all choices are allowed.
        """
        if disallowed is None:
            return choices
        result, start = choices.copy(), 0
        for k, size in enumerate(self.branches):
            branch = disallowed[start : start + size]
            if branch[result[k]] and not branch.all():
                result[k] = int(np.argmin(branch))
            start += size
        return result

    def mask(self, disallowed: np.ndarray | None) -> np.ndarray:
        """Returns the action mask, [sum A] bool. A branch without allowed choices keeps its first one."""
        mask, start = np.ones(sum(self.branches), np.bool_) if disallowed is None else ~disallowed, 0
        for size in self.branches:
            if not mask[start : start + size].any():
                mask[start] = True
            start += size
        return mask


def behaviors(found: Sequence[Mapping[str, Any]], counts: Sequence[int], max_agents: Any) -> tuple[Behavior, ...]:
    """Returns the behaviors of a scene, ordered by side.

    Args:
        found: Descriptions by the helper.
        counts: Number of agents of each at the start.
        max_agents: Slots of every role (int) or by role; None for the number of agents at the start.

    Raises:
        UserError: For slots of unknown roles, and behaviors without observations or actions.
    """
    if not found:
        raise UserError("no agent requested a decision. Is there one whose Behavior Type is 'Default'?")
    sides = [_parse_name(description["name"]) for description in found]
    names = _role_names(sides)
    if isinstance(max_agents, Mapping):
        for name in max_agents:
            if name not in names:
                raise UserError(f"env.max_agents.{name}: there is no such role. {nearest(name, names)}")
    groups = _group_names(sides)
    result, start = [], 0
    for i in sorted(range(len(found)), key=lambda i: (sides[i][1], i)):
        slots = max_agents if isinstance(max_agents, int) else (max_agents or {}).get(names[i], max(counts[i], 1))
        result.append(_make_behavior(found[i], names[i], group=groups[i], slots=slots, start=start))
        start += slots
    return tuple(result)


def _make_behavior(description: Mapping[str, Any], name: str, *, group: str, slots: int, start: int) -> Behavior:
    image_spaces: dict[str, spaces.Space] = {}
    images: list[str | None] = []
    vector_size = 0
    for sensor in description["observations"]:
        if not sensor["image"]:
            vector_size += int(np.prod(sensor["shape"]))
            images.append(None)
            continue
        key = _make_unique(_identifier(sensor["name"]) or "picture", {*image_spaces, _VECTOR})
        image_spaces[key] = spaces.Box(0, 255, tuple(sensor["shape"]), np.uint8)
        images.append(key)
    vector = spaces.Box(-np.inf, np.inf, (vector_size,), np.float32)
    parts = {_VECTOR: vector, **image_spaces} if vector_size else image_spaces
    if not parts:
        raise UserError(f"behavior '{description['name']}' has no observations. Give its agents a sensor.")
    observer = Observer(spaces.Dict(parts) if len(parts) > 1 else next(iter(parts.values())))
    branches, continuous = tuple(description["discrete"]), int(description["continuous"])
    agents = tuple(f"{name}_{k}" for k in range(slots))
    action_space = _action_space(description["name"], continuous, branches)
    return Behavior(
        native=description["name"],
        role=RoleSpec(name, group, agents, observer.space, action_space=action_space),
        start=start,
        observer=observer,
        images=tuple(images),
        continuous=continuous,
        branches=branches,
    )


def _action_space(native: str, continuous: int, branches: tuple[int, ...]) -> spaces.Space:
    numbers = spaces.Box(-1, 1, (continuous,), np.float32)
    choices = spaces.Discrete(branches[0]) if len(branches) == 1 else spaces.MultiDiscrete(list(branches) or [1])
    if branches and continuous:
        return spaces.Tuple((choices, numbers))
    if not branches and not continuous:
        raise UserError(f"behavior '{native}' has no actions. Give it continuous actions or discrete branches.")
    return numbers if continuous else choices


# --------------------------------------------------------------------------------------------------------------- names


def _parse_name(native: str) -> tuple[str, int]:
    """Splits a name such as `Striker?team=1` into the behavior's name and the team ID."""
    name, _, query = native.partition("?")
    number = re.search(r"team=(\d+)", query)
    return _identifier(name) or "agent", int(number[1]) if number else 0


def _role_names(sides: list[tuple[str, int]]) -> list[str]:
    """The behaviors' names, with the team ID where several behaviors have the same name."""
    plain = [name for name, _ in sides]
    names: list[str] = []
    for name, team in sides:
        full = f"{name}_team{team}" if plain.count(name) > 1 else name
        names.append(_make_unique(full, set(names)))
    return names


def _group_names(sides: list[tuple[str, int]]) -> list[str]:
    """A group per team ID; a single behavior's group has its name."""
    if len({name for name, _ in sides}) == len({team for _, team in sides}) == 1:
        return [sides[0][0]]
    return [f"team{team}" for _, team in sides]


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")


def _make_unique(name: str, used: set[str]) -> str:
    k, found = 2, name
    while found in used:
        found, k = f"{name}_{k}", k + 1
    return found

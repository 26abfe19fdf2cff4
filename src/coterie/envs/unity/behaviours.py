"""Unity's behaviours as roles: names, sides, slots, spaces, and native observations and actions put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from gymnasium import spaces

from coterie.envs.adapters.spaces import Observer
from coterie.errors import UserError, nearest
from coterie.types import RoleSpec

_NUMBERS = "numbers"
"""The sensor that holds all plain numbers, where there are pictures beside them."""


@final
@dataclass(frozen=True)
class Behaviour:
    """One of Unity's behaviours and the role that its agents play.

    native: Unity's name for it; start: the first seat; pictures: by Unity's
    sensor, the name under which a picture is shown, None for plain numbers; continuous: numbers of an action; branches:
    choices of each discrete one.
    """

    native: str
    role: RoleSpec
    start: int
    observer: Observer
    pictures: tuple[str | None, ...]
    continuous: int
    branches: tuple[int, ...]

    @property
    def seats(self) -> range:
        return range(self.start, self.start + self.role.n)

    def observation(self, seen: Sequence[np.ndarray]) -> Any:
        """What one agent's sensors show, as the role's observation space has it."""
        numbers = [x for x, picture in zip(seen, self.pictures, strict=True) if picture is None]
        shown = {name: x for x, name in zip(seen, self.pictures, strict=True) if name is not None}
        if not shown:
            return np.concatenate(numbers) if len(numbers) > 1 else numbers[0]
        if not numbers:
            return shown if len(shown) > 1 else next(iter(shown.values()))
        return {_NUMBERS: np.concatenate(numbers), **shown}

    def action(self, native: Any) -> tuple[np.ndarray, np.ndarray]:
        """An action of the role's space as numbers float32 [C] and choices int32 [K]."""
        choices, numbers = native if self.branches and self.continuous else (native, native)
        return (
            np.asarray(numbers, np.float32).reshape(-1) if self.continuous else np.zeros(0, np.float32),
            np.asarray(choices, np.int32).reshape(-1) if self.branches else np.zeros(0, np.int32),
        )

    def allowed(self, choices: np.ndarray, barred: np.ndarray | None) -> np.ndarray:
        """`choices` [K], with the first one that can be made wherever another is barred [sum A]."""
        if barred is None:
            return choices
        found, at = choices.copy(), 0
        for k, size in enumerate(self.branches):
            own = barred[at : at + size]
            if own[found[k]] and not own.all():
                found[k] = int(np.argmin(own))
            at += size
        return found

    def mask(self, barred: np.ndarray | None) -> np.ndarray:
        """True where a choice can be made, [sum A]; a branch that bars all keeps its first."""
        mask, at = np.ones(sum(self.branches), np.bool_) if barred is None else ~barred, 0
        for size in self.branches:
            if not mask[at : at + size].any():
                mask[at] = True
            at += size
        return mask


def behaviours(found: Sequence[Mapping[str, Any]], counts: Sequence[int], slots: Any) -> tuple[Behaviour, ...]:
    """The behaviours that Unity showed, ordered by side.

    found: as the helper describes them; counts: agents of each that were there; slots: of every role (int), or by role.
    UserError for slots of roles that there are not, and behaviours that cannot be shown or acted on.
    """
    if not found:
        raise UserError("no agent asked for a decision: is there one whose Behavior Type is 'Default'?")
    sides = [_side(kind["name"]) for kind in found]
    names = _names(sides)
    if isinstance(slots, Mapping):
        for name in slots:
            if name not in names:
                raise UserError(f"env.max_agents.{name} is none of the roles: {nearest(name, names)}")
    groups = _groups(sides)
    made, start = [], 0
    for i in sorted(range(len(found)), key=lambda i: (sides[i][1], i)):
        count = slots if isinstance(slots, int) else (slots or {}).get(names[i], max(counts[i], 1))
        made.append(_behaviour(found[i], names[i], groups[i], count, start))
        start += count
    return tuple(made)


def _behaviour(kind: Mapping[str, Any], name: str, group: str, count: int, start: int) -> Behaviour:
    shown: dict[str, spaces.Space] = {}
    pictures: list[str | None] = []
    sizes = 0
    for sensor in kind["observations"]:
        if not sensor["picture"]:
            sizes += int(np.prod(sensor["shape"]))
            pictures.append(None)
            continue
        key = _unique(_plain(sensor["name"]) or "picture", {*shown, _NUMBERS})
        shown[key] = spaces.Box(0, 255, tuple(sensor["shape"]), np.uint8)
        pictures.append(key)
    numbers = spaces.Box(-np.inf, np.inf, (sizes,), np.float32)
    parts = {_NUMBERS: numbers, **shown} if sizes else shown
    if not parts:
        raise UserError(f"behaviour '{kind['name']}' observes nothing: give its agents a sensor")
    sees = spaces.Dict(parts) if len(parts) > 1 else next(iter(parts.values()))
    branches, continuous = tuple(kind["discrete"]), int(kind["continuous"])
    observer = Observer(sees)
    agents = tuple(f"{name}_{k}" for k in range(count))
    role = RoleSpec(name, group, agents, observer.space, _acts(kind["name"], continuous, branches))
    return Behaviour(kind["name"], role, start, observer, tuple(pictures), continuous, branches)


def _acts(native: str, continuous: int, branches: tuple[int, ...]) -> spaces.Space:
    numbers = spaces.Box(-1, 1, (continuous,), np.float32)
    choices = spaces.Discrete(branches[0]) if len(branches) == 1 else spaces.MultiDiscrete(list(branches) or [1])
    if branches and continuous:
        return spaces.Tuple((choices, numbers))
    if not branches and not continuous:
        raise UserError(f"behaviour '{native}' has no actions: give it continuous ones or branches")
    return numbers if continuous else choices


# --------------------------------------------------------------------------------------------------------------- names


def _side(native: str) -> tuple[str, int]:
    """The plain name and the team's number of `Striker?team=1`."""
    name, _, query = native.partition("?")
    number = re.search(r"team=(\d+)", query)
    return _plain(name) or "agent", int(number[1]) if number else 0


def _names(sides: list[tuple[str, int]]) -> list[str]:
    """A role's name of each: the behaviour's own, with the team's number where that alone tells two apart."""
    plain = [name for name, _ in sides]
    names: list[str] = []
    for name, team in sides:
        full = f"{name}_team{team}" if plain.count(name) > 1 else name
        names.append(_unique(full, set(names)))
    return names


def _groups(sides: list[tuple[str, int]]) -> list[str]:
    """Who is rewarded together: those of one team's number; a behaviour that is alone lends its name."""
    if len({name for name, _ in sides}) == len({team for _, team in sides}) == 1:
        return [sides[0][0]]
    return [f"team{team}" for _, team in sides]


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")


def _unique(name: str, taken: set[str]) -> str:
    k, found = 2, name
    while found in taken:
        found, k = f"{name}_{k}", k + 1
    return found

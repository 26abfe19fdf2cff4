"""Who acts in an environment of PettingZoo: agents by role, their seats, and what they see and may choose."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, final

import numpy as np
from gymnasium import spaces
from pydantic import Field

from coterie.envs.adapters.spaces import Observer
from coterie.envs.adapters.turns import with_waiting
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import UserError, nearest
from coterie.types import ActionSpec, RoleSpec

MASK = "action_mask"


class AgentsConfig(HostedConfig):
    """Keys of every environment with PettingZoo's interface; the parameters of its constructor are keys as well."""

    episode_limit: int | None = Field(None, ge=1)
    """Steps after which an episode is cut; by default the environment alone ends it."""
    roles: dict[str, str | tuple[str, ...]] | None = None
    """Roles by name, each with its agents or patterns of their names: `{hunter: adversary_*, prey: [agent_0]}`. By
    default those whose names differ in their last number only are one role."""
    max_agents: int | dict[str, int] | None = None
    """Slots of a role for agents that come and go, of every role or by its name; by default a seat for each of
    `possible_agents`."""
    mortal: bool | None = None
    """Whether agents can end before their episode does, or come later. By default yes, except for environments of
    PettingZoo that are known not to."""
    state: bool | None = None
    """Whether critics are shown what the environment's `state()` returns; by default where that is at most 10,000
    numbers."""


@final
@dataclass(frozen=True)
class Part:
    """A role and its native spaces.

    observes, acts: the environment's own; turns: the role's action space has a choice more, to wait.
    """

    role: RoleSpec
    observes: spaces.Space
    acts: spaces.Space
    observer: Observer
    turns: bool

    @property
    def shows_mask(self) -> bool:
        """Whether observations hold the mask."""
        return holds_mask(self.observes)

    def look(self) -> Callable[[Any], Any] | None:
        """What takes a native observation to the part that the observer is made for; None where that is all."""
        if not self.shows_mask:
            return None
        assert isinstance(self.observes, spaces.Dict)
        name, *others = [name for name in self.observes.spaces if name != MASK]
        return None if others else lambda seen: seen[name]


@final
@dataclass(frozen=True)
class Cast:
    """All roles of an environment.

    seats: each agent's place in the spec's order, None where agents come and go and take any that is free; masked:
    roles that show which choices they have; state: features of the state that is shown, 0 for none.
    """

    parts: tuple[Part, ...]
    seats: dict[Any, int] | None
    masked: tuple[str, ...]
    state: int
    roles: Mapping[str, tuple[str, ...]] | None

    def starts(self) -> list[int]:
        """The first seat of every part, and the number of all."""
        return np.cumsum([0, *(part.role.n for part in self.parts)]).tolist()

    def part_of(self, env: Any, agent: Any) -> int:
        """Which part an agent without a seat of its own belongs to. UserError if none."""
        group, (observes, acts) = _group(agent, self.roles), spaces_of(env, agent)
        for i, part in enumerate(self.parts):
            if part.role.group == group and part.observes == observes and part.acts == acts:
                return i
        said = f"agent '{agent}' appeared, and no role has its name and spaces"
        raise UserError(f"{said}: name its role in env.max_agents={{ROLE: N}}")


# --------------------------------------------------------------------------------------------------------------- roles


def cast_of(env: Any, infos: Mapping[Any, Any], config: AgentsConfig, turns: bool) -> Cast:
    """The cast of an environment that has just been reset.

    infos: what its reset returned; turns: agents act one after the other. UserError for keys that do not fit it.
    """
    given = None if config.roles is None else {
        name: (patterns,) if isinstance(patterns, str) else patterns for name, patterns in config.roles.items()
    }  # fmt: skip
    known = list(getattr(env, "possible_agents", None) or env.agents)
    if not known:
        raise UserError("the environment names no agents: give it `possible_agents`")
    kinds = _kinds(env, known, given)
    if given:
        for name in given.keys() - {group for group, _, _ in kinds}:
            raise UserError(f"env.roles.{name} fits no agent: {nearest(name, map(str, known))}")
        kinds = sorted(kinds, key=lambda kind: list(given).index(kind[0]))
    slots = config.max_agents
    if isinstance(slots, dict):
        kinds += [_unseen(env, name, known) for name in slots if name not in {group for group, _, _ in kinds}]
    parts, seats = [], []
    groups = [group for group, _, _ in kinds]
    for i, (group, (observes, acts), agents) in enumerate(kinds):
        name = group if groups.count(group) == 1 else f"{group}_kind{groups[: i + 1].count(group)}"
        count = slots if isinstance(slots, int) else (slots or {}).get(name, len(agents))
        names = [f"{name}_{k}" for k in range(count)] if slots else [str(agent) for agent in agents]
        parts.append(_part(RoleSpec(name, group, tuple(names), observes, acts), turns))
        seats += agents
    shows = {_group(agent, given) for agent, info in infos.items() if info and MASK in info}
    masked = tuple(
        part.role.name
        for part in parts
        if part.role.action.choices and (turns or part.shows_mask or part.role.group in shows)
    )
    size = _state_size(env, config.state)
    return Cast(tuple(parts), None if slots else {agent: k for k, agent in enumerate(seats)}, masked, size, given)


def spaces_of(env: Any, agent: Any) -> tuple[spaces.Space, spaces.Space]:
    """What an agent observes and does. UserError where the environment does not say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about older ways to name spaces, which work
        try:
            return env.observation_space(agent), env.action_space(agent)
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"the spaces of agent '{agent}' could not be had from the environment ({said})") from error


_Kind = tuple[str, tuple[spaces.Space, spaces.Space], list[Any]]


def _kinds(env: Any, agents: Iterable[Any], given: Mapping[str, tuple[str, ...]] | None) -> list[_Kind]:
    """Agents of one group with the same spaces, group by group in the order of their first agents."""
    kinds: list[_Kind] = []
    for agent in agents:
        group, has = _group(agent, given), spaces_of(env, agent)
        for other, theirs, members in kinds:
            if other == group and theirs == has:
                members.append(agent)
                break
        else:
            kinds.append((group, has, [agent]))
    order = list(dict.fromkeys(group for group, _, _ in kinds))
    return sorted(kinds, key=lambda kind: order.index(kind[0]))


def _unseen(env: Any, name: str, known: list[Any]) -> _Kind:
    """A role that `env.max_agents` names and that has no agent yet."""
    try:
        return name, spaces_of(env, f"{name}_0"), []
    except UserError as error:
        roles = {_group(agent, None) for agent in known}
        raise UserError(f"env.max_agents.{name} fits no agent: {nearest(name, roles)}") from error


_NUMBER = re.compile(r"[\W_]*\d+$")


def _group(agent: Any, given: Mapping[str, tuple[str, ...]] | None) -> str:
    """`adversary` for `adversary_3`; a role that was given by its patterns."""
    name = str(agent)
    if given is None:
        return _NUMBER.sub("", name) or "agent"
    for role, patterns in given.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return role
    raise UserError(f"env.roles names no role for agent '{name}': give it one, or a pattern like '*'")


def _part(role: RoleSpec, turns: bool) -> Part:
    """role: with native spaces. UserError for spaces that cannot be shown or acted on."""
    observes, acts = role.observation_space, role.action_space
    try:
        observer = Observer(without_mask(observes))
        acting = with_waiting(acts) if turns else acts
        ActionSpec.of(acting)
    except TypeError as error:
        raise UserError(f"role {role.name}: {error}") from error
    return Part(replace(role, observation_space=observer.space, action_space=acting), observes, acts, observer, turns)


# -------------------------------------------------------------------------------------------------- masks and states


def holds_mask(space: spaces.Space) -> bool:
    """Whether observations of a space show the mask beside something else."""
    return isinstance(space, spaces.Dict) and MASK in space.spaces and len(space.spaces) > 1


def without_mask(space: spaces.Space) -> spaces.Space:
    """The space of what is observed besides the mask."""
    if not holds_mask(space):
        return space
    assert isinstance(space, spaces.Dict)
    rest = {name: part for name, part in space.spaces.items() if name != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)


def _state_size(env: Any, wanted: bool | None) -> int:
    """Numbers of what `state()` returns; 0 where it is not wanted, or is not there."""
    if wanted is False:
        return 0
    try:
        state = np.asarray(env.state())
        size = state.size if state.dtype.kind in "biuf" else 0
    except Exception as error:  # those without a state raise all kinds of errors
        if wanted:
            raise UserError(f"env.state=true: the environment has no state() ({type(error).__name__})") from error
        return 0
    return size if wanted or size <= _LARGEST else 0


_LARGEST = 10_000
"""Numbers of a state beyond which it is taken for a picture of the screen, which critics do not read as numbers."""


@final
class Choices:
    """Native masks as the contract has them, for one role: bool [sum A] with a True in every component."""

    def __init__(self, part: Part):
        self._who, self._turns = part.role.name, part.turns
        native = ActionSpec.of(part.acts).choices
        self._size = sum(native)
        sizes = part.role.action.choices
        stops = np.cumsum(sizes, dtype=int).tolist()
        starts = [stop - size for stop, size in zip(stops, sizes, strict=True)]
        self._waits = [stop - 1 for stop in stops] if part.turns else []
        self._components = [slice(a, a + n) for a, n in zip(starts, native, strict=True)]
        self._all = np.ones(part.role.action.mask_size, np.bool_)
        self._all[self._waits] = False
        self._places = np.flatnonzero(self._all)

    def write(self, place: np.ndarray, mask: Any) -> None:
        """mask: as the environment shows it, flat or a sequence of one a component; None allows everything.

        A component that allows nothing gets its first choice. UserError for another length.
        """
        if mask is None:
            place[...] = self._all
            return
        flat = np.concatenate([np.ravel(m) for m in mask]) if isinstance(mask, tuple | list) else np.ravel(mask)
        if flat.size != self._size:
            raise UserError(
                f"the action mask of an agent of role {self._who} has {flat.size} entries: expected {self._size}"
            )
        if self._turns:
            place[...] = False
            place[self._places] = flat != 0
        else:
            np.not_equal(flat, 0, out=place)
        for component in self._components:
            if not place[component].any():
                place[component.start] = True

    def wait(self, place: np.ndarray) -> None:
        """Only to wait."""
        place[...] = False
        place[self._waits] = True

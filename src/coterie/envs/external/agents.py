"""Agents of a PettingZoo environment: roles, slots, observation and action spaces, and masks."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, final

import numpy as np
from gymnasium import spaces
from pydantic import Field

from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError, listed, message_of, nearest
from coterie.core.specs import ActionSpec, RoleSpec, declared_parts
from coterie.envs.external.aec import with_waiting
from coterie.envs.external.grouping import Grouping, Setting, group_roles
from coterie.envs.external.mask_sources import (
    MASK,
    MaskForm,
    as_mask,
    holds_mask,
    similar_note,
    source_note,
    without_mask,
)
from coterie.envs.external.returned import info_of, possible_agents, require_space
from coterie.envs.external.spaces import Observer


class AgentsConfig(ExternalEnvConfig):
    """Settings of every environment with PettingZoo's interface; the parameters of its constructor are settings as
    well.
    """

    episode_limit: int | None = Field(None, ge=1, le=10**9)
    """Maximum number of steps before truncation; by default only the environment ends episodes."""
    roles: dict[str, str | tuple[str, ...]] | None = None
    """Roles by name, each with its agents or patterns of agent names: `{hunter: adversary_*, prey: [agent_0]}`. By
    default, agents whose names differ only in their trailing number form a role.
    """
    teams: Setting = "separate"
    """Teams of roles that cooperate: `separate` for one team per name of roles, `shared` for one team `all` of all
    roles, or roles by team, `{hunters: [lead, adversary]}`. Every agent of a team that is formed here learns from the
    mean of the team's rewards, and methods that sum the rewards of a team from their sum.
    """
    max_agents: int | dict[str, int] | None = None
    """Number of slots per role for agents that join and leave, for all roles or by role name; by default one slot for
    each of `possible_agents`.
    """
    agent_order: tuple[str, ...] | None = None
    """Names of all agents in the order of their policies' parameters and ids; by default that of `possible_agents`, and
    of a run that is loaded that of its start.
    """
    agents_can_die: bool | None = None
    """Agents can terminate before their episode ends, or join later. By default true, except for PettingZoo
    environments known to have a fixed set of agents.
    """
    waiting: bool | None = None
    """Agents of RLlib's interface act in some steps only. Discrete action spaces then have one more choice, the last,
    which means to wait. By default, 100 random steps show whether an agent has to wait.
    """
    state: bool | None = None
    """Pass the environment's `state()` to critics; by default if it has at most 10,000 elements."""


@final
@dataclass(frozen=True)
class Part:
    """A role with its native spaces.

    Attributes:
        observes: Observation space of the environment.
        acts: Action space of the environment.
        turns: True if a wait action is appended to the action space of the role.
    """

    role: RoleSpec
    observes: spaces.Space
    acts: spaces.Space
    observer: Observer
    turns: bool

    @property
    def mask_in_observation(self) -> bool:
        """True if observations contain the action mask."""
        return holds_mask(self.observes)

    def extract_observation(self) -> Callable[[Any], Any] | None:
        """Function that extracts the observation from a native one; None if no extraction is needed."""
        if not self.mask_in_observation:
            return None
        assert isinstance(self.observes, spaces.Dict)
        name, *others = [name for name in self.observes.spaces if name != MASK]
        return None if others else lambda seen: seen[name]


@final
@dataclass(frozen=True)
class AgentLayout:
    """All roles of an environment.

    Attributes:
        seats: Slot of each agent in the order of the spec, None if agents join and leave and take any free slot.
        masked: Roles with action masks.
        state: Number of state features, 0 for none.
        roles: Patterns of the names of agents by role, None for roles by name.
        grouping: Groups of the roles, and the reason for them.
        notes: Sentences on the place of action masks.
    """

    parts: tuple[Part, ...]
    seats: dict[Any, int] | None
    masked: tuple[str, ...]
    state: int
    roles: Mapping[str, tuple[str, ...]] | None
    grouping: Grouping
    notes: tuple[str, ...] = ()

    def grouped_roles(self) -> tuple[RoleSpec, ...]:
        """Roles with the groups of `env.teams`. Those of `parts` are in a group of their name."""
        return tuple(replace(part.role, group=self.grouping.groups[part.role.name]) for part in self.parts)

    def starts(self) -> list[int]:
        """First slot of every role, followed by the total number of slots."""
        return np.cumsum([0, *(part.role.n for part in self.parts)]).tolist()

    def role_of(self, env: Any, agent: Any) -> int:
        """Role of an agent without a fixed slot. UserError if there is none."""
        group, (observes, acts) = _group(agent, self.roles), spaces_of(env, agent)
        for i, part in enumerate(self.parts):
            if part.role.group == group and part.observes == observes and part.acts == acts:
                return i
        said = f"agent '{agent}' joined, but no role has its name and spaces"
        raise UserError(f"{said}. Set env.max_agents={{ROLE: N}} for its role.")


# ---------------------------------------------------------------------------------------------------------------- roles


def agent_layout_of(env: Any, infos: Mapping[Any, Any], config: AgentsConfig, turns: bool) -> AgentLayout:
    """Determines the roles of an environment that has just been reset.

    Args:
        infos: Infos returned by the reset.
        turns: True if agents may have to wait for others.

    Raises:
        UserError: For settings that do not match the environment.
    """
    given = None if config.roles is None else {
        name: (patterns,) if isinstance(patterns, str) else patterns for name, patterns in config.roles.items()
    }  # fmt: skip
    known = possible_agents(env)
    if not known:
        raise UserError("the environment lists no agents. Define `possible_agents`.")
    if config.agent_order is not None and slots_are_fixed(config):
        known = _arranged(known, config.agent_order)
    kinds = _kinds(env, known, given)
    if given:
        for name in given.keys() - {group for group, _, _ in kinds}:
            raise UserError(f"env.roles.{name}: matches no agent. {nearest(name, map(str, known))}")
        kinds = sorted(kinds, key=lambda kind: list(given).index(kind[0]))
    slots = config.max_agents
    if isinstance(slots, dict):
        kinds += [_unseen(env, name, known) for name in slots if name not in {group for group, _, _ in kinds}]
    parts, seats = [], []
    grouping, named = _grouped(kinds, config)
    for name, (group, (observes, acts), agents) in named:
        count = slots if isinstance(slots, int) else (slots or {}).get(name, len(agents))
        names = [f"{name}_{k}" for k in range(count)] if slots else [str(agent) for agent in agents]
        parts.append(
            _part(
                RoleSpec(name=name, group=group, agents=tuple(names), observation_space=observes, action_space=acts),
                turns,
            )
        )
        seats += agents
    shows = {_group(agent, given) for agent in infos if MASK in info_of(infos, agent)}
    masked = tuple(
        part.role.name
        for part in parts
        if part.role.action.choices and (turns or part.mask_in_observation or part.role.group in shows)
    )
    size = _state_size(env, config.state)
    fixed_seats = None if slots else {agent: k for k, agent in enumerate(seats)}
    return AgentLayout(
        parts=tuple(parts),
        seats=fixed_seats,
        masked=masked,
        state=size,
        roles=given,
        grouping=grouping,
        notes=tuple(_mask_notes(parts, shows, infos)),
    )


def _mask_notes(parts: list[Part], shows: set[str], infos: Mapping[Any, Any]) -> Iterator[str]:
    """Yields sentences on the places that masks are read from, and on keys that look like masks and are not read."""
    places: dict[str, list[str]] = {}
    for part in parts:
        if part.role.action.choices and (part.mask_in_observation or part.role.group in shows):
            place = "observation" if part.mask_in_observation else "info"
            places.setdefault(f"{place}['{MASK}']", []).append(part.role.name)
    for place, names in places.items():
        yield source_note(place, names)
    if not places:
        keys = {key: None for part in parts if isinstance(part.observes, spaces.Dict) for key in part.observes.spaces}
        found = {key: None for agent in infos for key in info_of(infos, agent)}
        yield from similar_note(keys, found)


def spaces_of(env: Any, agent: Any) -> tuple[spaces.Space, spaces.Space]:
    """Observation and action space of an agent. UserError if the environment does not define them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings of older spellings, which still work
        try:
            found = env.observation_space(agent), env.action_space(agent)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            said = f"{type(error).__name__}: {message_of(error)}"
            raise UserError(f"the environment does not provide the spaces of agent '{agent}' ({said})") from error
    for name, space in zip(("observation_space", "action_space"), found, strict=True):
        require_space(f"{name}('{agent}')", space)
    return found


_Kind = tuple[str, tuple[spaces.Space, spaces.Space], list[Any]]


def _kinds(env: Any, agents: Iterable[Any], given: Mapping[str, tuple[str, ...]] | None) -> list[_Kind]:
    """Groups of agents with equal spaces, in the order of their first agents."""
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


def slots_are_fixed(config: AgentsConfig) -> bool:
    """True if every agent has a slot of its own; agents that join and leave take any free one."""
    return config.max_agents is None


def _arranged(known: list[Any], order: Sequence[str]) -> list[Any]:
    """Returns the agents in an order of their names. UserError if the names differ."""
    by_name = {str(agent): agent for agent in known}
    if by_name.keys() != set(order):
        raise UserError(
            f"its agents are {listed(list(by_name))}, but the run or env.agent_order has {listed(order)}. "
            "Policies belong to agents by name: give them the same names."
        )
    return [by_name[name] for name in order]


def _grouped(kinds: list[_Kind], config: AgentsConfig) -> tuple[Grouping, list[tuple[str, _Kind]]]:
    """Returns the groups of the roles, and the roles with their names, ordered by group."""
    prefixes = [group for group, _, _ in kinds]
    names = [
        group if prefixes.count(group) == 1 else f"{group}_kind{prefixes[: i + 1].count(group)}"
        for i, group in enumerate(prefixes)
    ]
    by_name = dict(zip(names, prefixes, strict=True))
    grouping = group_roles(config.teams, by_name, roles_are_set=config.roles is not None)
    order = list(dict.fromkeys(grouping.groups.values()))
    named = sorted(zip(names, kinds, strict=True), key=lambda role: order.index(grouping.groups[role[0]]))
    return grouping, named


def _unseen(env: Any, name: str, known: list[Any]) -> _Kind:
    """A role that `env.max_agents` names and that has no agent yet."""
    try:
        return name, spaces_of(env, f"{name}_0"), []
    except UserError as error:
        roles = {_group(agent, None) for agent in known}
        raise UserError(f"env.max_agents.{name}: matches no agent. {nearest(name, roles)}") from error


_NUMBER = re.compile(r"[\W_]*\d+$")


def _group(agent: Any, given: Mapping[str, tuple[str, ...]] | None) -> str:
    """Role prefix of an agent: `adversary` for `adversary_3`, or the role whose patterns match."""
    name = str(agent)
    if given is None:
        return _NUMBER.sub("", name) or "agent"
    for role, patterns in given.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return role
    raise UserError(f"env.roles: no role for agent '{name}'. Add it to a role, or use a pattern such as '*'.")


def _part(role: RoleSpec, turns: bool) -> Part:
    """Builds a role with native spaces. UserError for unsupported spaces."""
    observes, acts = role.observation_space, role.action_space
    try:
        observer = Observer(without_mask(observes))
        acting = with_waiting(acts) if turns else acts
        ActionSpec.of(acting)
    except TypeError as error:
        raise UserError(f"role {role.name}: {error}") from error
    parts = declared_parts(without_mask(observes), acting, role.name)
    adapted = replace(role, observation_space=observer.space, action_space=acting, native=observer.native, parts=parts)
    return Part(adapted, observes, acts, observer=observer, turns=turns)


# ----------------------------------------------------------------------------------------------------- masks and states


def _state_size(env: Any, requested: bool | None) -> int:
    """Number of elements of `state()`; 0 if it is not requested or not available."""
    if requested is False:
        return 0
    try:
        state = np.asarray(env.state())
        size = state.size if state.dtype.kind in "biuf" else 0
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # environments without a state raise various errors
        if requested:
            raise UserError(
                f"env.state=true: the environment has no state() method ({type(error).__name__}). Remove env.state."
            ) from error
        return 0
    return size if requested or size <= _LARGEST else 0


_LARGEST = 10_000
"""States with more elements are assumed to be screen images, which critics do not read as vectors."""


@final
class Choices:
    """Converts native masks of one role to bool [sum A] with at least one True per component."""

    def __init__(self, part: Part):
        self._role, self._turns = part.role.name, part.turns
        native = ActionSpec.of(part.acts).choices
        self._form = MaskForm(part.acts)
        sizes = part.role.action.choices
        stops = np.cumsum(sizes, dtype=int).tolist()
        starts = [stop - size for stop, size in zip(stops, sizes, strict=True)]
        self._waits = [stop - 1 for stop in stops] if part.turns else []
        self._components = [slice(a, a + n) for a, n in zip(starts, native, strict=True)]
        self._all = np.ones(part.role.action.mask_size, np.bool_)
        self._all[self._waits] = False
        self._places = np.flatnonzero(self._all)

    def write(self, place: np.ndarray, mask: Any) -> None:
        """Writes a mask in the format of the environment, as `MaskForm` takes it; None allows all actions.

        In a component without a legal action the first one is allowed. UserError for a wrong length, and for values
        besides 0 and 1.
        """
        if mask is None:
            place[...] = self._all
            return
        try:
            flat = self._form.flat(mask)
            if flat.size != self._form.size:
                raise UserError(f"an action mask has {flat.size} entries, expected {self._form.size}")
            legal = as_mask(flat)
        except UserError as error:
            raise UserError(f"role {self._role}: {error}") from None
        if self._turns:
            place[...] = False
            place[self._places] = legal
        else:
            place[...] = legal
        for component in self._components:
            if not place[component].any():
                place[component.start] = True

    def wait(self, place: np.ndarray) -> None:
        """Allows the wait action only."""
        place[...] = False
        place[self._waits] = True

"""Specifications of environments, teams, roles and action spaces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.device_constants import constant
from coterie.core.errors import UserError

LARGEST_BOUND = 1e30
"""Bounds of real numbers beyond this are taken for infinite: float32 could not hold the width of their range."""


@dataclass(frozen=True)
class ActionSpec:
    """Action space of one agent: `K` discrete components and `C` continuous numbers in [-1, 1].

    Attributes:
        choices: Number of choices of each discrete component.
        continuous: Number of continuous components `C`.
        low: Lower bounds that -1 is mapped to before an action reaches the environment.
        high: Upper bounds that 1 is mapped to.
        integer: True for components of which the environment takes integers, [C]. Each integer from `low` to `high` has
            an equal share of [-1, 1]. () if there are none.
    """

    choices: tuple[int, ...] = ()
    continuous: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    integer: tuple[bool, ...] = ()

    @cached_property
    def mask_size(self) -> int:
        """Length of an action mask, `sum A`."""
        return sum(self.choices)

    @property
    def kind(self) -> str:
        """`discrete`, `multi_discrete`, `continuous` or `hybrid`."""
        if self.choices and self.continuous:
            return "hybrid"
        if self.continuous:
            return "continuous"
        return "discrete" if len(self.choices) == 1 else "multi_discrete"

    @classmethod
    def of(cls, space: spaces.Space) -> ActionSpec:
        """Returns the spec of a Discrete, MultiDiscrete, MultiBinary or Box space, or of a Tuple or Dict of these.

        Components are in the order of the space, arrays in row-major order.

        Raises:
            TypeError: If the space is of another kind, has no component, or has infinite or empty bounds.
        """
        parts = list(leaf_specs(space))
        integer = tuple(is_integer for part in parts for is_integer in part.integer or (False,) * part.continuous)
        spec = cls(
            choices=tuple(n for part in parts for n in part.choices),
            continuous=sum(part.continuous for part in parts),
            low=tuple(x for part in parts for x in part.low),
            high=tuple(x for part in parts for x in part.high),
            integer=integer if any(integer) else (),
        )
        if not spec.choices and not spec.continuous:
            raise TypeError(f"the action space {space} has no component. An agent without a choice has Discrete(1)")
        return spec

    def width(self, component: int) -> float:
        """Returns the width of the range that [-1, 1] is mapped to; integers are one wide."""
        return self.high[component] - self.low[component] + bool(self.integer and self.integer[component])

    def to_number(self, value: float, component: int) -> float:
        """Maps a value in [-1, 1] (clipped) to the bounds of a continuous component."""
        low, high = self.low[component], self.high[component]
        share = (min(max(value, -1.0), 1.0) + 1) / 2
        if self.integer and self.integer[component]:
            return min(low + math.floor(share * self.width(component)), high)
        return low + share * (high - low)

    def from_number(self, number: float, component: int) -> float:
        """Maps a number within the bounds of a component to [-1, 1], an integer to the center of its share."""
        low, high = self.low[component], self.high[component]
        if self.integer and self.integer[component]:
            return 2 * (round(number) - low + 0.5) / self.width(component) - 1
        return 2 * (number - low) / (high - low) - 1 if high > low else 0.0


def leaf_specs(space: spaces.Space) -> Iterator[ActionSpec]:
    """Yields the specs of the parts of an action space that have no parts themselves, in order.

    Raises:
        TypeError: As `ActionSpec.of`, except for spaces without a component.
    """
    if isinstance(space, spaces.Discrete):
        yield ActionSpec(choices=(int(space.n),))
    elif isinstance(space, spaces.MultiDiscrete):
        yield ActionSpec(choices=tuple(int(n) for n in space.nvec.reshape(-1)))
    elif isinstance(space, spaces.MultiBinary):
        yield ActionSpec(choices=(2,) * math.prod(space.shape))
    elif isinstance(space, spaces.Box):
        yield _box_spec(space)
    elif isinstance(space, spaces.Tuple | spaces.Dict):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from leaf_specs(part)
    else:
        raise TypeError(
            f"the action space {space} is none of Discrete, MultiDiscrete, MultiBinary, Box, and Tuple or Dict of these"
        )


def _box_spec(space: spaces.Box) -> ActionSpec:
    low, high = (tuple(float(x) for x in bound.reshape(-1)) for bound in (space.low, space.high))
    is_integer = space.dtype is not None and space.dtype.kind in "biu"
    largest = math.inf if is_integer else LARGEST_BOUND
    if not all(abs(x) < largest for x in (*low, *high)):  # NaN too
        bounds = (*low, *high)
        reason = "infinite bounds" if any(map(math.isinf, bounds)) else f"bounds beyond {LARGEST_BOUND:g}"
        reason = "NaN as a bound" if any(map(math.isnan, bounds)) else reason
        raise TypeError(f"the action space {space} has {reason}. Give those of the numbers that the environment uses")
    if any(a > b for a, b in zip(low, high, strict=True)):
        raise TypeError(f"the action space {space} has a lower bound above its upper bound")
    size = len(low)
    return ActionSpec(continuous=size, low=low, high=high, integer=(True,) * size if is_integer else ())


@dataclass(frozen=True)
class NativeSensor:
    """A sensor in the observations that an environment of another library returns.

    Attributes:
        name: Name of the sensor in the observation space of the role; empty if it is the whole observation.
        keys: Keys that lead to it: of a Dict, or indices of a Tuple.
        space: Its space.
        channels_first: True for images [C, H, W] that are read as [H, W, C].
        grayscale: True for images whose three channels are read as one of brightness.
        resize: Height and width to which images are resized; None to keep them.
        frame_stack: Number of latest observations that are read at once.
    """

    name: str
    keys: tuple[object, ...]
    space: spaces.Space
    channels_first: bool = False
    grayscale: bool = False
    resize: tuple[int, int] | None = None
    frame_stack: int = 1


@dataclass(frozen=True)
class Entities:
    """Entities of one kind that an agent observes, and where their features are in its observation vector.

    Attributes:
        kind: `own` for the agent itself, of which there is one; any other name, such as `ally`, `enemy` or `object`.
        features: Indices of every entity's features in the observation; entities of a kind have equally many.
        choices: For every entity, the choice of the discrete action that aims at it; () if none does.
        absent: Features of an entity that does not exist or is not seen; None if all are always seen.
    """

    kind: str
    features: tuple[tuple[int, ...], ...]
    choices: tuple[int, ...] = ()
    absent: tuple[float, ...] | None = None

    @classmethod
    def rows(
        cls,
        kind: str,
        *runs: tuple[int, int],
        count: int = 1,
        choices: Iterable[int] = (),
        absent: Iterable[float] | None = None,
    ) -> Entities:
        """Returns `count` entities whose features follow one another.

        Args:
            kind: As above.
            runs: First index and number of features of one entity. Several runs are lists of features one after the
                other, such as positions of all entities and then their velocities.
            count: Number of entities.
            choices: As above.
            absent: As above.
        """
        features = tuple(
            tuple(index for start, size in runs for index in range(start + k * size, start + (k + 1) * size))
            for k in range(count)
        )
        return cls(kind, features, tuple(choices), None if absent is None else tuple(absent))

    @property
    def count(self) -> int:
        """Number of entities."""
        return len(self.features)

    @property
    def size(self) -> int:
        """Number of features of an entity."""
        return len(self.features[0]) if self.features else 0


@dataclass(frozen=True)
class ObservationParts:
    """Meaning of parts of an observation vector, for networks that use it.

    Attributes:
        entities: Kinds of entities, of which one is `own`; () if they are unknown.
        position: Indices of the agent's own position, by which the graph network finds neighbors.
        neighbors: For every agent of the team in order, the index of a number above 0 where the agent hears it.
    """

    entities: tuple[Entities, ...] = ()
    position: tuple[int, ...] = ()
    neighbors: tuple[int, ...] = ()

    def problem(self, size: int, action: ActionSpec) -> str | None:
        """Returns why the parts do not fit an observation of `size` numbers and an action space; None if they do."""
        own = [part for part in self.entities if part.kind == "own"]
        if self.entities and [part.count for part in own] != [1]:
            return "the agent itself has to be the only entity of kind 'own'"
        kinds = [part.kind for part in self.entities]
        if len(set(kinds)) < len(kinds):
            return f"a kind of entities is given twice, of {', '.join(kinds)}"
        for part in self.entities:
            if len({len(features) for features in part.features}) > 1 or (part.count and not part.size):
                return f"entities of kind '{part.kind}' need equally many features, at least one"
            if part.absent is not None and part.count and len(part.absent) != part.size:
                return f"entities of kind '{part.kind}' have {part.size} features, and {len(part.absent)} when absent"
            if part.choices and (part.count != len(part.choices) or part.kind == "own"):
                return f"{len(part.choices)} choices aim at {part.count} entities of kind '{part.kind}'"
        choices = [choice for part in self.entities for choice in part.choices]
        if choices and (len(action.choices) != 1 or not all(0 <= choice < action.mask_size for choice in choices)):
            return (
                f"choices {choices} aim at entities, and the actions are {action.kind} with {action.mask_size} choices"
            )
        indices = [i for part in self.entities for features in part.features for i in features]
        wrong = [i for i in (*indices, *self.position, *self.neighbors) if not 0 <= i < size]
        return f"there is no index {wrong[0]} in an observation of {size} numbers" if wrong else None


def declared_parts(space: spaces.Space, action_space: spaces.Space, role: str) -> ObservationParts:
    """Returns the parts that an environment of another library declares by an attribute `parts` of its observation
    space; no parts without one.

    Raises:
        UserError: If it is something else, or does not fit the spaces.
    """
    found = getattr(space, "parts", None)
    if found is None:
        return ObservationParts()
    if not isinstance(found, ObservationParts):
        raise UserError(f"role {role}: its observation space has parts={found!r}. Set coterie.ObservationParts(...).")
    size = (space.shape or (0,))[0] if len(space.shape or ()) == 1 else 0
    problem = found.problem(size, ActionSpec.of(action_space)) if size else "the observation is not a single vector"
    if problem is not None:
        raise UserError(f"role {role}: parts of its observation space: {problem}. Correct them.")
    return found


@dataclass(frozen=True)
class RoleSpec:
    """Agents of one group that share an observation space and an action space.

    Attributes:
        name: Name of the role, e.g. `adversary`.
        group: Name of the group that is rewarded together.
        agents: Names of the agents, in order.
        observation_space: Observation space of each agent.
        action_space: Action space of each agent.
        choice_names: Labels of the choices of each discrete component, for displays; () if unknown.
        number_names: Labels of the continuous components, for displays; () if unknown.
        native: Sensors as the environment returns them; () if it returns observations of `observation_space`.
        parts: Meaning of parts of the observation.
    """

    name: str
    group: str
    agents: tuple[str, ...]
    observation_space: spaces.Space
    action_space: spaces.Space
    choice_names: tuple[tuple[str, ...], ...] = ()
    number_names: tuple[str, ...] = ()
    native: tuple[NativeSensor, ...] = ()
    parts: ObservationParts = ObservationParts()

    @cached_property
    def n(self) -> int:
        """Number of agents."""
        return len(self.agents)

    @cached_property
    def action(self) -> ActionSpec:
        """Spec of the action space."""
        return ActionSpec.of(self.action_space)


@dataclass(frozen=True)
class TeamSpec:
    """One or several roles, consecutive in the environment's order, that one algorithm trains together.

    Attributes:
        name: Name of the team.
        roles: Roles of the team.
        start: First index of the team's slice of the environment's agent axis.
        stop: End of that slice.
        groups: Columns of `group_reward` that belong to the team.
        agents_can_die: True if agents can be absent or terminate before their episode ends.
        has_group_reward: True if the environment gives group rewards.
        state_sizes: Number of features of each state that the environment provides, by name.
        is_entire_env: True if the team contains all agents of the environment.
        common_reward: True if every agent learns from the reward of the whole team, as with `algo.common_reward`.
        symmetric: True if the team is one of two sides that can be exchanged.
        episode_limit: Steps after which an episode is truncated; None without a limit.
        other_roles: Roles of the environment that belong to other teams, in order.
    """

    name: str
    roles: tuple[RoleSpec, ...]
    start: int
    stop: int
    groups: tuple[int, ...]
    agents_can_die: bool
    has_group_reward: bool
    state_sizes: dict[str, int]
    is_entire_env: bool
    common_reward: bool = False
    symmetric: bool = False
    episode_limit: int | None = None
    other_roles: tuple[RoleSpec, ...] = ()

    @cached_property
    def n(self) -> int:
        """Number of agents `N`."""
        return self.stop - self.start

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in order."""
        return tuple(agent for role in self.roles for agent in role.agents)


@dataclass(frozen=True)
class EnvSpec:
    """Description of an environment. Roles are ordered by group, so that a team of whole groups is a slice.

    Attributes:
        name: Name of the environment.
        roles: Roles, ordered by group.
        state_sizes: Number of features of each entry of `Timestep.state`: `global`, and a group's own state under its
            name.
        agents_can_die: True if agents can be absent (`alive` False) or terminate before their episode ends.
        has_group_reward: True if `group_reward` is ever nonzero.
        common_reward: Groups whose agents learn from the reward of their whole team.
        grouping: Reason for the groups, as the rest of a sentence such as "2 teams, because ...".
        metrics: Names of the numbers that a step reports besides rewards, read when an episode ends.
        episode_limit: Steps after which an episode is truncated; None without a limit.
        exact_resume: True if `state_dict` holds everything needed to continue exactly.
        symmetric: True if there are two groups and the game is unchanged when they are exchanged.
        env_info: Facts for a run's manifest besides the configuration, such as the version of a game.
        notes: Sentences on how the environment is read, such as the place of its action masks.
    """

    name: str
    roles: tuple[RoleSpec, ...]
    state_sizes: dict[str, int]
    agents_can_die: bool = False
    has_group_reward: bool = False
    common_reward: tuple[str, ...] = ()
    grouping: str = "the environment rewards these groups of roles"
    metrics: tuple[str, ...] = ()
    episode_limit: int | None = None
    exact_resume: bool = True
    symmetric: bool = False
    env_info: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups in the order of their roles, which are the columns of `group_reward`."""
        return tuple(dict.fromkeys(role.group for role in self.roles))

    @cached_property
    def n(self) -> int:
        """Number of agents."""
        return sum(role.n for role in self.roles)

    @cached_property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in order."""
        return tuple(agent for role in self.roles for agent in role.agents)

    def role_slices(self) -> dict[str, slice]:
        """Returns every role's slice of the agent axis."""
        slices, start = {}, 0
        for role in self.roles:
            slices[role.name] = slice(start, start + role.n)
            start += role.n
        return slices

    def team(self, name: str, roles: tuple[str, ...]) -> TeamSpec:
        """Returns the team of the named roles.

        Raises:
            ValueError: If the roles are not consecutive in the environment's order.
        """
        order = [role.name for role in self.roles]
        indices = [order.index(role) for role in roles]
        if indices != list(range(indices[0], indices[0] + len(indices))):
            raise ValueError(f"team {name}: roles {list(roles)} are not consecutive in the environment's order {order}")
        chosen = self.roles[indices[0] : indices[-1] + 1]
        slices = self.role_slices()
        team_groups = {role.group for role in chosen}
        return TeamSpec(
            name=name,
            roles=chosen,
            start=slices[roles[0]].start,
            stop=slices[roles[-1]].stop,
            groups=tuple(i for i, group in enumerate(self.groups) if group in team_groups),
            agents_can_die=self.agents_can_die,
            has_group_reward=self.has_group_reward,
            state_sizes=self.state_sizes,
            is_entire_env=len(chosen) == len(self.roles),
            common_reward=team_groups <= set(self.common_reward),
            symmetric=self.symmetric,
            episode_limit=self.episode_limit,
            other_roles=(*self.roles[: indices[0]], *self.roles[indices[-1] + 1 :]),
        )

    def default_teams(self) -> tuple[TeamSpec, ...]:
        """Returns one team per group, named like the group."""
        return tuple(
            self.team(group, tuple(role.name for role in self.roles if role.group == group)) for group in self.groups
        )


def is_channels_first(space: spaces.Space) -> bool:
    """True for images that seem to be [channels, height, width]; they are read as [height, width, channels]."""
    if not may_be_channels_first(space) or space.shape is None:
        return False
    channels, *sides = space.shape
    return channels <= 4 < min(sides) or sides[0] == sides[1] > 4


def may_be_channels_first(space: spaces.Space) -> bool:
    """True for images whose first axis is the shortest one."""
    shape: tuple[int, ...] = space.shape or ()
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(shape) == 3 and shape[0] < min(shape[1:])


def to_bounds(continuous: Tensor, spec: ActionSpec) -> Tensor:
    """Clips numbers to [-1, 1] and maps them to the bounds of the action space: [.., C] -> [.., C].

    Integers are of the same floating-point type; each has an equal share of [-1, 1].
    """
    low, high = (constant(bound, continuous.device, continuous.dtype) for bound in (spec.low, spec.high))
    share = (continuous.clamp(-1, 1) + 1) * 0.5
    numbers = low + share * (high - low)
    if not spec.integer:
        return numbers
    levels = torch.minimum(low + (share * (high - low + 1)).floor(), high)
    is_integer = constant(spec.integer, continuous.device, torch.bool)
    return torch.where(is_integer, levels, numbers)

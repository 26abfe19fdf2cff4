"""Specifications of environments, teams, roles and action spaces."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from gymnasium import spaces
from torch import Tensor

from coterie.core.device_constants import constant


@dataclass(frozen=True)
class ActionSpec:
    """Action space of one agent: `K` discrete components and `C` continuous numbers in [-1, 1].

    Attributes:
        choices: Number of choices of each discrete component.
        continuous: Number of continuous components `C`.
        low: Lower bounds that -1 is mapped to before an action reaches the environment.
        high: Upper bounds that 1 is mapped to.
    """

    choices: tuple[int, ...] = ()
    continuous: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

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
        """Returns the spec of a Gymnasium space: Discrete, MultiDiscrete, Box, or a Tuple of these.

        Raises:
            TypeError: If the space is of another kind or has infinite bounds.
        """
        if isinstance(space, spaces.Discrete):
            return cls(choices=(int(space.n),))
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return cls(choices=tuple(int(n) for n in space.nvec))
        if isinstance(space, spaces.Box) and len(space.shape) == 1:
            low, high = (tuple(float(x) for x in bound) for bound in (space.low, space.high))
            if not all(math.isfinite(x) for x in (*low, *high)):
                raise TypeError(f"the action space {space} has infinite bounds; give finite ones")
            return cls(continuous=space.shape[0], low=low, high=high)
        if isinstance(space, spaces.Tuple) and space.spaces:
            parts = [cls.of(part) for part in space.spaces]
            return cls(
                choices=tuple(n for part in parts for n in part.choices),
                continuous=sum(part.continuous for part in parts),
                low=tuple(x for part in parts for x in part.low),
                high=tuple(x for part in parts for x in part.high),
            )
        raise TypeError(f"the action space {space} is none of Discrete, MultiDiscrete, Box of one axis, Tuple of these")


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
    """

    name: str
    group: str
    agents: tuple[str, ...]
    observation_space: spaces.Space
    action_space: spaces.Space
    choice_names: tuple[tuple[str, ...], ...] = ()
    number_names: tuple[str, ...] = ()

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
    if not (isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3):
        return False
    first, *sides = space.shape
    return first < min(sides) and (first <= 4 < min(sides) or sides[0] == sides[1] > 4)


def to_bounds(continuous: Tensor, spec: ActionSpec) -> Tensor:
    """Clips numbers to [-1, 1] and maps them to the bounds of the action space: [.., C] -> [.., C]."""
    low, high = (constant(bound, continuous.device, continuous.dtype) for bound in (spec.low, spec.high))
    return low + (continuous.clamp(-1, 1) + 1) * 0.5 * (high - low)

"""The words of the contract as types: specs of an environment, and the records that flow through a run.

Dimension letters: T time, B copies, N agents of a team (of the environment, before it is cut into teams), n agents of
a role, A actions, D features, S state features, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import optree
import torch
from gymnasium import spaces
from torch import Tensor

Tree = Any
"""A tensor, or a nest of dicts and records of tensors."""

_NAMESPACE = "coterie"

C = TypeVar("C")


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """`tree` with every tensor replaced by `function(tensor, ...)`; None stays None."""
    return optree.tree_map(function, tree, *rest, namespace=_NAMESPACE)


def tree_leaves(tree: Tree) -> list[Tensor]:
    """The tensors of `tree` in a fixed order."""
    return optree.tree_leaves(tree, namespace=_NAMESPACE)


def record(cls: type[C]) -> type[C]:
    """Registers a frozen dataclass of tensors as a tree that `tree_map` walks."""
    made: Any = cls  # the type checker does not know that it is a dataclass
    names = tuple(field.name for field in fields(made))
    optree.register_pytree_node(
        made,
        lambda node: (tuple(getattr(node, name) for name in names), None, names),
        lambda _, children: made(*children),
        namespace=_NAMESPACE,
    )
    return cls


# ------------------------------------------------------------------------------------------------------------- specs


@dataclass(frozen=True)
class ActionSpec:
    """What one agent of a role decides at once: `K` discrete components and `C` continuous numbers in [-1, 1].

    `choices` holds the number of choices of each discrete component; `low` and `high` the bounds that the
    environment's edge maps -1 and 1 to.
    """

    choices: tuple[int, ...] = ()
    continuous: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def mask_size(self) -> int:
        """`sum A`: the length of an action mask."""
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
        """The spec of a gymnasium space: Discrete, MultiDiscrete, Box, or a Tuple of these. TypeError for others."""
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
    """The agents of one side that share an observation space and an action space.

    name: the role's, e.g. `adversary`; group: the name of the group that is rewarded together; agents: their names,
    in order; choice_names, number_names: for whoever looks on, what the choices of each component of an action and its
    numbers are called, () where the environment does not say.
    """

    name: str
    group: str
    agents: tuple[str, ...]
    observation_space: spaces.Space
    action_space: spaces.Space
    choice_names: tuple[tuple[str, ...], ...] = ()
    number_names: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.agents)

    @cached_property
    def action(self) -> ActionSpec:
        return ActionSpec.of(self.action_space)


@dataclass(frozen=True)
class TeamSpec:
    """One or several roles, consecutive in the environment's order, that one algorithm trains together.

    start, stop: the team's slice of the environment's agent axis; groups: columns of `group_reward` that pay it;
    mortal: agents can be absent or end before their episode does; paid_by_group: the environment pays group rewards;
    state_sizes: features of each state that the environment shows, by name.
    """

    name: str
    roles: tuple[RoleSpec, ...]
    start: int
    stop: int
    groups: tuple[int, ...]
    mortal: bool
    paid_by_group: bool
    state_sizes: dict[str, int]
    whole: bool
    """The team is all there is in the environment."""
    equal_sides: bool = False
    """It is one of two sides that could be exchanged."""
    episode_limit: int | None = None
    """Steps after which an episode is cut, None without limit."""

    @property
    def n(self) -> int:
        return self.stop - self.start

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(agent for role in self.roles for agent in role.agents)


@dataclass(frozen=True)
class EnvSpec:
    """What an environment is made of. Roles stand group by group, so that a team of whole groups is a slice.

    state_sizes: features of each state shown in `Row.state`: `global`, and a group's own under its name; mortal:
    agents can be absent (`alive` False) or end before their episode does; paid_by_group: `group_reward` is ever other
    than zero; metrics: names of what a step reports beside rewards, read when an episode ends; episode_limit: steps
    after which an episode is cut, None without limit; exact_resume: `state_dict` holds all that going on needs;
    equal_sides: there are two groups, and the game is the same if they are exchanged; facts:
    what a run's manifest should say of it beside its keys, such as the version of a game.
    """

    name: str
    roles: tuple[RoleSpec, ...]
    state_sizes: dict[str, int]
    mortal: bool = False
    paid_by_group: bool = False
    metrics: tuple[str, ...] = ()
    episode_limit: int | None = None
    exact_resume: bool = True
    equal_sides: bool = False
    facts: dict[str, str] = field(default_factory=dict)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups in the order of their roles; they are the columns of `group_reward`."""
        return tuple(dict.fromkeys(role.group for role in self.roles))

    @property
    def n(self) -> int:
        return sum(role.n for role in self.roles)

    @cached_property
    def agents(self) -> tuple[str, ...]:
        return tuple(agent for role in self.roles for agent in role.agents)

    def role_slices(self) -> dict[str, slice]:
        """Every role's slice of the agent axis."""
        slices, at = {}, 0
        for role in self.roles:
            slices[role.name] = slice(at, at + role.n)
            at += role.n
        return slices

    def team(self, name: str, roles: tuple[str, ...]) -> TeamSpec:
        """The team of the named roles. ValueError if they are not consecutive in the environment's order."""
        order = [role.name for role in self.roles]
        places = [order.index(role) for role in roles]
        if places != list(range(places[0], places[0] + len(places))):
            raise ValueError(f"team {name}: roles {list(roles)} are not consecutive in the environment's order {order}")
        chosen = self.roles[places[0] : places[-1] + 1]
        slices = self.role_slices()
        own = {role.group for role in chosen}
        return TeamSpec(
            name=name,
            roles=chosen,
            start=slices[roles[0]].start,
            stop=slices[roles[-1]].stop,
            groups=tuple(i for i, group in enumerate(self.groups) if group in own),
            mortal=self.mortal,
            paid_by_group=self.paid_by_group,
            state_sizes=self.state_sizes,
            whole=len(chosen) == len(self.roles),
            equal_sides=self.equal_sides,
            episode_limit=self.episode_limit,
        )

    def default_teams(self) -> tuple[TeamSpec, ...]:
        """One team a group, named like the group."""
        return tuple(
            self.team(group, tuple(role.name for role in self.roles if role.group == group)) for group in self.groups
        )


# ----------------------------------------------------------------------------------------------------------- records


@record
@dataclass(frozen=True)
class Action:
    """What the agents of one role do: discrete [.., n, K] int64, continuous [.., n, C] float32 in [-1, 1]; None
    without.
    """

    discrete: Tensor | None = None
    continuous: Tensor | None = None


@record
@dataclass(frozen=True)
class Row:
    """One observation of every copy.

    obs: by role [B, n, ...] (a role with several sensors: a dict of them); action_mask: by role [B, n, sum A] bool,
    True where a choice can be made, no entry for a role that always has all; state: by name [B, S], `global` or a
    group's; alive: [B, N] bool, the agent exists in this row; first: [B, N] bool, the row begins an agent's life, so
    its memory is zeroed before the row is read; acted: [B] bool, False on a closing row, whose action is ignored.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    state: dict[str, Tensor]
    alive: Tensor
    first: Tensor
    acted: Tensor

    def team(self, team: TeamSpec) -> Row:
        """The part of the row that the team sees: its own roles and agents, and every state."""
        if team.whole:
            return self
        agents = slice(team.start, team.stop)
        return replace(
            self,
            obs={role.name: self.obs[role.name] for role in team.roles},
            action_mask={
                role.name: self.action_mask[role.name] for role in team.roles if role.name in self.action_mask
            },
            alive=self.alive[:, agents],
            first=self.first[:, agents],
        )


@record
@dataclass(frozen=True)
class Step:
    """What acting on a row brought. All zero and False for a copy whose row was a closing one.

    reward: [B, N] an agent's own; group_reward: [B, G] paid once to a group; terminated, truncated: [B, N] bool, the
    agent's life ended at this step, by the task or by a limit (terminated wins); episode_terminated,
    episode_truncated: [B] bool, the same of the copy's episode; metrics: by name [B]; lost: [B] bool, nobody knows what
    the step brought: the episode is dropped and the next row begins another; None where nothing is.
    """

    reward: Tensor
    group_reward: Tensor
    terminated: Tensor
    truncated: Tensor
    episode_terminated: Tensor
    episode_truncated: Tensor
    metrics: dict[str, Tensor]
    lost: Tensor | None = None


@record
@dataclass(frozen=True)
class Window:
    """What one team lived through in `T` steps of `B` copies: the rows, one more to look ahead, and what was done.

    obs, action_mask, state, alive, first, acted: as in Row, with T + 1 rows in front; action: by role [T, B, n, ..];
    record: what the policy noted while acting, by name [T, B, N] (e.g. log_prob); carry: the policy's memory before the
    first row is read, by name [B, N, H]; reward, terminated, truncated: [T, B, N]; group_reward: [T, B, G of the team];
    episode_terminated, episode_truncated: [T, B]; streams: rewards that are none of the environment's, by name
    [T, B, N]. The true successor of row t is row t + 1 wherever `acted[t]`.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    state: dict[str, Tensor]
    alive: Tensor
    first: Tensor
    acted: Tensor
    action: dict[str, Action]
    record: dict[str, Tensor]
    carry: dict[str, Tensor]
    reward: Tensor
    group_reward: Tensor
    terminated: Tensor
    truncated: Tensor
    episode_terminated: Tensor
    episode_truncated: Tensor
    streams: dict[str, Tensor] = field(default_factory=dict)

    @property
    def horizon(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def copies(self) -> int:
        """B."""
        return self.reward.shape[1]


def to_bounds(continuous: Tensor, spec: ActionSpec) -> Tensor:
    """Numbers in [-1, 1] (clipped to it) mapped to the space's bounds: [.., C] -> [.., C]."""
    low = torch.tensor(spec.low, dtype=continuous.dtype, device=continuous.device)
    high = torch.tensor(spec.high, dtype=continuous.dtype, device=continuous.device)
    return low + (continuous.clamp(-1, 1) + 1) * 0.5 * (high - low)

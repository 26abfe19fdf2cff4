"""Networks of a team: role tensors in, one tensor over the team's agents out. The only file that loops over roles.

A *block* is what one network reads: a role, or all roles together where they share one network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from coterie.nets.bodies import Mlp
from coterie.nets.layers import Activation, Init, Linear
from coterie.nets.memory import Carry, Memory, MemoryKind
from coterie.nets.sensors import Sensors, layout, together
from coterie.types import Action, RoleSpec, TeamSpec, Tree, tree_map

Share = Literal["role", "all", "none"]
R = TypeVar("R")


@dataclass(frozen=True)
class Shape:
    """How the networks of an algorithm are built: see the fields of its configuration."""

    hidden: Sequence[int]
    activation: Activation
    layer_norm: bool
    memory: MemoryKind
    memory_size: int
    init: Init = "orthogonal"


@dataclass(frozen=True)
class Block:
    """Roles that one network reads side by side: start and stop are its slice of the team's agents."""

    name: str
    roles: tuple[RoleSpec, ...]
    start: int
    stop: int

    @property
    def n(self) -> int:
        return self.stop - self.start

    @property
    def choices(self) -> tuple[int, ...]:
        """A of each discrete component of an action."""
        return self.roles[0].action.choices

    @property
    def vector(self) -> bool:
        """Whether agents observe one vector."""
        return len(self.roles[0].observation_space.shape or ()) == 1

    @property
    def features(self) -> int:
        """D of one agent's observation, where that is a vector."""
        assert self.vector
        return self.roles[0].observation_space.shape[0]  # pyright: ignore[reportOptionalSubscript]

    def gather(self, obs: dict[str, Tree]) -> Tree:
        """The roles' observations [.., n, ..] side by side along the agent axis."""
        return together([obs[role.name] for role in self.roles], self.roles[0].observation_space)

    def mask(self, by_role: dict[str, Tensor]) -> Tensor | None:
        """The roles' action masks [.., n, sum A], None if no role has one; a role without one has all choices."""
        given = next((by_role[role.name] for role in self.roles if role.name in by_role), None)
        if given is None or len(self.roles) == 1:
            return given
        full = {
            r.name: given.new_ones(*given.shape[:-2], r.n, given.shape[-1]) for r in self.roles if r.name not in by_role
        }
        by_role = by_role | full
        return torch.cat([by_role[role.name] for role in self.roles], -2)

    def split(self, whole: R) -> dict[str, R]:
        """A record of the block's agents, tensors [.., n, ..] such as an action, cut back into roles."""
        if len(self.roles) == 1:
            return {self.roles[0].name: whole}
        stops = list(accumulate(role.n for role in self.roles))
        return {
            role.name: tree_map(lambda x, at=slice(stop - role.n, stop): x[..., at, :], whole)
            for role, stop in zip(self.roles, stops, strict=True)
        }

    def action(self, by_role: dict[str, Action]) -> Action:
        """The roles' actions side by side."""
        if len(self.roles) == 1:
            return by_role[self.roles[0].name]
        parts = [by_role[role.name] for role in self.roles]
        discrete = [part.discrete for part in parts if part.discrete is not None]
        continuous = [part.continuous for part in parts if part.continuous is not None]
        return Action(torch.cat(discrete, -2) if discrete else None, torch.cat(continuous, -2) if continuous else None)


def alike(roles: Sequence[RoleSpec]) -> bool:
    """Whether one network can read all roles: observations of one shape, actions of one kind."""
    first = roles[0]
    seen = layout(first.observation_space)
    return all(layout(r.observation_space) == seen and r.action == first.action for r in roles)


def blocks(team: TeamSpec, share: Share) -> tuple[Block, ...]:
    """A block a role, or a single one for share `all`. ValueError if the roles differ in shape and share is `all`."""
    if share == "all":
        if not alike(team.roles):
            raise ValueError(f"team {team.name}: its roles differ in their spaces")
        return (Block(team.roles[0].name, team.roles, 0, team.n),)
    found, at = [], 0
    for role in team.roles:
        found.append(Block(role.name, (role,), at, at + role.n))
        at += role.n
    return tuple(found)


class BlockNet(nn.Module):
    """Sensors, body, optional memory and a linear head for the agents of one block: [.., n, ..] to [.., n, out]."""

    def __init__(
        self,
        block: Block,
        outputs: int,
        head_gain: float,
        shape: Shape,
        share: Share,
        agent_id: bool,
        generator: torch.Generator,
        extra: int = 0,
    ):
        super().__init__()
        self.sets = block.n if share == "none" else None
        ids = torch.eye(block.n) if agent_id and block.n > 1 else None
        self.register_buffer("ids", ids, persistent=False)
        self.sensors = Sensors(block.roles[0].observation_space, self.sets, generator)
        inputs = self.sensors.features + extra + (block.n if ids is not None else 0)
        self.core = Core(inputs, outputs, head_gain, shape, self.sets, generator)

    def forward(
        self, obs: Tree, first: Tensor | None, carry: Carry, extra: Tensor | None = None
    ) -> tuple[Tensor, Carry]:
        """obs: [.., n, ..]; first: [T, M, n] or [M, n] bool and carry [M, n, H] by name, for networks with memory;
        extra: [.., n, E], what the network reads besides, such as the agents' last actions.
        """
        x = self.sensors(obs)
        parts = [x] if extra is None else [x, extra]
        if self.ids is not None:
            parts.append(self.ids.expand(*x.shape[:-1], -1))  # pyright: ignore[reportCallIssue]
        return self.core(x if len(parts) == 1 else torch.cat(parts, -1), first, carry)


class Core(nn.Module):
    """Body, optional memory and head over [.., n, in] with one set of parameters, or one set for each of the n."""

    def __init__(
        self, inputs: int, outputs: int, head_gain: float, shape: Shape, sets: int | None, generator: torch.Generator
    ):
        super().__init__()
        self.sets = sets
        self.body = Mlp(inputs, shape.hidden, shape.activation, shape.layer_norm, sets, generator, shape.init)
        self.memory = None
        features = self.body.features
        if shape.memory != "none":
            self.memory = Memory(shape.memory, features, shape.memory_size, sets, generator)
            features = shape.memory_size
        self.head = Linear(features, outputs, sets, head_gain, generator, shape.init)

    def forward(self, x: Tensor, first: Tensor | None, carry: Carry) -> tuple[Tensor, Carry]:
        lead = x.shape[:-1]
        steps = lead[0] if len(lead) > 2 else 1  # a row is a sequence of one
        if self.sets is None:
            flat = self.body(x.flatten(0, -2))
            if self.memory is not None:
                assert first is not None
                inner = {name: value.flatten(0, -2) for name, value in carry.items()}
                flat, inner = self.memory(flat.unflatten(0, (steps, -1)), first.reshape(steps, -1), inner)
                carry = {name: value.view(*lead[-2:], -1) for name, value in inner.items()}
                flat = flat.flatten(0, 1)
            return self.head(flat).reshape(*lead, -1), carry
        flat = self.body(x.flatten(0, -3).transpose(0, 1))  # [n, M, D]: a set is an agent
        if self.memory is not None:
            assert first is not None
            inner = {name: value.transpose(0, 1) for name, value in carry.items()}  # [n, M, H]
            sequence = flat.unflatten(1, (steps, -1)).transpose(0, 1)  # [T, n, M, D]
            sequence, inner = self.memory(sequence, first.reshape(steps, *lead[-2:]).transpose(1, 2), inner)
            carry = {name: value.transpose(0, 1) for name, value in inner.items()}
            flat = sequence.transpose(0, 1).flatten(1, 2)
        return self.head(flat).transpose(0, 1).reshape(*lead, -1), carry


class TeamNet(nn.Module):
    """A network for every agent of a team: role tensors [.., n, D] in, one tensor [.., n, out] a block out.

    outputs: width of each block's head; head_gain: gain of the head's orthogonal initialisation; extra: how many
    numbers a block's network reads besides observations.
    The carry of a memory is [M, N, H] by name.
    """

    def __init__(
        self,
        team: TeamSpec,
        outputs: dict[str, int],
        head_gain: float,
        shape: Shape,
        share: Share,
        agent_id: bool,
        generator: torch.Generator,
        extra: dict[str, int] | None = None,
    ):
        super().__init__()
        self.blocks = blocks(team, share)
        self.shape, self.agents = shape, team.n
        more = extra or {}
        self.nets = nn.ModuleDict(
            {
                b.name: BlockNet(b, outputs[b.name], head_gain, shape, share, agent_id, generator, more.get(b.name, 0))
                for b in self.blocks
            }
        )

    def start(self, copies: int, device: torch.device) -> Carry:
        """Empty memories of `copies` copies, by name [B, N, H]; {} without memory."""
        if self.shape.memory == "none":
            return {}
        names = ("h",) if self.shape.memory == "gru" else ("h", "c")
        return {name: torch.zeros(copies, self.agents, self.shape.memory_size, device=device) for name in names}

    def forward(
        self, obs: dict[str, Tree], first: Tensor | None, carry: Carry, extra: dict[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], Carry]:
        """A block's outputs [.., n, out] and the memory; extra: by block [.., n, E].

        With memory: sequences [T, M, n, D] with first [T, M, N], or one row [M, n, D] with first [M, N].
        """
        out, carries = {}, []
        for block in self.blocks:
            agents = slice(block.start, block.stop)
            one = len(self.blocks) == 1
            part = None if first is None else first if one else first[..., agents]
            inner = carry if one else {name: value[:, agents] for name, value in carry.items()}
            out[block.name], inner = self.nets[block.name](
                block.gather(obs), part, inner, None if extra is None else extra[block.name]
            )
            carries.append(inner)
        if len(carries) == 1:
            return out, carries[0]
        return out, {name: torch.cat([part[name] for part in carries], 1) for name in carries[0]}


def join(parts: dict[str, Tensor], order: Sequence[Block], dim: int) -> Tensor:
    """Blocks' tensors side by side along the agent axis `dim`."""
    if len(order) == 1:
        return parts[order[0].name]
    return torch.cat([parts[block.name] for block in order], dim)


def join_choices(parts: dict[str, Tensor], order: Sequence[Block], fill: float) -> Tensor:
    """Blocks' numbers by choice [.., n, A of the block] as one tensor [.., N, A], surplus choices set to `fill`."""
    width = max(part.shape[-1] for part in parts.values())
    padded = {
        name: part if part.shape[-1] == width else nn.functional.pad(part, (0, width - part.shape[-1]), value=fill)
        for name, part in parts.items()
    }
    return join(padded, order, -2)

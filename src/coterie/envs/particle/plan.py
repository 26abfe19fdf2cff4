"""What a particle scenario tells of itself: bodies, roles, what a step earned, and the noise that it begins with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.envs.parameters import Parameter
from coterie.envs.particle.physics import Body, Gaps, Physics
from coterie.envs.world import State


@dataclass(frozen=True)
class Role:
    """Agents of one kind: `bodies` are their places among the bodies; `symbols`: how many they can say, 0 if mute;
    `mirrored`: a move to the left takes them to the right.
    """

    name: str
    group: str
    bodies: tuple[int, ...]
    symbols: int = 0
    mirrored: bool = False


class Draws:
    """Takes uniform numbers off the restart noise, row by row, the copies last."""

    def __init__(self, noise: Tensor):
        self._noise, self.used = noise, 0

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """[*shape, B] in [low, high)."""
        rows = math.prod(shape)
        drawn = self._noise[self.used : self.used + rows]
        self.used += rows
        return (low + (high - low) * drawn).view(*shape, drawn.shape[1])

    def choice(self, count: int) -> Tensor:
        """[B] int64 in 0 .. count - 1."""
        return self.uniform(0, count).long().clamp_(max=count - 1)

    def one_hot(self, count: int) -> Tensor:
        """[count, B], a single one in every column."""
        labels = torch.arange(count, device=self._noise.device)
        return (labels[:, None] == self.choice(count)).to(self._noise.dtype)


class Now(NamedTuple):
    """A world just after a step, as a scenario's `pay` reads it; the copies stand last."""

    flat: Tensor
    gaps: Gaps
    state: State
    physics: Physics

    def part(self, name: str) -> Tensor:
        """Rows of that name: [*shape, B]."""
        return self.physics.rows.part(self.flat, name)

    def between(self, name: str) -> Tensor:
        """Measured distances of that name: [sources, targets, B]."""
        return self.physics.between(self.gaps, name)

    def touching(self) -> Tensor:
        """1 for every contact that touches, else 0: [contacts, B]."""
        return self.physics.touching(self.gaps)

    def by_mover(self, contacts: Tensor) -> Tensor:
        """For each mover the sum over its contacts: [contacts, B] to [M, B]."""
        return self.physics.by_mover(contacts)


class Pay(NamedTuple):
    """What a step earned: reward [N, B] in the order of the roles; ended [B] bool.

    metrics: gives them, [B] each, from the returns [N, B] of the running episode; called only when an episode ends.
    """

    reward: Tensor
    metrics: Callable[[Tensor], dict[str, Tensor]]
    ended: Tensor | None = None


@dataclass(frozen=True)
class Plan:
    """How a scenario is made: its bodies (movers first), roles group by group, and what it remembers and measures.

    memory: shapes of its own rows; hidden: by group, the rows that its members do not know, for the state of that
    group; parameters: by name, [B] entries of every state; optional: entries where copies differ in them; places: the
    scenario's own rows that are places, [2]; events: parts after the motion and uniform numbers [step_noise, B] to the
    parts that change; linear: observations are an affine function of the rows, so that one product makes them all;
    walls: by mover, how far from the middle it gets along each axis, and the part of its speed that it keeps as it
    turns round there; equal_sides: see EnvSpec. Movers that are nobody's come last.
    """

    name: str
    bodies: Sequence[Body]
    roles: Sequence[Role]
    measured: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict)
    memory: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    optional: Mapping[str, Parameter] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    events: Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]] | None = None
    step_noise: int = 0
    metrics: tuple[str, ...] = ()
    linear: bool = True
    walls: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    equal_sides: bool = False

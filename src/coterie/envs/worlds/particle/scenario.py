"""Declaration of a particle scenario: bodies, roles, observations, rewards of a step, noise of a new episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.device_constants import constant
from coterie.core.specs import ObservationParts
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.particle.physics import Body, PairDistances, Physics
from coterie.envs.worlds.world import State


@dataclass(frozen=True)
class Role:
    """The agents of a role.

    Attributes:
        name: name of the role.
        group: name of its group.
        bodies: indices of the agents' bodies.
        symbols: size of the agents' vocabulary, 0 if they cannot communicate.
        mirrored: swaps the moves to the left and to the right.
        parts: meaning of parts of the observation.
    """

    name: str
    group: str
    bodies: tuple[int, ...]
    symbols: int = 0
    mirrored: bool = False
    parts: ObservationParts = field(default_factory=ObservationParts)


class NoiseReader:
    """Consumes uniform noise [F, B] in order and turns it into samples with the environments in the last axis."""

    def __init__(self, noise: Tensor):
        self._noise, self.used = noise, 0

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Returns [*shape, B] in [low, high)."""
        size = math.prod(shape)
        sample = self._noise[self.used : self.used + size]
        self.used += size
        return (low + (high - low) * sample).view(*shape, sample.shape[1])

    def choice(self, count: int) -> Tensor:
        """Returns [B] int64 in 0 .. count - 1."""
        return self.uniform(0, count).long().clamp_(max=count - 1)

    def one_hot(self, count: int) -> Tensor:
        """Returns random one-hot vectors [count, B]."""
        labels = torch.arange(count, device=self._noise.device)
        return (labels[:, None] == self.choice(count)).to(self._noise.dtype)


class Transition(NamedTuple):
    """A step as a scenario's `outcome` reads it. Environments are in the last axis.

    Attributes:
        flat: the state after the step, [F, B].
        distances: measured distances after the step.
        state: the state before the step.
        physics: the world's physics.
    """

    flat: Tensor
    distances: PairDistances
    state: State
    physics: Physics

    def part(self, name: str) -> Tensor:
        """Returns a part of the state after the step: [*shape, B]."""
        return self.physics.layout.part(self.flat, name)

    def distance(self, name: str) -> Tensor:
        """Returns the measured distances of that name: [sources, targets, B]."""
        return self.physics.distance(self.distances, name)

    def touching(self) -> Tensor:
        """Returns 1 for every pair in contact, else 0: [contacts, B]."""
        return self.physics.touching(self.distances)

    def sum_by_mover(self, contacts: Tensor) -> Tensor:
        """Sums over the contacts of each moving body: [contacts, B] to [M, B]."""
        return self.physics.sum_by_mover(contacts)


class ScenarioOutcome(NamedTuple):
    """The outcome of a step.

    Attributes:
        reward: [N, B] in the order of the roles.
        metrics: maps the returns [N, B] of the episode to metrics [B] by name. Called only when an episode ends.
        terminated: [B] bool, or None if the task never ends.
    """

    reward: Tensor
    metrics: Callable[[Tensor], dict[str, Tensor]]
    terminated: Tensor | None = None


@dataclass(frozen=True)
class Coverage:
    """The reward of `simple_spread` as its kernel computes it, see `SimpleSpread`.

    Attributes:
        pairs: name of the measured distances between all agents, which are the first bodies, and the landmarks.
        covered: distance below which an agent covers a landmark.
        shared: every agent receives the sum of all rewards and counts a collision with itself.
        terminates: the episode ends when all landmarks are covered.
        ratio: name of the parameter that weighs the agent's own collisions.
        weight: maps the state to a factor on collisions [B], or None.
        metrics: maps the number of covered landmarks [B], and of pairs in contact [B], to metrics.
    """

    pairs: str
    covered: float
    shared: bool
    terminates: bool
    ratio: str
    weight: Callable[[State], Tensor | None]
    metrics: Callable[[Tensor, Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class ScenarioSpec:
    """The static description of a scenario.

    Attributes:
        name: name of the scenario.
        bodies: agents that move, other moving bodies, then resting bodies.
        roles: roles, group by group.
        measured_pairs: sources and targets of measured distances, by name.
        extra_parts: shapes of the scenario's own parts of the state.
        hidden_parts: by group, parts that its members do not know. They are left out of the state of that group.
        parameters: parameters that are entries [B] of every state.
        optional_parameters: parameters that are entries of the state only if they vary.
        position_parts: the scenario's own parts that are positions, shape [2].
        events: maps the parts after the motion, and uniform noise [step_noise_size, B], to changed parts.
        step_noise_size: number of uniform numbers that `events` needs per step.
        metrics: names of the metrics.
        linear_observations: observations are an affine function of the state, so that one matrix product computes them.
        walls: for every moving body, the largest distance from the center along each axis, and the fraction of its
            speed that it keeps when it bounces off a wall.
        symmetric: see `EnvSpec`.
        coverage: the reward, if it is that of `simple_spread`.
    """

    name: str
    bodies: Sequence[Body]
    roles: Sequence[Role]
    measured_pairs: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict)
    extra_parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    hidden_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    optional_parameters: Mapping[str, Parameter] = field(default_factory=dict)
    position_parts: tuple[str, ...] = ()
    events: Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]] | None = None
    step_noise_size: int = 0
    metrics: tuple[str, ...] = ()
    linear_observations: bool = True
    walls: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    symmetric: bool = False
    coverage: Coverage | None = None


class Neighbors:
    """The bodies that agents observe: all of them in a fixed order, or the `nearest` ones sorted by distance.

    Args:
        pos: positions, [2, bodies, B].
        observers: n bodies.
        targets: for every observer, m bodies.
        nearest: number of slots. Surplus slots are zero. None to observe all targets in the given order.

    Attributes:
        offset: [n, slots, 2, B], from the observers to the targets.
    """

    def __init__(
        self, pos: Tensor, observers: Sequence[int], targets: Sequence[Sequence[int]], nearest: int | None = None
    ):
        self._targets = body_indices(tuple(tuple(bodies) for bodies in targets), pos.device).reshape(len(observers), -1)
        self._nearest = nearest
        self._order: Tensor | None = None
        own = pos[:, body_indices(tuple(observers), pos.device)]
        offset = (pos[:, self._targets] - own.unsqueeze(2)).permute(1, 2, 0, 3)
        if nearest is not None:
            distance = torch.hypot(offset[:, :, 0], offset[:, :, 1])
            self._order = distance.argsort(dim=1)[:, :nearest]
        self.offset = self._select(offset)

    def features(self, value: Tensor) -> Tensor:
        """Gathers features of the targets: [D, bodies, B] to [n, slots, D, B]."""
        return self._select(value[:, self._targets].permute(1, 2, 0, 3))

    def _select(self, value: Tensor) -> Tensor:
        if self._order is None or self._nearest is None:
            return value
        order = self._order.unsqueeze(2).expand(-1, -1, value.shape[2], -1)
        nearest = value.gather(1, order)
        missing = self._nearest - nearest.shape[1]
        if missing <= 0:
            return nearest
        n, _, features, num_envs = nearest.shape
        return torch.cat((nearest, nearest.new_zeros(n, missing, features, num_envs)), dim=1)


def body_indices(bodies: tuple[int, ...] | tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """Returns indices of bodies as a tensor int64."""
    return constant(bodies, device, torch.int64)


def own_features(value: Tensor, bodies: Sequence[int]) -> Tensor:
    """Gathers the bodies' own features: [D, bodies, B] to [n, D, B]."""
    return value[:, body_indices(tuple(bodies), value.device)].transpose(0, 1)


def repeat_for(value: Tensor, n: int) -> Tensor:
    """Repeats a feature that `n` agents share: [.., B] to [n, .., B]."""
    return value.expand(n, *value.shape)


def concat_features(*parts: Tensor) -> Tensor:
    """Flattens and concatenates parts [n, .., B] to [n, D, B]."""
    return torch.cat([part.reshape(part.shape[0], -1, part.shape[-1]) for part in parts], dim=1)


def others(bodies: Sequence[int], among: Sequence[int]) -> list[list[int]]:
    """Returns, for every body, the bodies of `among` other than itself."""
    return [[j for j in among if j != i] for i in bodies]

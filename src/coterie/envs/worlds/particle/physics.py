"""Physics of the particle worlds: bodies in a plane with thrust, damping, soft contact and speed limits.

Within the particle worlds, the environments are in the *last* axis: positions are [2, bodies, B]. All operations then
run along contiguous memory, and a parameter [B] broadcasts without reshaping. One flat tensor [F, B] holds the state:

    moving [2, M] | vel [2, M] | comm [C, S] | rest [2, R] | the scenario's own parts

for M moving bodies, R resting bodies and S speakers with a vocabulary of C symbols. States enter and leave the particle
worlds transposed, as [B, F].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from coterie.kernels.particle import ParticleConstants

Variant = Literal["mpe2", "openai"]

DT = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
_MIN_DISTANCE = 1e-9  # bodies at the same position exert no force on each other instead of NaN


@dataclass(frozen=True)
class Body:
    """A disc.

    Attributes:
        name: name of the body.
        size: radius.
        moves: True if the body can move.
        collides: True if contact with other colliding bodies pushes it.
        thrust: force of a full action.
        max_speed: speed limit, None for no limit.
        mass: mass.
        speed_parameter: name of the parameter [B] that scales thrust and speed limit, if the state has it.
        color: name of a color in the palette.
        kind: drawing style, see `Disc`.
    """

    name: str
    size: float = 0.05
    moves: bool = False
    collides: bool = False
    thrust: float = 5.0
    max_speed: float | None = None
    mass: float = 1.0
    speed_parameter: str = ""
    color: str = "gray"
    kind: str = "landmark"


class StateLayout:
    """Slices and shapes of the parts of the flat state, by name."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self.shapes = dict(shapes)
        self.slices: dict[str, slice] = {}
        self.size = 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            self.slices[name] = slice(self.size, self.size + size)
            self.size += size

    def part(self, flat: Tensor, name: str) -> Tensor:
        """Returns a part of the flat state [F, B] as [*shape, B]."""
        return flat[self.slices[name]].view(*self.shapes[name], flat.shape[1])

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns all parts of the flat state [F, B] by name."""
        return {name: self.part(flat, name) for name in self.shapes}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Returns the flat state [F, B]. Missing parts are zero."""
        like = next(iter(parts.values()))
        num_envs = like.shape[-1]
        return torch.cat(
            [
                parts[name].reshape(-1, num_envs) if name in parts else like.new_zeros(math.prod(shape), num_envs)
                for name, shape in self.shapes.items()
            ]
        )


@dataclass(frozen=True)
class _Constants:
    """Constants of the physics for one device and precision."""

    difference: Tensor
    """[2 P, F], maps the flat state to the offsets of all measured pairs, x before y."""
    contact_distance: Tensor
    """[contacts, 1], the distance below which a pair is in contact."""
    push: Tensor
    """[2, M, contacts], the change of velocity of each moving body per unit of a contact's push in one step."""
    participates: Tensor
    """[M, contacts], 1 where the moving body takes part in the contact."""
    zero: Tensor
    """[], a zero."""
    max_speed: Tensor
    """[M, 1], infinite without a limit."""


class PairDistances(NamedTuple):
    """Offsets and distances of the measured pairs, contacts first.

    Attributes:
        offset: [2, P, B], to the first body from the second.
        distance: [P, B].
        penetration: [contacts, B], overlap of the two bodies of a contact, negative if they are apart. None without
            contacts.
    """

    offset: Tensor
    distance: Tensor
    penetration: Tensor | None


class Physics:
    """Moves bodies and measures the distances that contacts and rewards need, in a few operations.

    Args:
        bodies: bodies, moving ones first.
        measured_pairs: sources and targets of measured distances, by name.
        speech: size of the vocabulary C and number of speakers S.
        extra_parts: shapes of the scenario's own parts of the state.
        variant: convention, see `move`.
    """

    def __init__(
        self,
        bodies: Sequence[Body],
        measured_pairs: Mapping[str, tuple[Sequence[int], Sequence[int]]],
        *,
        speech: tuple[int, int] = (0, 0),
        extra_parts: Mapping[str, tuple[int, ...]] | None = None,
        variant: Variant = "mpe2",
    ):
        self.bodies = tuple(bodies)
        self.movers = sum(body.moves for body in bodies)
        assert all(body.moves for body in bodies[: self.movers]), "moving bodies come first"
        self.variant: Variant = variant
        resting = len(bodies) - self.movers
        self.layout = StateLayout(
            {
                "moving": (2, self.movers),
                "vel": (2, self.movers),
                "comm": speech,
                "rest": (2, resting),
                **(extra_parts or {}),
            }
        )
        self.contacts = [
            (a, b)
            for a in range(self.movers)
            for b in range(a + 1, len(bodies))
            if bodies[a].collides and bodies[b].collides
        ]
        self.pairs = list(self.contacts)
        self.measured_slices: dict[str, tuple[slice, tuple[int, int]]] = {}
        for name, (sources, targets) in measured_pairs.items():
            start = len(self.pairs)
            self.pairs += [(a, b) for a in sources for b in targets]
            self.measured_slices[name] = (slice(start, len(self.pairs)), (len(sources), len(targets)))
        self._has_speed_limit = any(body.max_speed is not None for body in bodies)
        self._speed_parameters = {
            i: body.speed_parameter for i, body in enumerate(bodies[: self.movers]) if body.speed_parameter
        }
        self._constants: dict[tuple[torch.device, torch.dtype], _Constants] = {}

    def constants(self, like: Tensor) -> _Constants:
        """Returns the constants on the device and in the precision of `like`."""
        key = (like.device, like.dtype)
        if key not in self._constants:
            self._constants[key] = self._make_constants(like)
        return self._constants[key]

    def _make_constants(self, like: Tensor) -> _Constants:
        eye = torch.eye(self.layout.size, dtype=torch.float64)
        pos = self.positions(self.layout.split(eye))
        sources, targets = [a for a, _ in self.pairs], [b for _, b in self.pairs]
        push = torch.zeros(self.movers, len(self.contacts), dtype=torch.float64)
        for column, (a, b) in enumerate(self.contacts):
            push[a, column] = DT * CONTACT_FORCE / self.bodies[a].mass
            if b < self.movers:
                push[b, column] = -DT * CONTACT_FORCE / self.bodies[b].mass
        limits = [math.inf if body.max_speed is None else body.max_speed for body in self.bodies[: self.movers]]
        contact_distance = [self.bodies[a].size + self.bodies[b].size for a, b in self.contacts]
        return _Constants(
            difference=(pos[:, sources] - pos[:, targets]).reshape(2 * len(self.pairs), self.layout.size).to(like),
            contact_distance=torch.tensor(contact_distance, dtype=torch.float64).view(-1, 1).to(like),
            push=push.to(like).expand(2, -1, -1),
            participates=(push != 0).to(like),
            zero=like.new_zeros(()),
            max_speed=torch.tensor(limits, dtype=torch.float64).unsqueeze(1).to(like),
        )

    def positions(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Returns the positions of all bodies: [2, bodies, B]."""
        return torch.cat((parts["moving"], parts["rest"]), dim=1)

    def scale(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """Returns the factor on thrust and speed limit of each moving body: [M, B], or None if nothing scales them."""
        factors, common = (
            {i: state[name] for i, name in self._speed_parameters.items() if name in state},
            state.get("speed"),
        )
        if not factors:
            return None if common is None else common.expand(self.movers, -1)
        one = torch.ones_like(next(iter(factors.values())))
        scale = torch.stack([factors.get(i, one) for i in range(self.movers)])
        return scale if common is None else scale * common

    def move(
        self, flat: Tensor, coasting_velocity: Tensor, thrust: Tensor, scale: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Moves the bodies by one step.

            mpe2:   p' = p + dt v;   v' = limit(coasting_velocity + thrust)
            openai: v' = limit(coasting_velocity + thrust);   p' = p + dt v'

        Args:
            flat: the state, [F, B].
            coasting_velocity: velocity after damping and contact, [2, M, B].
            thrust: change of velocity by the agents' actions, [2, M, B].
            scale: factor on thrust and speed limits, [M, B], or None.

        Returns:
            Positions and velocities of the moving bodies, [2, M, B] each.
        """
        if scale is not None:
            thrust = thrust * scale
        vel = coasting_velocity + thrust
        if self._has_speed_limit:
            limit = self.constants(flat).max_speed
            if scale is not None:
                limit = limit * scale
            vel = vel * (limit / torch.hypot(vel[0], vel[1])).clamp_(max=1)
        applied_vel = self.layout.part(flat, "vel") if self.variant == "mpe2" else vel
        return torch.add(self.layout.part(flat, "moving"), applied_vel, alpha=DT), vel

    def kernel_constants(self, like: Tensor) -> ParticleConstants:
        """Returns the constants of the kernel that does the work of `move`, `measure` and `coasting_velocity`."""
        constants = self.constants(like)
        inverse_mass = [1 / body.mass for body in self.bodies[: self.movers]]
        return ParticleConstants(
            movers=self.movers,
            resting=len(self.bodies) - self.movers,
            speech=(self.layout.shapes["comm"][0], self.layout.shapes["comm"][1]),
            rows=self.layout.size,
            pairs=self.pairs,
            contact_distance=constants.contact_distance,
            inverse_mass=torch.tensor(inverse_mass, dtype=torch.float64).to(like),
            max_speed=constants.max_speed if self._has_speed_limit else None,
            numbers=(DT, 1 - DAMPING, DT * CONTACT_FORCE * CONTACT_MARGIN, 1 / CONTACT_MARGIN, _MIN_DISTANCE),
            velocity_first=self.variant == "mpe2",
        )

    def measure(self, flat: Tensor) -> PairDistances:
        """Measures offsets and distances of all pairs, and the penetration of contacts."""
        constants = self.constants(flat)
        offset = torch.mm(constants.difference, flat).view(2, len(self.pairs), flat.shape[1])
        x, y = offset.unbind()
        distance = torch.hypot(x, y)
        return PairDistances(
            offset, distance, constants.contact_distance - distance[: len(self.contacts)] if self.contacts else None
        )

    def coasting_velocity(self, vel: Tensor, distances: PairDistances, damping: Tensor | None = None) -> Tensor:
        """Applies damping and contact forces, before the agents' thrust.

            push = contact_force * margin * softplus((contact_distance - d) / margin), along the line between the two

        Args:
            vel: velocity, [2, M, B].
            distances: measured pairs.
            damping: fraction of its velocity that a body loses per step, [B]. None for `DAMPING`.

        Returns:
            Velocity, [2, M, B].
        """
        kept = 1 - DAMPING if damping is None else 1.0
        if damping is not None:
            vel = vel * (1 - damping)
        if distances.penetration is None:
            return vel * kept
        count = len(self.contacts)
        push = functional.softplus(distances.penetration, beta=1 / CONTACT_MARGIN)
        push /= distances.distance[:count].clamp_min(_MIN_DISTANCE)
        return torch.baddbmm(vel, self.constants(vel).push, distances.offset[:, :count] * push, beta=kept)

    def distance(self, distances: PairDistances, name: str) -> Tensor:
        """Returns the measured distances of that name: [sources, targets, B]."""
        pairs, shape = self.measured_slices[name]
        return distances.distance[pairs].view(*shape, distances.distance.shape[1])

    def touching(self, distances: PairDistances) -> Tensor:
        """Returns 1 for every pair in contact, else 0: [contacts, B]."""
        if distances.penetration is None:
            return distances.distance[:0]
        return torch.heaviside(distances.penetration, self.constants(distances.penetration).zero)

    def sum_by_mover(self, contacts: Tensor) -> Tensor:
        """Sums over the contacts of each moving body: [contacts, B] to [M, B]."""
        return torch.mm(self.constants(contacts).participates, contacts)

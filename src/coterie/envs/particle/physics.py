"""The physics that every particle world shares: bodies on a plane, thrust, damping, soft contact, speed limits.

Inside the particle worlds the copies stand in the *last* axis: a position is [2, bodies, B], so that every operation
runs along contiguous memory and a parameter [B] broadcasts by itself. One flat tensor, the rows [F, B], holds a world:

    moving [2, M] | vel [2, M] | comm [C, S] | rest [2, R] | the scenario's own rows

where M bodies move (they come first), R rest and S speak. It leaves the particle worlds transposed, as [B, F].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Variant = Literal["mpe2", "openai"]

DT = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
_NO_DISTANCE = 1e-9  # bodies in the very same place push each other nowhere, rather than to NaN


@dataclass(frozen=True)
class Body:
    """A disc.

    size: radius; collides: it is pushed by contacts with others that collide; thrust: the force of a full action;
    max_speed: its limit, None without; pace: the parameter [B] that scales its thrust and speed limit, if the state has
    one; color: one of
    the renderer's palette; kind: how it is drawn.
    """

    name: str
    size: float = 0.05
    moves: bool = False
    collides: bool = False
    thrust: float = 5.0
    max_speed: float | None = None
    mass: float = 1.0
    pace: str = ""
    color: str = "grey"
    kind: str = "landmark"


class Rows:
    """Where each part stands in the flat state: names to slices and shapes."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self.shapes = dict(shapes)
        self.slices: dict[str, slice] = {}
        self.size = 0
        for name, shape in self.shapes.items():
            rows = math.prod(shape)
            self.slices[name] = slice(self.size, self.size + rows)
            self.size += rows

    def part(self, flat: Tensor, name: str) -> Tensor:
        """The part of [F, B] as [*shape, B]."""
        return flat[self.slices[name]].view(*self.shapes[name], flat.shape[1])

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Every part of [F, B], by name."""
        return {name: self.part(flat, name) for name in self.shapes}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """[F, B] of the parts; one that is missing is zero."""
        like = next(iter(parts.values()))
        copies = like.shape[-1]
        return torch.cat(
            [
                parts[name].reshape(-1, copies) if name in parts else like.new_zeros(math.prod(shape), copies)
                for name, shape in self.shapes.items()
            ]
        )


@dataclass(frozen=True)
class _Tables:
    """The constants of the physics on one device, in one precision."""

    difference: Tensor
    """[2 P, F]: rows to the offsets of all measured pairs, x before y."""
    reach: Tensor
    """[contacts, 1]: the distance at which a pair touches."""
    push: Tensor
    """[2, M, contacts]: the velocity that a unit of every contact's push gives each mover in a step."""
    ends: Tensor
    """[M, contacts]: 1 where the mover takes part in the contact."""
    zero: Tensor
    """[], a zero."""
    max_speed: Tensor
    """[M, 1], infinite without a limit."""


class Gaps(NamedTuple):
    """Between the measured pairs, contacts first: offset [2, P, B] to the first from the second, distance [P, B].

    depth: [contacts, B], how far the two of a contact reach into each other (below 0: apart); None without contacts.
    """

    offset: Tensor
    distance: Tensor
    depth: Tensor | None


class Physics:
    """Moves bodies, and measures the distances that contacts and rewards need, all in a handful of operations.

    bodies: movers first; measured: by name, the bodies from which and to which distances are wanted; memory: shapes
    of the scenario's own rows; speech: (symbols C, speakers S).
    """

    def __init__(
        self,
        bodies: Sequence[Body],
        measured: Mapping[str, tuple[Sequence[int], Sequence[int]]],
        speech: tuple[int, int] = (0, 0),
        memory: Mapping[str, tuple[int, ...]] | None = None,
        variant: Variant = "mpe2",
    ):
        self.bodies = tuple(bodies)
        self.movers = sum(body.moves for body in bodies)
        assert all(body.moves for body in bodies[: self.movers]), "bodies that move come first"
        self.variant = variant
        resting = len(bodies) - self.movers
        self.rows = Rows(
            {
                "moving": (2, self.movers),
                "vel": (2, self.movers),
                "comm": speech,
                "rest": (2, resting),
                **(memory or {}),
            }
        )
        self.contacts = [
            (a, b)
            for a in range(self.movers)
            for b in range(a + 1, len(bodies))
            if bodies[a].collides and bodies[b].collides
        ]
        self._pairs = list(self.contacts)
        self._places: dict[str, tuple[slice, tuple[int, int]]] = {}
        for name, (sources, targets) in measured.items():
            start = len(self._pairs)
            self._pairs += [(a, b) for a in sources for b in targets]
            self._places[name] = (slice(start, len(self._pairs)), (len(sources), len(targets)))
        self._fast = any(body.max_speed is not None for body in bodies)
        self._paces = {i: body.pace for i, body in enumerate(bodies[: self.movers]) if body.pace}
        self._tables: dict[tuple[torch.device, torch.dtype], _Tables] = {}

    # ------------------------------------------------------------------------------------------------ constants

    def tables(self, like: Tensor) -> _Tables:
        """The constants beside `like`."""
        key = (like.device, like.dtype)
        if key not in self._tables:
            self._tables[key] = self._make_tables(like)
        return self._tables[key]

    def _make_tables(self, like: Tensor) -> _Tables:
        eye = torch.eye(self.rows.size, dtype=torch.float64)
        pos = self.positions(self.rows.split(eye))
        sources, targets = [a for a, _ in self._pairs], [b for _, b in self._pairs]
        push = torch.zeros(self.movers, len(self.contacts), dtype=torch.float64)
        for column, (a, b) in enumerate(self.contacts):
            push[a, column] = DT * CONTACT_FORCE / self.bodies[a].mass
            if b < self.movers:
                push[b, column] = -DT * CONTACT_FORCE / self.bodies[b].mass
        limits = [math.inf if body.max_speed is None else body.max_speed for body in self.bodies[: self.movers]]
        reach = [self.bodies[a].size + self.bodies[b].size for a, b in self.contacts]
        return _Tables(
            difference=(pos[:, sources] - pos[:, targets]).reshape(2 * len(self._pairs), self.rows.size).to(like),
            reach=torch.tensor(reach, dtype=torch.float64).view(-1, 1).to(like),
            push=push.to(like).expand(2, -1, -1),
            ends=(push != 0).to(like),
            zero=like.new_zeros(()),
            max_speed=torch.tensor(limits, dtype=torch.float64).unsqueeze(1).to(like),
        )

    # -------------------------------------------------------------------------------------------------- motion

    def positions(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Where every body is: [2, bodies, B]."""
        return torch.cat((parts["moving"], parts["rest"]), dim=1)

    def scale(self, state: Mapping[str, Tensor]) -> Tensor | None:
        """What scales each mover's thrust and speed limit: [M, B], None where nothing does."""
        paces, every = {i: state[pace] for i, pace in self._paces.items() if pace in state}, state.get("speed")
        if not paces:
            return None if every is None else every.expand(self.movers, -1)
        one = torch.ones_like(next(iter(paces.values())))
        scale = torch.stack([paces.get(i, one) for i in range(self.movers)])
        return scale if every is None else scale * every

    def move(self, flat: Tensor, coast: Tensor, thrust: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
        """Positions and velocities of the movers after a step, [2, M, B] each.

            mpe2:   p' = p + dt v;   v' = limit(coast + thrust)
            openai: v' = limit(coast + thrust);   p' = p + dt v'

        flat: [F, B]; coast: [2, M, B], what damping and contact leave of the velocity; thrust: [2, M, B], the change of
        velocity by the agents themselves; scale: [M, B] or None.
        """
        if scale is not None:
            thrust = thrust * scale
        vel = coast + thrust
        if self._fast:
            limit = self.tables(flat).max_speed
            if scale is not None:
                limit = limit * scale
            vel = vel * (limit / torch.hypot(vel[0], vel[1])).clamp_(max=1)
        before = self.rows.part(flat, "vel") if self.variant == "mpe2" else vel
        return torch.add(self.rows.part(flat, "moving"), before, alpha=DT), vel

    def measure(self, flat: Tensor) -> Gaps:
        """Offsets and distances of the measured pairs, and how deep the contacts are."""
        tables = self.tables(flat)
        offset = torch.mm(tables.difference, flat).view(2, len(self._pairs), flat.shape[1])
        x, y = offset.unbind()
        distance = torch.hypot(x, y)
        return Gaps(offset, distance, tables.reach - distance[: len(self.contacts)] if self.contacts else None)

    def coast(self, vel: Tensor, gaps: Gaps, damping: Tensor | None = None) -> Tensor:
        """The velocity [2, M, B] that damping and contact leave for the next step, before the agents' own thrust.

        push = contact_force * margin * softplus((reach - d) / margin), along the line between the two

        damping: [B], the part of its velocity that a body loses, where that is not `DAMPING`.
        """
        kept = 1 - DAMPING if damping is None else 1.0
        if damping is not None:
            vel = vel * (1 - damping)
        if gaps.depth is None:
            return vel * kept
        count = len(self.contacts)
        push = functional.softplus(gaps.depth, beta=1 / CONTACT_MARGIN)
        push /= gaps.distance[:count].clamp_min(_NO_DISTANCE)
        return torch.baddbmm(vel, self.tables(vel).push, gaps.offset[:, :count] * push, beta=kept)

    # ------------------------------------------------------------------------------------------------ readings

    def between(self, gaps: Gaps, name: str) -> Tensor:
        """The measured distances of that name: [sources, targets, B]."""
        rows, shape = self._places[name]
        return gaps.distance[rows].view(*shape, gaps.distance.shape[1])

    def touching(self, gaps: Gaps) -> Tensor:
        """1 for every contact that touches, else 0: [contacts, B]."""
        if gaps.depth is None:
            return gaps.distance[:0]
        return torch.heaviside(gaps.depth, self.tables(gaps.depth).zero)

    def by_mover(self, contacts: Tensor) -> Tensor:
        """For each mover the sum over its contacts: [contacts, B] to [M, B]."""
        return torch.mm(self.tables(contacts).ends, contacts)

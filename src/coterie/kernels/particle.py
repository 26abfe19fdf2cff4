"""One step of the particle worlds' physics as one operator. Environments are in the last axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from coterie.kernels import native
from coterie.kernels.operators import Operator


@dataclass(frozen=True)
class ParticleConstants:
    """Constants of a particle world.

    Attributes:
        movers: Number M of moving bodies.
        resting: Number of resting bodies.
        messages: Rows of the state that hold messages.
        pairs: Measured pairs of bodies, contacts first.
        contact_distance: [contacts, 1], the distance below which a pair is in contact.
        inverse_mass: [M].
        max_speed: [M, 1], infinite without a limit; None if no body has one.
        numbers: dt; the fraction of velocity that is kept; dt x contact force x margin; 1 / margin; least distance.
        velocity_first: True if positions move with the velocity before the step.
    """

    movers: int
    resting: int
    messages: int
    pairs: Sequence[tuple[int, int]]
    contact_distance: Tensor
    inverse_mass: Tensor
    max_speed: Tensor | None
    numbers: tuple[float, ...]
    velocity_first: bool


def particle_step(
    constants: ParticleConstants,
    flat: Tensor,
    coasting: Tensor,
    thrust: Tensor,
    *,
    messages: Tensor | None,
    scale: Tensor | None,
    damping: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Moves bodies and measures distances, see `coterie.envs.worlds.particle.physics`.

    Args:
        constants: Constants of the world.
        flat: The state [F, B].
        coasting: Velocity after damping and contact [2, M, B].
        thrust: Change of velocity by the agents' actions [2, M, B].
        messages: New messages [rows, B]; None if nobody speaks.
        scale: Factor on thrust and speed limits [M, B]; None for 1.
        damping: Fraction of its velocity that a body loses per step [B]; None for the default.

    Returns:
        The next state [F, B], distances [P, B], penetrations of contacts [contacts, B], and the next velocity after
        damping and contact [2, M, B]. None if there is no kernel for the type or the device, or gradients are needed.
    """
    if not native.is_supported(flat, coasting, thrust) or flat.requires_grad or thrust.requires_grad:
        return None
    pairs = constants.pairs
    sizes = [constants.movers, constants.resting, constants.messages, len(pairs), int(constants.velocity_first)]
    sizes += [first for first, _ in pairs] + [second for _, second in pairs]
    tensors = (messages, scale, constants.max_speed, damping, constants.contact_distance, constants.inverse_mass)
    return _STEP(flat, coasting, thrust, *tensors, sizes, constants.numbers)


def _empty(flat: Tensor, coasting: Tensor, contact_distance: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    envs = flat.shape[1]
    return (
        flat.new_empty(flat.shape),
        flat.new_empty(sizes[3], envs),
        flat.new_empty(len(contact_distance), envs),
        flat.new_empty(coasting.shape),
    )


def _step(
    flat, coasting, thrust, messages, scale, max_speed, damping, contact_distance, inverse_mass, sizes, constants
):
    movers, resting, rows, pairs, velocity_first, *bodies = sizes
    out = _empty(flat, coasting, contact_distance, sizes)
    numbers = native.integers(
        *(flat.shape[1], movers, resting, rows, len(flat) - 4 * movers - rows),
        *(pairs, len(contact_distance), velocity_first, *bodies),
    )
    optional = [None if x is None else x.contiguous() for x in (messages, scale, max_speed, damping)]
    inputs = (flat.contiguous(), coasting.contiguous(), thrust.contiguous(), *optional, contact_distance, inverse_mass)
    native.call("particle_step", flat.dtype, numbers, native.reals(*constants), *inputs, *out)
    return out


def _fake_step(
    flat, coasting, thrust, messages, scale, max_speed, damping, contact_distance, inverse_mass, sizes, constants
):
    return _empty(flat, coasting, contact_distance, sizes)


_STEP = Operator(
    "particle_step",
    "(Tensor flat, Tensor coasting, Tensor thrust, Tensor? messages, Tensor? scale, Tensor? max_speed, "
    "Tensor? damping, Tensor contact_distance, Tensor inverse_mass, int[] sizes, float[] constants) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _step,
    _fake_step,
)

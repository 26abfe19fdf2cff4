"""One step of a particle world as one call. Environments are in the last axis unless stated otherwise."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.kernels import native


@dataclass(frozen=True)
class ActionTables:
    """The effect of each choice of each role's agents.

    Attributes:
        agents: Number of agents, by role.
        choices: Number of choices A, by role.
        move: Offset in `table` of the changes of velocity [2, A], by role; -1 for none.
        speech: Offset in `table` of the messages [C, A], by role; -1 for none.
        movers: Role and index of the agent of each moving body; (-1, 0) if nobody controls it.
        speakers: Role and index of each speaker.
        table: All tables, one after another.
    """

    agents: Sequence[int]
    choices: Sequence[int]
    move: Sequence[int]
    speech: Sequence[int]
    movers: Sequence[tuple[int, int]]
    speakers: Sequence[tuple[int, int]]
    table: Tensor


@dataclass(frozen=True)
class ObservationMap:
    """An affine map from the state [F] to the observations of all agents [D].

    Attributes:
        terms: [D + 1], the first term of each observed number.
        source: The row of the state that each term reads.
        weight: [terms].
        bias: [D]; None for zeros.
    """

    terms: Sequence[int]
    source: Sequence[int]
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class CoverageReward:
    """The reward of simple_spread, see `coterie.envs.worlds.particle.spread`.

    Attributes:
        agents: Number of agents, which are the first moving bodies.
        landmarks: Number of landmarks.
        first_pair: Index of the distance between the first agent and the first landmark.
        covered: Distance below which a landmark is covered.
        shared: True if every agent receives the sum of all rewards and counts a collision with itself.
        terminates: True if the episode ends when all landmarks are covered.
    """

    agents: int
    landmarks: int
    first_pair: int
    covered: float
    shared: bool
    terminates: bool


@dataclass(frozen=True)
class ParticleConstants:
    """Constants of a particle world.

    Attributes:
        movers: Number M of moving bodies.
        resting: Number of resting bodies.
        speech: Size of the vocabulary C, and number of speakers.
        rows: Rows F of the state.
        pairs: Measured pairs of bodies, contacts first.
        contact_distance: [contacts, 1], the distance below which a pair is in contact.
        inverse_mass: [M].
        max_speed: [M, 1], infinite without a limit; None if no body has one.
        numbers: dt; the fraction of velocity that is kept; dt x contact force x margin; 1 / margin; least distance.
        velocity_first: True if positions move with the velocity before the step.
        actions: None if thrust and messages are arguments.
        observations: None if they are not computed.
        reward: None if it is not computed.
    """

    movers: int
    resting: int
    speech: tuple[int, int]
    rows: int
    pairs: Sequence[tuple[int, int]]
    contact_distance: Tensor
    inverse_mass: Tensor
    max_speed: Tensor | None
    numbers: tuple[float, ...]
    velocity_first: bool
    actions: ActionTables | None = None
    observations: ObservationMap | None = None
    reward: CoverageReward | None = None
    _cached: dict[int, tuple[array[int], array[float]]] = field(default_factory=dict)

    def arrays(self, envs: int) -> tuple[array[int], array[float]]:
        """Returns the numbers that the C function reads, integers and reals, for a number of environments."""
        if envs not in self._cached:
            covered = 0.0 if self.reward is None else self.reward.covered
            self._cached[envs] = native.integers(envs, *self._integers()), native.reals(*self.numbers, covered)
        return self._cached[envs]

    def _integers(self) -> list[int]:
        rest = self.rows - 4 * self.movers - self.speech[0] * self.speech[1]
        bodies = [self.movers, self.resting, *self.speech, rest]
        pairs = [len(self.pairs), len(self.contact_distance), int(self.velocity_first)]
        terms = [0] if self.observations is None else [*self.observations.terms]
        source = [] if self.observations is None else [*self.observations.source]
        reward = [0] * 5
        if (own := self.reward) is not None:
            reward = [own.agents, own.landmarks, own.first_pair, int(own.shared), int(own.terminates)]
        firsts, seconds = [first for first, _ in self.pairs], [second for _, second in self.pairs]
        roles = [0] + [-1] * self.movers + [0] * self.movers + [-1] * self.speech[1] + [0] * self.speech[1]
        by_role: list[int] = []
        if (tables := self.actions) is not None:
            by_role = [*tables.agents, *tables.choices, *tables.move, *tables.speech]
            places = [*zip(*tables.movers, strict=True), *zip(*tables.speakers, strict=True)]
            roles = [len(tables.agents), *(number for place in places for number in place)]
        return [
            *bodies,
            *pairs,
            len(terms) - 1,
            *reward,
            roles[0],
            *firsts,
            *seconds,
            *by_role,
            *roles[1:],
            *terms,
        ] + source


class StepInputs(NamedTuple):
    """Tensors that a step reads, contiguous and of one type but for choices and flags; None for none.

    Attributes:
        flat: The state [B, F], from `envs_last`.
        coasting: Velocity after damping and contact [B, 2, M], from `envs_last`.
        returns: Sum of each agent's rewards [B, N], from `envs_last`.
        choices: Of each role [B, n, 1] int64.
        thrust: Change of velocity by the agents' actions [2, M, B], without `choices`.
        messages: New messages [C S, B], without `choices`.
        scale: Factor on thrust and speed limits [M, B].
        damping: Fraction of its velocity that a body loses per step [B]; None for the default.
        resetting: Where a new episode starts [B] bool.
        initial: States of the new episodes [B, F], from `envs_last`.
        local_ratio: Weight of the agent's own collisions [B].
        collision_weight: Factor on collisions [B].
    """

    flat: Tensor
    coasting: Tensor
    returns: Tensor
    choices: Sequence[Tensor] = ()
    thrust: Tensor | None = None
    messages: Tensor | None = None
    scale: Tensor | None = None
    damping: Tensor | None = None
    resetting: Tensor | None = None
    initial: Tensor | None = None
    local_ratio: Tensor | None = None
    collision_weight: Tensor | None = None


class StepOutputs(NamedTuple):
    """Results of a step. None for what was not asked for.

    Attributes:
        flat: The next state [B, F].
        coasting: The next velocity after damping and contact [B, 2, M].
        returns: Sum of each agent's rewards [B, N], with `reward`.
        distance: Distances of all pairs [P, B], without `reward`.
        penetration: Penetrations of contacts [contacts, B], without `reward`.
        obs: Observations of all agents [B, D].
        reward: [B, N], zero where a new episode starts.
        terminated: [B] bool, True where all landmarks are covered.
        counts: Number of covered landmarks and of pairs in contact [2, B], with `reward`.
    """

    flat: Tensor
    coasting: Tensor
    returns: Tensor | None
    distance: Tensor | None
    penetration: Tensor | None
    obs: Tensor | None
    reward: Tensor | None
    terminated: Tensor | None
    counts: Tensor | None


def particle_step(constants: ParticleConstants, inputs: StepInputs) -> StepOutputs:
    """Advances all environments by one step, see `coterie.envs.worlds.particle.physics`.

    Nothing is differentiated. The caller checks types and devices of all but the choices with `native.is_supported`.

    Raises:
        IndexError: If a choice is out of range.
        TypeError: If choices are no int64 on the CPU.
        ValueError: If their shape is not [B, n, 1].
    """
    flat, envs = inputs.flat, len(inputs.flat)
    out = _empty(constants, inputs, envs)
    tables = constants.actions
    agents = () if tables is None else tables.agents
    if len(inputs.choices) != len(agents):
        raise ValueError(f"particle_step: choices of {len(inputs.choices)} roles, expected {len(agents)}.")
    for number, choices in zip(agents, inputs.choices, strict=True):
        native.check("particle_step", ("choices", choices, torch.int64, (envs, number, 1)))
    invalid = native.integers(0)
    native.call("particle_step", flat.dtype, *constants.arrays(envs), _addresses(constants, inputs, out, invalid))
    if invalid[0]:
        raise IndexError("an action is not one of the choices")
    return out


def _addresses(constants: ParticleConstants, inputs: StepInputs, out: StepOutputs, invalid: array[int]) -> array[int]:
    """Returns addresses in the order of `read_data` in particle.cpp, and those of the choices of each role."""
    tables, observations = constants.actions, constants.observations
    return native.addresses(
        *(inputs.flat, inputs.coasting, inputs.returns, inputs.thrust, inputs.messages),
        *(None if tables is None else tables.table, inputs.scale, constants.max_speed, inputs.damping),
        *(constants.contact_distance, constants.inverse_mass),
        *((None, None) if observations is None else (observations.weight, observations.bias)),
        *(inputs.resetting, inputs.initial, inputs.local_ratio, inputs.collision_weight),
        *out[:-2],
        *(out.counts, out.terminated),
        invalid.buffer_info()[0],
        *(inputs.choices or [None]),
    )


class StepMemory(NamedTuple):
    """Arguments of the C function for steps, and memory of their results.

    Attributes:
        sizes, numbers: Of the world.
        episodes: Addresses of the arguments of a step in the present episode, then in the episode of each step [1 + T].
            The first step of another episode does not move anything, but leads to the state that these arguments have.
        flat: The present state, and that after each step [1 + T, F, B].
        coasting: Velocity after damping and contact, after the last two steps [2, 2, M, B].
        returns: Sum of each agent's rewards, after the last two steps [2, N, B].
        obs: Observations of all agents [1 + T, B, D], of which the first are not written.
        reward: Of each step [T, B, N].
        counts: Number of covered landmarks and of pairs in contact after each step [T, 2, B].
        kept: Tensors and arrays at the addresses.
    """

    sizes: array[int]
    numbers: array[float]
    episodes: array[int]
    flat: Tensor
    coasting: Tensor
    returns: Tensor
    obs: Tensor
    reward: Tensor
    counts: Tensor
    kept: tuple[Any, ...]


def several_steps(
    constants: ParticleConstants, inputs: Sequence[StepInputs], observed: Sequence[Tensor], final: Sequence[bool]
) -> StepMemory:
    """Prepares steps of a world with reward and observations whose actions are choices of one role's agents.

    Args:
        constants: Of the world.
        inputs: Of the present state, and of the initial states of the episodes that begin.
        observed: Observations of the initial states, contiguous.
        final: [1 + T], True at timesteps from which a step leads to the next initial state.
    """
    assert constants.observations is not None
    assert constants.reward is not None
    flat, steps, agents = inputs[0].flat, len(final) - 1, constants.reward.agents
    envs, columns, invalid = len(flat), len(constants.observations.terms) - 1, native.integers(0)
    episodes = []
    for own, obs in zip(inputs, (None, *observed), strict=True):
        read = StepOutputs(own.flat, own.coasting, own.returns, None, None, obs, None, None, None)
        episodes.append(_addresses(constants, own, read, invalid))
    number, places = 0, [episodes[0].buffer_info()[0]]
    for is_final in final[:-1]:
        number += is_final
        places.append(episodes[number].buffer_info()[0])
    states = flat.new_empty(1 + steps, constants.rows, envs)
    states[0].copy_(flat.T)
    return StepMemory(
        *constants.arrays(envs),
        episodes=native.addresses(*places),
        flat=states,
        coasting=flat.new_empty(2, 2, constants.movers, envs),
        returns=flat.new_empty(2, agents, envs),
        obs=flat.new_empty(1 + steps, envs, columns),
        reward=flat.new_empty(steps, envs, agents),
        counts=flat.new_empty(steps, 2, envs),
        kept=(constants, inputs, observed, episodes, invalid),
    )


def envs_last(x: Tensor) -> Tensor:
    """Returns x [B, ..] with its environments adjacent in memory: a view of [.., B]."""
    return x if x.stride() == _strides(x) else x.movedim(0, -1).contiguous().movedim(-1, 0)


def _strides(x: Tensor) -> tuple[int, ...]:
    """Returns the strides of a view of memory [.., B] as [B, n] or [B, 2, n]."""
    envs = x.shape[0]
    return (1, envs) if x.ndim == 2 else (1, x.shape[2] * envs, envs)


def _empty(constants: ParticleConstants, inputs: StepInputs, envs: int) -> StepOutputs:
    """Returns memory for the results. `empty_like` keeps the layout of `envs_last`."""
    flat, reward, observations = inputs.flat, constants.reward, constants.observations
    return StepOutputs(
        flat=torch.empty_like(flat),
        coasting=torch.empty_like(inputs.coasting),
        returns=None if reward is None else torch.empty_like(inputs.returns),
        distance=flat.new_empty(len(constants.pairs), envs) if reward is None else None,
        penetration=flat.new_empty(len(constants.contact_distance), envs) if reward is None else None,
        obs=None if observations is None else flat.new_empty(envs, len(observations.terms) - 1),
        reward=None if reward is None else flat.new_empty(envs, reward.agents),
        terminated=torch.empty(envs, dtype=torch.bool) if reward is not None and reward.terminates else None,
        counts=None if reward is None else flat.new_empty(2, envs),
    )

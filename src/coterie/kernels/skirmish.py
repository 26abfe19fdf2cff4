"""One step of a skirmish world as one call. Environments are in the last axis unless stated otherwise."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.kernels import native


class Sizes(NamedTuple):
    """Integers of a map, in the order of `Sizes` in skirmish.cpp.

    Attributes:
        rows: Number F of features of a unit.
        allies: Number n of units of the first side.
        size: Number U of units.
        choices: Number A of an ally's actions.
        enemy_orders: Number of orders of each unit of the second side.
        slots: Number of actions that choose a target.
        kinds: Number K of kinds of units that are observed; 0 if every side has a single one.
        points: Rows of health and shield, 1 or 2.
        heals: 1 if there are healers.
        ally_shields, enemy_shields: 1 if a unit of the side has a shield.
        scripted: 1 if the second side chooses its targets itself, 0 if it takes actions.
        weakest: 1 if it prefers the weakest target within reach.
        walled: 1 if there is a wall.
        shaped: 1 for rewards for damage, 0 for won battles only.
        obs: Numbers D that an agent observes.
        state: Size S of the state; 0 if it is not computed.
    """

    rows: int
    allies: int
    size: int
    choices: int
    enemy_orders: int
    slots: int
    kinds: int
    points: int
    heals: int
    ally_shields: int
    enemy_shields: int
    scripted: int
    weakest: int
    walled: int
    shaped: int
    obs: int
    state: int


class SkirmishTables(NamedTuple):
    """Tables of a map, contiguous, float32 unless stated otherwise. See `coterie.envs.worlds.skirmish.units.Tables`.

    Orders are those of all units, one unit after another, E in total.

    Attributes:
        sheet: [5, E].
        shift: [2, E], displacement to the destination of a move.
        period: [U].
        full, inverse_full: [2, U].
        contact: [U, U].
        radius, beam_width: [U].
        beam: [2, U, U].
        park: [2, U].
        unfit: [m, n]; None if all allies can be hit.
        reach2: [m, n].
        types: [K, U].
        per_period: [n].
        per_energy: [n], fraction of a healer's energy per point of energy.
        armed: [U] bool.
        fit: [n, slots] bool; None if all actions target the enemies in their order.
        target: [E] int64.
        slot: [n, slots] int64.
    """

    sheet: Tensor
    shift: Tensor
    period: Tensor
    full: Tensor
    inverse_full: Tensor
    contact: Tensor
    radius: Tensor
    beam_width: Tensor
    beam: Tensor
    park: Tensor
    unfit: Tensor | None
    reach2: Tensor
    types: Tensor
    per_period: Tensor
    per_energy: Tensor
    armed: Tensor
    fit: Tensor | None
    target: Tensor
    slot: Tensor


@dataclass(frozen=True)
class SkirmishConstants:
    """Constants of a skirmish world.

    Attributes:
        sizes: Integers.
        numbers: Reals, in the order of `Numbers` in skirmish.cpp.
        tables: Tensors.
        beams: Units with a beam.
        healers: Healers of a scripted side.
        teammates: Units that they heal.
    """

    sizes: Sizes
    numbers: Sequence[float]
    tables: SkirmishTables
    beams: Sequence[int]
    healers: Sequence[int]
    teammates: Sequence[int]
    _cached: dict[int, tuple[array[int], array[float]]] = field(default_factory=dict)

    def arrays(self, envs: int) -> tuple[array[int], array[float]]:
        """Returns the numbers that the C function reads, integers and reals, for a number of environments."""
        if envs not in self._cached:
            lists = (self.beams, self.healers, self.teammates)
            integers = native.integers(
                envs, *self.sizes, *map(len, lists), *(unit for units in lists for unit in units)
            )
            self._cached[envs] = integers, array("f", self.numbers)
        return self._cached[envs]


class BattleInputs(NamedTuple):
    """Tensors that a step reads, float32 unless stated otherwise; None for none.

    Attributes:
        units: Features [F, U, B].
        choices: Actions of the first side [B, n, 1] int64.
        enemy_choices: Actions of the second side [B, m, 1] int64, unless it is scripted.
        enemy_damage: Factor on the damage by a scripted side [B].
        begun: Fraction of its points with which it started [B]; None for all.
        resetting: Where a new episode starts [B] bool.
        initial: Features of the new episodes [F, U, B].
    """

    units: Tensor
    choices: Tensor
    enemy_choices: Tensor | None = None
    enemy_damage: Tensor | None = None
    begun: Tensor | None = None
    resetting: Tensor | None = None
    initial: Tensor | None = None


class BattleOutputs(NamedTuple):
    """Results of a step. V is the number of sides that observe; the second one's environments follow the first's.

    Attributes:
        units: Features [F, U, B] after the step and the start of new episodes.
        reward: [B, V], by side.
        obs: [V B, n, D].
        state: [V B, S]; None if it is not computed.
        metrics: [4, B], whether the first and the second side won, and their numbers of dead units.
        ended: [B] bool, one side has no unit left that attacks.
        died: [U, B] bool, units that died in this step.
        alive: [U, B] bool, after the start of new episodes.
        mask: [V B, n, A] bool.
    """

    units: Tensor
    reward: Tensor
    obs: Tensor
    state: Tensor | None
    metrics: Tensor
    ended: Tensor
    died: Tensor
    alive: Tensor
    mask: Tensor


def skirmish_step(constants: SkirmishConstants, inputs: BattleInputs) -> BattleOutputs:
    """Advances all battles by one step, starts new episodes and observes, see `coterie.envs.worlds.skirmish`.

    Nothing is differentiated.

    Raises:
        IndexError: If an action is not one of the choices.
        TypeError: If an argument has another type or device.
        ValueError: If it has another shape.
    """
    sizes, envs, number = constants.sizes, inputs.units.shape[-1], torch.float32
    battle, enemies = (sizes.rows, sizes.size, envs), sizes.size - sizes.allies
    native.check(
        "skirmish_step",
        ("units", inputs.units, number, battle),
        ("choices", inputs.choices, torch.int64, (envs, sizes.allies, 1)),
        ("enemy_choices", inputs.enemy_choices, torch.int64, (envs, enemies, 1)),
        ("enemy_damage", inputs.enemy_damage, number, (envs,)),
        ("begun", inputs.begun, number, (envs,)),
        ("resetting", inputs.resetting, torch.bool, (envs,)),
        ("initial", inputs.initial, number, battle),
    )
    given = [None if x is None else x.contiguous() for x in inputs]
    out, invalid = _empty(sizes, inputs.units, envs), native.integers(0)
    addresses = native.addresses(*constants.tables, *given, *out, invalid.buffer_info()[0])
    native.call("skirmish_step", number, *constants.arrays(envs), addresses)
    if invalid[0]:
        raise IndexError("an action is not one of the choices")
    return out


def _empty(sizes: Sizes, units: Tensor, envs: int) -> BattleOutputs:
    """Returns memory for the results."""
    views = 1 if sizes.scripted else 2
    rows, n = views * envs, sizes.allies

    def flags(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bool)

    return BattleOutputs(
        units=units.new_empty(units.shape),
        reward=units.new_empty(envs, views),
        obs=units.new_empty(rows, n, sizes.obs),
        state=units.new_empty(rows, sizes.state) if sizes.state else None,
        metrics=units.new_empty(4, envs),
        ended=flags(envs),
        died=flags(sizes.size, envs),
        alive=flags(sizes.size, envs),
        mask=flags(rows, n, sizes.choices),
    )

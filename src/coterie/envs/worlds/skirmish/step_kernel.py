"""The kernel that advances a battle: constants and arguments from its description and state."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.envs.worlds.skirmish import combat, enemy, rewards, units
from coterie.envs.worlds.skirmish.combat import Layout, Wall
from coterie.envs.worlds.skirmish.enemy import Enemy
from coterie.envs.worlds.skirmish.observations import AIM, MARGIN, SIGHT, ObservationBuilder
from coterie.envs.worlds.skirmish.units import Force, TableCache, Tables
from coterie.envs.worlds.world import State
from coterie.kernels import native
from coterie.kernels.skirmish import (
    BattleInputs,
    BattleOutputs,
    Sizes,
    SkirmishConstants,
    SkirmishTables,
    skirmish_step,
)


class StepKernel:
    """Advances all battles by one step, starts episodes, and observes.

    Args:
        force: units of the map.
        layout: features of the units.
        tables: tables of the map.
        enemy: the scripted side; None if both sides take actions.
        shaped: True for rewards for damage, False for won battles only.
        observations: what agents observe.
        with_state: True if states are computed.
    """

    def __init__(
        self,
        force: Force,
        layout: Layout,
        tables: TableCache,
        *,
        enemy: Enemy | None,
        shaped: bool,
        observations: ObservationBuilder,
        with_state: bool,
    ):
        self._force, self._layout, self._tables = force, layout, tables
        self._enemy, self._shaped = enemy, shaped
        self._obs_size, self._state_size = observations.size, observations.state_size if with_state else 0
        self._constants: SkirmishConstants | None = None

    def __call__(
        self, state: State, choices: list[Tensor], resetting: Tensor | None, initial: State | None
    ) -> BattleOutputs | None:
        """Advances a state by one step, and replaces its units by those of `initial` where `resetting` [B].

        Returns None if there is no kernel for the types, the device or a single environment, whose numbers PyTorch adds
        in another order.

        Args:
            state: the state.
            choices: actions of each side that takes some, [B, n, 1] int64.
            resetting: where a new episode starts; None for nowhere.
            initial: states of the new episodes.
        """
        rows = state["units"]
        if native.is_traced(rows) or not native.is_supported(rows) or rows.dtype is not torch.float32 or len(rows) == 1:
            return None
        if any(x.dtype is not torch.int64 for x in choices):
            return None
        inputs = BattleInputs(
            units=rows.permute(1, 2, 0),
            choices=choices[0],
            enemy_choices=choices[1] if len(choices) > 1 else None,
            enemy_damage=state.get("enemy_damage"),
            begun=state.get("enemy_health"),
            resetting=resetting,
            initial=None if initial is None else initial["units"].permute(1, 2, 0),
        )
        return skirmish_step(self._constants_for(rows), inputs)

    def _constants_for(self, like: Tensor) -> SkirmishConstants:
        if self._constants is None:
            foe = self._enemy
            with torch.inference_mode(False):
                tables = self._make_tables(self._tables.get(like))
            healers, teammates = ((), ()) if foe is None else (foe.healers, foe.teammates)
            self._constants = SkirmishConstants(
                self._sizes(), self._numbers(), tables, self._force.beams, healers, teammates
            )
        return self._constants

    def _sizes(self) -> Sizes:
        force, layout, foe = self._force, self._layout, self._enemy
        return Sizes(
            rows=len(layout.names),
            allies=force.n,
            size=force.size,
            choices=force.choices,
            enemy_orders=force.choices if foe is None else force.size + 1,
            slots=force.slots,
            kinds=len(force.names) if force.typed else 0,
            points=layout.points.stop - layout.points.start,
            heals=int(layout.heals),
            ally_shields=int(force.shielded[0]),
            enemy_shields=int(force.shielded[1]),
            scripted=int(foe is not None),
            weakest=int(foe is not None and foe.focus == "weakest"),
            walled=int(foe is not None and foe.wall is not None),
            shaped=int(self._shaped),
            obs=self._obs_size,
            state=self._state_size,
        )

    def _numbers(self) -> list[float]:
        """Returns `Numbers` of skirmish.cpp in their order."""
        force, foe = self._force, self._enemy
        wall = (foe and foe.wall) or Wall()
        inner = wall.gap - wall.margin
        return [
            *(combat.SUBSTEPS, combat.TICKS, units.STEP, combat.SIZE, combat.PUSH, combat.BEAM_DEPTH),
            *(combat.AWAY, combat.NEAR, combat.SAME, combat.CLOSE),
            *(units.HEALTH_FOR_ENERGY, units.ENERGY_GROWTH * combat.TICKS, units.ENERGY),
            *(units.SHIELD_DELAY, units.SHIELD_GROWTH * units.STEP),
            *(wall.x, wall.gap, wall.margin, combat.SIZE / 2 - inner, combat.SIZE / 2 + inner),
            *(SIGHT, SIGHT**2, 1 / SIGHT, AIM, MARGIN),
            *(enemy.FIRST, enemy.WHOLE, enemy.NOBODY, *(foe.home if foe else (0.0, 0.0))),
            *(rewards.KILL, rewards.WIN, rewards.BEST),
            *(force.total, rewards.KILL * force.m, rewards.scale(force, 1.0)),
        ]

    def _make_tables(self, tables: Tables) -> SkirmishTables:
        force = self._force
        sheet, shift, target = self._orders(tables)
        return SkirmishTables(
            sheet=sheet,
            shift=shift,
            period=tables.period,
            full=tables.full,
            inverse_full=tables.inverse_full,
            contact=tables.contact,
            radius=tables.radius,
            beam_width=tables.radius.new_tensor([unit.beam for unit in force.units]),
            beam=tables.beam,
            park=tables.park,
            unfit=tables.unfit,
            reach2=tables.reach2,
            types=tables.types,
            per_period=tables.per_period,
            per_energy=tables.heals / units.ENERGY,
            armed=tables.armed,
            fit=tables.fit,
            target=target,
            slot=tables.slot,
        )

    def _orders(self, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        """Sheets [R, E], displacements [2, E] and targets [E] of the orders of all units."""
        force, shift, aim = self._force, tables.ally_shift, tables.ally_aim
        if self._enemy is None:  # `Duel._orders`: the second side numbers its own units first, and its east is west
            sheet, aims = tables.ally_sheet, (aim + force.n) % force.size
            moves = shift * shift.new_tensor([[-1.0], [1.0]])
        else:
            sheet, aims = tables.enemy_sheet, tables.enemy_aim
            moves = shift.new_zeros(2, sheet.shape[1])
        return torch.cat((tables.ally_sheet, sheet), 1), torch.cat((shift, moves), 1), torch.cat((aim, aims))

"""The kernel that advances a battle: constants and arguments from its description and state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.envs.worlds.skirmish import combat, units
from coterie.envs.worlds.skirmish.combat import Layout, Wall
from coterie.envs.worlds.skirmish.observations import AIM, MARGIN, SIGHT, ObservationBuilder
from coterie.envs.worlds.skirmish.units import Force, TableCache, Tables
from coterie.envs.worlds.world import State
from coterie.kernels import native
from coterie.kernels.skirmish import (
    BattleInputs,
    BattleOutputs,
    Numbers,
    Sizes,
    SkirmishConstants,
    SkirmishTables,
    skirmish_step,
)


class Script(NamedTuple):
    """Constants of the scripted enemy, see `coterie.envs.worlds.skirmish.battle.Enemy`."""

    weakest: bool
    home: tuple[float, float]
    first: float
    whole: float
    nobody: float
    healers: tuple[int, ...]
    teammates: tuple[int, ...]


class Reward(NamedTuple):
    """Constants of the reward; kill, win and best: points per kill and victory, and in total after scaling."""

    shaped: bool
    kill: float
    win: float
    best: float
    scale: float


_NO_SCRIPT = Script(False, (0.0, 0.0), 0.0, 0.0, 0.0, (), ())


class StepKernel:
    """Advances all battles by one step, starts episodes, and observes.

    Args:
        force: units of the map.
        layout: features of the units.
        wall: wall of the map.
        tables: tables of the map.
        script: choice of the second side's targets; None if it takes actions.
        reward: the reward.
        observations: what agents observe.
        with_state: True if states are computed.
    """

    def __init__(
        self,
        force: Force,
        layout: Layout,
        wall: Wall | None,
        tables: TableCache,
        *,
        script: Script | None,
        reward: Reward,
        observations: ObservationBuilder,
        with_state: bool,
    ):
        self._force, self._layout, self._wall, self._tables = force, layout, wall, tables
        self._script, self._reward = script, reward
        self._obs_size, self._state_size = observations.size, observations.state_size if with_state else 0
        self._constants: SkirmishConstants | None = None

    def __call__(
        self, state: State, choices: list[Tensor], resetting: Tensor | None, initial: State | None
    ) -> BattleOutputs | None:
        """Advances a state by one step, and replaces its units by those of `initial` where `resetting` [B].

        Returns None if there is no kernel for the type, the device or a single environment.

        Args:
            state: the state.
            choices: actions of each side that takes some, [B, n, 1] int64.
            resetting: where a new episode starts; None for nowhere.
            initial: states of the new episodes.
        """
        rows = state["units"]
        # PyTorch adds the numbers of a single environment in another order.
        if type(rows) is not Tensor or not native.is_supported(rows) or len(rows) == 1:
            return None
        if rows.dtype is not torch.float32:
            return None
        first, second = choices if len(choices) > 1 else (choices[0], None)
        return skirmish_step(
            self._constants_for(rows),
            BattleInputs(
                units=rows.permute(1, 2, 0).contiguous(),
                choices=first.contiguous(),
                enemy_choices=None if second is None else second.contiguous(),
                enemy_damage=state.get("enemy_damage"),
                begun=state.get("enemy_health"),
                resetting=resetting,
                initial=None if initial is None else initial["units"].permute(1, 2, 0).contiguous(),
            ),
        )

    def _constants_for(self, like: Tensor) -> SkirmishConstants:
        if self._constants is None:
            force, script = self._force, self._script or _NO_SCRIPT
            with torch.inference_mode(False):
                tables = self._make_tables(self._tables.get(like))
            self._constants = SkirmishConstants(
                self._sizes(), self._numbers(script), tables, force.beams, script.healers, script.teammates
            )
        return self._constants

    def _sizes(self) -> Sizes:
        force, layout = self._force, self._layout
        return Sizes(
            rows=len(layout.names),
            allies=force.n,
            size=force.size,
            choices=force.choices,
            enemy_orders=force.choices if self._script is None else force.size + 1,
            slots=force.slots,
            kinds=len(force.names) if force.typed else 0,
            points=layout.points.stop - layout.points.start,
            heals=int(layout.heals),
            ally_shields=int(force.shielded[0]),
            enemy_shields=int(force.shielded[1]),
            scripted=int(self._script is not None),
            weakest=int(self._script is not None and self._script.weakest),
            walled=int(self._wall is not None),
            shaped=int(self._reward.shaped),
            obs=self._obs_size,
            state=self._state_size,
        )

    def _numbers(self, script: Script) -> Numbers:
        wall, reward, force = self._wall or Wall(), self._reward, self._force
        inner = wall.gap - wall.margin
        return Numbers(
            substeps=combat.SUBSTEPS,
            ticks=combat.TICKS,
            step=units.STEP,
            size=combat.SIZE,
            push=combat.PUSH,
            beam_depth=combat.BEAM_DEPTH,
            away=combat.AWAY,
            near=combat.NEAR,
            same=combat.SAME,
            close=combat.CLOSE,
            health_for_energy=units.HEALTH_FOR_ENERGY,
            energy_growth=units.ENERGY_GROWTH * combat.TICKS,
            energy=units.ENERGY,
            shield_delay=units.SHIELD_DELAY,
            shield_growth=units.SHIELD_GROWTH * units.STEP,
            wall=(wall.x, wall.gap, wall.margin, combat.SIZE / 2 - inner, combat.SIZE / 2 + inner),
            sight=SIGHT,
            sight_squared=SIGHT**2,
            inverse_sight=1 / SIGHT,
            aim=AIM,
            margin=MARGIN,
            first=script.first,
            whole=script.whole,
            nobody=script.nobody,
            home=script.home,
            kill=reward.kill,
            win=reward.win,
            best=reward.best,
            total=force.total,
            all_kills=reward.kill * force.m,
            scale=reward.scale,
        )

    def _make_tables(self, tables: Tables) -> SkirmishTables:
        force = self._force
        sheet, shift, target = self._orders(tables)
        return SkirmishTables(
            sheet=sheet.contiguous(),
            shift=shift.contiguous(),
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
        if self._script is None:  # `Duel._orders`: the second side numbers its own units first, and its east is west
            turned = tables.ally_shift * tables.ally_shift.new_tensor([[-1.0], [1.0]])
            target = (tables.ally_aim + self._force.n) % self._force.size
            return (
                torch.cat((tables.ally_sheet, tables.ally_sheet), 1),
                torch.cat((tables.ally_shift, turned), 1),
                torch.cat((tables.ally_aim, target)),
            )
        unmoved = tables.ally_shift.new_zeros(2, tables.enemy_sheet.shape[1])
        return (
            torch.cat((tables.ally_sheet, tables.enemy_sheet), 1),
            torch.cat((tables.ally_shift, unmoved), 1),
            torch.cat((tables.ally_aim, tables.enemy_aim)),
        )

"""The world: a team of agents fights a scripted enemy, after SMAC (Samvelyan et al. 2019).

Differences from SMAC: the battle is simulated by Coterie (see `combat`); the step limit truncates; points that the
enemy regains by shields and healers are subtracted from the reward, so that a won battle earns 20 and no reward can be
farmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.core.device_constants import DeviceConstant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.skirmish import Roster
from coterie.envs.worlds.skirmish.combat import SIZE, Combat, Layout, Orders, Wall
from coterie.envs.worlds.skirmish.enemy import Enemy, Focus
from coterie.envs.worlds.skirmish.observations import ObservationBuilder
from coterie.envs.worlds.skirmish.render import Fighter, Scene, draw
from coterie.envs.worlds.skirmish.rewards import KILL, WIN, scale
from coterie.envs.worlds.skirmish.step_kernel import StepKernel
from coterie.envs.worlds.skirmish.units import (
    ENERGY_START,
    FIRST_TARGET,
    HEAL,
    NOOP,
    STEP,
    Force,
    TableCache,
    build_tables,
)
from coterie.envs.worlds.world import Advanced, Observation, Outcome, State, World

TEAM_START = (9.0, SIZE / 2)
"""Starting position of the first side."""
ENEMY_START = (23.0, SIZE / 2)
"""Starting position of the second side."""
GRID = 1.5
"""Distance between units at the start."""
START_JITTER = 1.0
"""Side of the square within which each unit starts at random."""
_ROUNDING = 1e-3  # ticks


def formation(force: Force, layout: Layout) -> Tensor:
    """Features [F, U, 1] of a new battle with every unit at the center of its square."""
    place = layout.place
    rows = torch.zeros(len(place), force.size, 1)
    sides = ((range(force.n), TEAM_START, 1.0), (range(force.n, force.size), ENEMY_START, -1.0))
    for members, (x, y), ahead in sides:
        tall = int(np.ceil(np.sqrt(2 * len(members))))
        deep = int(np.ceil(len(members) / tall))
        # Melee units are placed in front.
        by_range = sorted(members, key=lambda i: force.units[i].range)
        for k, i in enumerate(by_range):
            row, column = k % tall, k // tall
            in_column = min(tall, len(members) - column * tall)
            rows[0, i] = x + ahead * GRID * ((deep - 1) / 2 - column)
            rows[1, i] = y + GRID * (row - (in_column - 1) / 2)
    rows[2, :, 0] = torch.tensor([unit.health for unit in force.units])
    if layout.shields:
        rows[place["shield"], :, 0] = torch.tensor([unit.shield for unit in force.units])
    if layout.heals:
        rows[place["energy"], list(force.healers)] = ENERGY_START
    rows[place["order"]] = -1  # no orders yet
    return rows


def begun(rows: DeviceConstant, noise: Tensor) -> Tensor:
    """Features [F, U, B] of new battles from a formation [F, U, 1] and uniform noise [B, 2 U]."""
    num_envs = len(noise)
    units = rows.on(noise.device).to(noise.dtype).expand(-1, -1, num_envs).clone()
    units[:2] += (noise.T.reshape(2, -1, num_envs) - 0.5) * START_JITTER
    return units


def fighters(
    force: Force, layout: Layout, units: Tensor, target: Callable[[int, int], int | None]
) -> tuple[Fighter, ...]:
    """All units of a battle with features [F, U]; target: returns the target of a unit under an order, or None."""
    place, values = layout.place, units.T.tolist()
    shown = []
    for i, unit in enumerate(force.units):
        x, y, health = values[i][:3]
        # A unit that attacked in the last step has most of its attack period left.
        idle = not unit.heals and values[i][place["cooldown"]] < unit.period - STEP - _ROUNDING
        shown.append(
            Fighter(
                unit.name,
                force.side(i),
                x,
                y,
                radius=unit.radius,
                health=health / unit.health,
                shield=values[i][place["shield"]] / unit.shield if unit.shield else None,
                target=None if idle else target(i, int(values[i][place["order"]])),
            )
        )
    return tuple(shown)


ROLE = "ally"


class SkirmishConfig(BaseModel):
    """Settings shared by all battles."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reward: Literal["shaped", "sparse"] = "shaped"
    """Team reward. shaped: damage dealt, plus 10 per killed enemy and 200 for winning, scaled so that a won battle
    earns 20;
    sparse: 1 for a won battle and -1 for a lost one.
    """
    enemy_focus: Focus = "nearest"
    """Target choice of enemies: the nearest, or the weakest within reach."""
    enemy_damage: float = Field(1.0, ge=0, le=100)
    """Factor on the damage dealt by enemies."""
    episode_limit: int | None = Field(60, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""


@final
class Skirmish(World):
    """A battle on one map. It ends when one side has no unit left that can attack.

    Metrics, at the last step: `won` (the enemy is dead and the team is not), `enemies_dead`, `allies_dead`.
    """

    def __init__(self, name: str, roster: Roster, config: SkirmishConfig, with_state: bool = False):
        self.config, self.force = config, Force(roster)
        self.layout = Layout(self.force)
        self._name, self._with_state = name, with_state
        self._wall = Wall() if roster.walled else None
        self._combat = Combat(self.force, self.layout, self._wall)
        self._enemy = Enemy(self.force, config.enemy_focus, TEAM_START, self._wall)
        self._observations = ObservationBuilder(self.force, self.layout)
        self._table_cache = TableCache(lambda like: build_tables(self.force, like))
        self._scale = scale(self.force, 1.0)
        self.reset_noise_size = 2 * self.force.size
        self.parameters = {
            "enemy_damage": Parameter(config.enemy_damage, 0, 100, "factor on the damage dealt by enemies"),
            "enemy_health": Parameter(1, 0.01, 1, "fraction of health and shields with which the enemy starts"),
            "distance": Parameter(
                ENEMY_START[0] - TEAM_START[0], 4, 20, "initial distance between the centers of the two sides"
            ),
        }
        self.apply_parameters = self._apply_parameters
        self.terminate_at_limit = config.terminate_at_limit
        role = RoleSpec(
            ROLE,
            "allies",
            tuple(f"ally_{i}" for i in range(self.force.n)),
            spaces.Box(-1, 1, (self._observations.size,), np.float32),
            action_space=spaces.Discrete(self.force.choices),
            choice_names=(self.force.action_names,),
            parts=self._observations.parts,
        )
        self.spec = EnvSpec(
            name,
            (role,),
            {"global": self._observations.state_size} if with_state else {},
            agents_can_die=True,
            has_group_reward=True,
            metrics=("won", "enemies_dead", "allies_dead"),
            episode_limit=config.episode_limit,
        )
        self._begin = DeviceConstant(formation(self.force, self.layout))
        self._kernel = StepKernel(
            self.force,
            self.layout,
            self._table_cache,
            enemy=self._enemy,
            shaped=config.reward == "shaped",
            observations=self._observations,
            with_state=with_state,
        )
        self.fused_step = self._fused_step

    # ------------------------------------------------------------------------------------------ the contract

    def reset(self, noise: Tensor) -> State:
        return {
            "units": begun(self._begin, noise).permute(2, 0, 1),
            "enemy_damage": noise.new_full((len(noise),), self.config.enemy_damage),
        }

    def _apply_parameters(self, state: State) -> State:
        n, units = self.force.n, state["units"].clone()
        if "distance" in state:
            nearer = (ENEMY_START[0] - TEAM_START[0] - state["distance"]).unsqueeze(1) / 2
            units[:, 0, :n] += nearer
            units[:, 0, n:] -= nearer
        if "enemy_health" in state:
            units[:, self.layout.points, n:] *= state["enemy_health"].view(-1, 1, 1)
        return {**state, "units": units}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        # A view of [F, U, B] memory except after loading; the same layout gives the same bits.
        before = state["units"].permute(1, 2, 0).contiguous()
        chosen = action[ROLE].discrete
        assert chosen is not None
        n, tables = self.force.n, self._table_cache.get(before)
        orders = self._orders(before, chosen.squeeze(-1).T, state["enemy_damage"])
        units = self._combat.fight(before, orders, tables)
        was_alive, alive = before[2] > 0, units[2] > 0
        died = was_alive & ~alive
        fights = alive if not self.force.healers else alive & tables.armed
        stands, resists = fights[:n].any(0), fights[n:].any(0)
        ended, won = ~(stands & resists), stands & ~resists
        reward = self._reward(before, units, died[n:], ended, won=won, begun=state.get("enemy_health"))
        return {**state, "units": units.permute(2, 0, 1)}, Outcome(
            reward=before.new_zeros(before.shape[2], n),
            group_reward=reward.unsqueeze(1),
            terminated=ended,
            agent_terminated=died[:n].T,
            metrics=lambda: {
                "won": won.float(),
                "enemies_dead": (~alive[n:]).sum(0).float(),
                "allies_dead": (~alive[:n]).sum(0).float(),
            },
        )

    def observe(self, state: State) -> Observation:
        units = state["units"].permute(1, 2, 0).contiguous()
        tables = self._table_cache.get(units)
        obs, mask = self._observations.build(units, tables)
        states = {"global": self._observations.state(units, tables)} if self._with_state else {}
        return Observation({ROLE: obs}, {ROLE: mask}, states, (units[2, : self.force.n] > 0).T)

    def _fused_step(
        self, state: State, action: dict[str, Action], resetting: Tensor | None, initial: State | None
    ) -> Advanced | None:
        """Does the work of `step`, of starting episodes, and of `observe` by the kernel; see `World.fused_step`."""
        chosen = action[ROLE].discrete
        assert chosen is not None
        out = self._kernel(state, [chosen], resetting, initial)
        if out is None:
            return None
        n = self.force.n
        outcome = Outcome(
            reward=out.reward.new_zeros(len(out.reward), n),
            group_reward=out.reward,
            terminated=out.ended,
            agent_terminated=out.died[:n].T,
            metrics=lambda: {
                "won": out.metrics[0],
                "enemies_dead": out.metrics[3],
                "allies_dead": out.metrics[2],
            },
        )
        states = {} if out.state is None else {"global": out.state}
        observation = Observation({ROLE: out.obs}, {ROLE: out.mask}, states, out.alive[:n].T)
        after = {**state, "units": out.units.permute(2, 0, 1)}
        if resetting is not None and initial is not None:
            for name in after.keys() - {"units"}:
                after[name] = torch.where(resetting, initial[name], after[name])
        return after, outcome, observation

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.scene(state), size)

    # ------------------------------------------------------------------------------------------- workings

    def _orders(self, units: Tensor, chosen: Tensor, enemy_damage: Tensor) -> Orders:
        """Orders of all units: the allies' actions [n, B] and the enemies' own targets."""
        force, tables, num_envs = self.force, self._table_cache.get(units), units.shape[2]
        n, m, pos = force.n, force.m, units[:2]
        targets = self._enemy.choose(pos, units[self.layout.points], tables)
        targets, enemy_point = self._enemy.detour(targets, pos)
        ally_index, enemy_index = (chosen + tables.ally_base).reshape(-1), (targets + tables.enemy_base).view(-1)
        enemy_sheet = tables.enemy_sheet.index_select(1, enemy_index).view(-1, m, num_envs)
        enemy_sheet[HEAL + 1 :] *= enemy_damage
        ally_sheet = tables.ally_sheet.index_select(1, ally_index).view(-1, n, num_envs)
        ally_point = tables.ally_shift.index_select(1, ally_index).view(2, n, num_envs) + pos[:, :n]
        aim = torch.cat((tables.ally_aim.index_select(0, ally_index), tables.enemy_aim.index_select(0, enemy_index)))
        lane = torch.arange(num_envs, device=units.device)
        # Dead units have no orders.
        code = torch.cat((chosen.masked_fill(units[2, :n] <= 0, NOOP), targets)).to(units.dtype)
        return Orders(
            sheet=torch.cat((ally_sheet, enemy_sheet), 1),
            target=torch.add(lane, aim.view(-1, num_envs), alpha=num_envs).view(-1),
            point=torch.cat((ally_point, enemy_point), 1),
            code=code,
        )

    def _reward(
        self, before: Tensor, units: Tensor, died: Tensor, ended: Tensor, won: Tensor, begun: Tensor | None
    ) -> Tensor:
        """Team reward [B] of the step; begun: [B], fraction of its points with which the enemy started."""
        if self.config.reward == "sparse":
            return won.to(units.dtype) - (ended & ~won & (units[2, self.force.n :] > 0).any(0)).to(units.dtype)
        points = self.layout.points
        taken = (before[points, self.force.n :] - units[points, self.force.n :]).sum((0, 1))
        factor = self._scale if begun is None else scale(self.force, begun)
        return (taken + KILL * died.sum(0) + WIN * won) * factor

    def scene(self, state: State) -> Scene:
        """Scene of the single environment in `state`."""
        force = self.force
        shown = fighters(force, self.layout, state["units"][0], self._target)
        alive = [f.health > 0 for f in shown]
        score = {"allies": float(sum(alive[: force.n])), "enemies": float(sum(alive[force.n :]))}
        wall = None if self._wall is None else (self._wall.x, self._wall.gap)
        return Scene(self._name, shown, wall, score)

    def _target(self, i: int, code: int) -> int | None:
        """Target of unit i under order `code`, None if it has none."""
        if i < self.force.n:
            return self.force.target_of(i, code - FIRST_TARGET) if code >= FIRST_TARGET else None
        return code if 0 <= code < self.force.size else None

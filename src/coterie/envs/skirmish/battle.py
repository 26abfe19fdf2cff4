"""The world: a team of agents fights a scripted enemy, after SMAC (Samvelyan et al. 2019).

Differs from SMAC: the battle is a simulation of this project's own (see `combat`); a limit truncates; what the enemy
wins back by shields and healers is taken off the reward again, so that a won battle pays 20 and nothing can be farmed.
"""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.envs.parameters import Parameter
from coterie.envs.skirmish import Roster
from coterie.envs.skirmish.combat import Combat, Layout, Orders
from coterie.envs.skirmish.enemy import Enemy, Focus
from coterie.envs.skirmish.force import FIRST_TARGET, HEAL, NOOP, Force, Shelf, tables
from coterie.envs.skirmish.muster import FOE, HOME, begun, fighters, formation
from coterie.envs.skirmish.render import Scene, draw
from coterie.envs.skirmish.sight import Sight
from coterie.envs.skirmish.terrain import Wall
from coterie.envs.world import Outcome, State, View, World
from coterie.types import Action, EnvSpec, RoleSpec

ROLE = "ally"
KILL, WIN, BEST = 10.0, 200.0, 20.0
"""Points for a fallen enemy and for a won battle, and what all points together are scaled to."""


class SkirmishConfig(BaseModel):
    """What all battles can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reward: Literal["shaped", "sparse"] = "shaped"
    """What the team is paid: shaped, points taken from the enemy, 10 for each that falls, 200 for all, scaled so that a
    won battle pays 20; sparse, 1 for a won battle and -1 for a lost one.
    """
    enemy_focus: Focus = "nearest"
    """Whom an enemy attacks: the nearest, or of those within its reach the weakest."""
    enemy_damage: float = Field(1.0, ge=0, le=100)
    """Factor on what the enemy's attacks take."""
    episode_limit: int | None = Field(60, ge=1)
    """Steps after which an episode is cut; None: never."""
    limit_ends: bool = False
    """The limit counts as an end of the task (terminated), not as a cut (truncated)."""


@final
class Skirmish(World):
    """A battle of one map. It ends when a side has nobody left who can attack.

    Metrics, at the last step: `won` (the enemy has fallen, the team has not), `enemies_dead`, `allies_dead`.
    """

    def __init__(self, name: str, roster: Roster, config: SkirmishConfig, with_state: bool = False):
        self.config, self.force = config, Force(roster)
        self.layout = Layout(self.force)
        self._name, self._with_state = name, with_state
        self._wall = Wall() if roster.walled else None
        self._combat = Combat(self.force, self.layout, self._wall)
        self._enemy = Enemy(self.force, config.enemy_focus, HOME, self._wall)
        self._sight = Sight(self.force, self.layout)
        self._shelf = Shelf(lambda like: tables(self.force, like))
        self._scale = BEST / (self.force.total + KILL * self.force.m + WIN)
        self.restart_noise = 2 * self.force.size
        self.parameters = {
            "enemy_damage": Parameter(config.enemy_damage, 0, 100, "factor on what the enemy's attacks take"),
            "enemy_health": Parameter(1, 0.01, 1, "part of its health and shields that the enemy begins with"),
            "distance": Parameter(FOE[0] - HOME[0], 4, 20, "lengths between the middles of the two sides at the start"),
        }
        self.adjusted = self._adjusted
        self.limit_ends = config.limit_ends
        role = RoleSpec(
            ROLE,
            "allies",
            tuple(f"ally_{i}" for i in range(self.force.n)),
            spaces.Box(-1, 1, (self._sight.size,), np.float32),
            spaces.Discrete(self.force.choices),
            (self.force.called,),
        )
        self.spec = EnvSpec(
            name,
            (role,),
            {"global": self._sight.state_size} if with_state else {},
            mortal=True,
            paid_by_group=True,
            metrics=("won", "enemies_dead", "allies_dead"),
            episode_limit=config.episode_limit,
        )
        self._begin = formation(self.force, self.layout)

    # ------------------------------------------------------------------------------------------ the contract

    def restart(self, noise: Tensor) -> State:
        return {
            "units": begun(self._begin, noise).permute(2, 0, 1),
            "enemy_damage": noise.new_full((len(noise),), self.config.enemy_damage),
        }

    def _adjusted(self, state: State) -> State:
        n, units = self.force.n, state["units"].clone()
        if "distance" in state:
            nearer = (FOE[0] - HOME[0] - state["distance"]).unsqueeze(1) / 2
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
        n, kept = self.force.n, self._shelf.beside(before)
        orders = self._orders(before, chosen.squeeze(-1).T, state["enemy_damage"])
        units = self._combat.fight(before, orders, kept)
        lived, lives = before[2] > 0, units[2] > 0
        fell = lived & ~lives
        fights = lives if not self.force.healers else lives & kept.armed
        stands, resists = fights[:n].any(0), fights[n:].any(0)
        ended, won = ~(stands & resists), stands & ~resists
        reward = self._reward(before, units, fell[n:], ended, won, state.get("enemy_health"))
        return {**state, "units": units.permute(2, 0, 1)}, Outcome(
            reward=before.new_zeros(before.shape[2], n),
            group_reward=reward.unsqueeze(1),
            ended=ended,
            agent_ended=fell[:n].T,
            metrics=lambda: {
                "won": won.float(),
                "enemies_dead": (~lives[n:]).sum(0).float(),
                "allies_dead": (~lives[:n]).sum(0).float(),
            },
        )

    def view(self, state: State) -> View:
        units = state["units"].permute(1, 2, 0).contiguous()
        kept = self._shelf.beside(units)
        obs, mask = self._sight.view(units, kept)
        known = {"global": self._sight.state(units, kept)} if self._with_state else {}
        return View({ROLE: obs}, {ROLE: mask}, known, (units[2, : self.force.n] > 0).T)

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.scene(state), size)

    # ------------------------------------------------------------------------------------------- workings

    def _orders(self, units: Tensor, chosen: Tensor, enemy_damage: Tensor) -> Orders:
        """What everybody does: the allies' choices [n, B], and the enemy's own."""
        force, kept, copies = self.force, self._shelf.beside(units), units.shape[2]
        n, m, pos = force.n, force.m, units[:2]
        goes = self._enemy.choose(pos, units[self.layout.points], kept)
        goes, enemy_point = self._enemy.detour(goes, pos)
        ours, theirs = (chosen + kept.ally_base).reshape(-1), (goes + kept.enemy_base).view(-1)
        enemy_sheet = kept.enemy_sheet.index_select(1, theirs).view(-1, m, copies)
        enemy_sheet[HEAL + 1 :] *= enemy_damage
        ally_sheet = kept.ally_sheet.index_select(1, ours).view(-1, n, copies)
        ally_point = kept.ally_shift.index_select(1, ours).view(2, n, copies) + pos[:, :n]
        aim = torch.cat((kept.ally_aim.index_select(0, ours), kept.enemy_aim.index_select(0, theirs)))
        lane = torch.arange(copies, device=units.device)
        # What the fallen are told is nothing.
        code = torch.cat((chosen.masked_fill(units[2, :n] <= 0, NOOP), goes)).to(units.dtype)
        return Orders(
            sheet=torch.cat((ally_sheet, enemy_sheet), 1),
            target=torch.add(lane, aim.view(-1, copies), alpha=copies).view(-1),
            point=torch.cat((ally_point, enemy_point), 1),
            code=code,
        )

    def _reward(
        self, before: Tensor, units: Tensor, fell: Tensor, ended: Tensor, won: Tensor, begun: Tensor | None
    ) -> Tensor:
        """What the step pays the team [B]; begun: [B], the part of its points that the enemy had at first."""
        if self.config.reward == "sparse":
            return won.to(units.dtype) - (ended & ~won & (units[2, self.force.n :] > 0).any(0)).to(units.dtype)
        points = self.layout.points
        taken = (before[points, self.force.n :] - units[points, self.force.n :]).sum((0, 1))
        scale = self._scale if begun is None else BEST / (self.force.total * begun + KILL * self.force.m + WIN)
        return (taken + KILL * fell.sum(0) + WIN * won) * scale

    def scene(self, state: State) -> Scene:
        """The picture of the single copy that `state` holds."""
        force = self.force
        shown = fighters(force, self.layout, state["units"][0], self._target)
        alive = [f.health > 0 for f in shown]
        score = {"allies": float(sum(alive[: force.n])), "enemies": float(sum(alive[force.n :]))}
        wall = None if self._wall is None else (self._wall.x, self._wall.gap)
        return Scene(self._name, shown, wall, score)

    def _target(self, i: int, code: int) -> int | None:
        """The unit that unit i goes for with the order of that number, None for nobody."""
        if i < self.force.n:
            return self.force.target_of(i, code - FIRST_TARGET) if code >= FIRST_TARGET else None
        return code if 0 <= code < self.force.size else None

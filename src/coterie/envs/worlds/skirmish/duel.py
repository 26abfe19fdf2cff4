"""A battle between two teams with equal units, under the same rules as those against the scripted enemy."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.core.device_constants import DeviceConstant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.skirmish import Roster
from coterie.envs.worlds.skirmish.battle import begun, fighters, formation
from coterie.envs.worlds.skirmish.combat import SIZE, Combat, Layout, Orders
from coterie.envs.worlds.skirmish.observations import ObservationBuilder
from coterie.envs.worlds.skirmish.render import Scene, draw
from coterie.envs.worlds.skirmish.rewards import KILL, WIN, scale
from coterie.envs.worlds.skirmish.step_kernel import StepKernel
from coterie.envs.worlds.skirmish.units import FIRST_TARGET, NOOP, Force, TableCache, build_tables
from coterie.envs.worlds.world import Advanced, Observation, Outcome, State, World

SIDES = ("left", "right")


class DuelConfig(BaseModel):
    """Settings of battles between two teams."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reward: Literal["shaped", "sparse"] = "shaped"
    """Zero-sum reward of a side. shaped: damage dealt, plus 10 per kill and 200 for winning, scaled so that a battle
    won without losses earns 20; sparse: 1 for a won battle.
    """
    episode_limit: int | None = Field(60, ge=1, le=10**9)
    """Maximum number of steps before truncation (nobody wins); None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""


@final
class Duel(World):
    """A battle of two teams, `left` and `right`. It ends when one side has no unit left that can attack.

    Both sides observe the field from the left: for `right`, east and west are exchanged in observations, states and
    moves, so a policy of one side can play the other. Rewards are group rewards and sum to zero. Metrics, at the last
    step: `left_won`, `right_won`, and the numbers of dead units, `left_dead`, `right_dead`.
    """

    def __init__(self, name: str, roster: Roster, config: DuelConfig, with_state: bool = False):
        self.config, self.force = config, Force(roster)
        assert roster.allies == roster.enemies, "the sides are equal"
        self.layout = Layout(self.force)
        self._name, self._with_state = name, with_state
        self._combat = Combat(self.force, self.layout, None)
        self._observations = ObservationBuilder(self.force, self.layout)
        self._table_cache = TableCache(lambda like: build_tables(self.force, like))
        self._scale = scale(self.force, 1.0)
        self.reset_noise_size = 2 * self.force.size
        self.terminate_at_limit = config.terminate_at_limit
        seen, space = spaces.Box(-1, 1, (self._observations.size,), np.float32), spaces.Discrete(self.force.choices)
        action_names = {
            "left": self.force.action_names,
            "right": tuple(_turned_name(word) for word in self.force.action_names),
        }
        self.spec = EnvSpec(
            name,
            tuple(
                RoleSpec(
                    side,
                    side,
                    tuple(f"{side}_{i}" for i in range(self.force.n)),
                    seen,
                    action_space=space,
                    choice_names=(action_names[side],),
                    parts=self._observations.parts,
                )
                for side in SIDES
            ),
            dict.fromkeys(("global", *SIDES), self._observations.state_size) if with_state else {},
            agents_can_die=True,
            has_group_reward=True,
            metrics=("left_won", "right_won", "left_dead", "right_dead"),
            episode_limit=config.episode_limit,
            symmetric=True,
        )
        self._begin = DeviceConstant(formation(self.force, self.layout))
        self._kernel = StepKernel(
            self.force,
            self.layout,
            self._table_cache,
            enemy=None,
            shaped=config.reward == "shaped",
            observations=self._observations,
            with_state=with_state,
        )
        self.fused_step = self._fused_step

    # ------------------------------------------------------------------------------------------ the contract

    def reset(self, noise: Tensor) -> State:
        return {"units": begun(self._begin, noise).permute(2, 0, 1)}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        before = state["units"].permute(1, 2, 0).contiguous()
        n, tables = self.force.n, self._table_cache.get(before)
        units = self._combat.fight(before, self._orders(before, action), tables)
        lived, lives = before[2] > 0, units[2] > 0
        fell = lived & ~lives
        fights = lives if not self.force.healers else lives & tables.armed
        stands, resists = fights[:n].any(0), fights[n:].any(0)
        won = torch.stack((stands & ~resists, resists & ~stands)).to(units.dtype)
        worth = won * WIN if self.config.reward == "shaped" else won
        if self.config.reward == "shaped":
            points = self.layout.points
            lost = (before[points] - units[points]).sum(0) + KILL * fell
            worth = (worth + torch.stack((lost[n:].sum(0), lost[:n].sum(0)))) * self._scale
        gain = worth[0] - worth[1]
        return {"units": units.permute(2, 0, 1)}, Outcome(
            reward=before.new_zeros(before.shape[2], 2 * n),
            group_reward=torch.stack((gain, -gain), 1),
            terminated=~(stands & resists),
            agent_terminated=fell.T,
            metrics=lambda: {
                "left_won": won[0],
                "right_won": won[1],
                "left_dead": (~lives[:n]).sum(0).to(units.dtype),
                "right_dead": (~lives[n:]).sum(0).to(units.dtype),
            },
        )

    def observe(self, state: State) -> Observation:
        units = state["units"].permute(1, 2, 0).contiguous()
        tables = self._table_cache.get(units)
        both = torch.cat((units, self._mirrored(units)), 2)  # one view per side
        obs, mask = self._observations.build(both, tables)
        known = self._observations.state(both, tables) if self._with_state else None
        return self._observation(obs, mask, known, (units[2] > 0).T)

    def _observation(self, obs: Tensor, mask: Tensor, known: Tensor | None, alive: Tensor) -> Observation:
        """Splits what both sides observe, [2 B, ..]."""
        num_envs = len(alive)
        states = (
            {} if known is None else {"global": known[:num_envs], "left": known[:num_envs], "right": known[num_envs:]}
        )
        return Observation(
            {"left": obs[:num_envs], "right": obs[num_envs:]},
            {"left": mask[:num_envs], "right": mask[num_envs:]},
            states,
            alive,
        )

    def _fused_step(
        self, state: State, action: dict[str, Action], resetting: Tensor | None, initial: State | None
    ) -> Advanced | None:
        """Does the work of `step`, of starting episodes, and of `observe` by the kernel; see `World.fused_step`."""
        chosen = [action[side].discrete for side in SIDES]
        out = self._kernel(state, [each for each in chosen if each is not None], resetting, initial)
        if out is None:
            return None
        outcome = Outcome(
            reward=out.reward.new_zeros(len(out.reward), self.force.size),
            group_reward=out.reward,
            terminated=out.ended,
            agent_terminated=out.died.T,
            metrics=lambda: dict(zip(self.spec.metrics, out.metrics, strict=True)),
        )
        observation = self._observation(out.obs, out.mask, out.state, out.alive.T)
        return {"units": out.units.permute(2, 0, 1)}, outcome, observation

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.scene(state), size)

    def scene(self, state: State) -> Scene:
        """Scene of the single environment in `state`."""
        shown = fighters(self.force, self.layout, state["units"][0], self._target)
        score = {side: float(sum(f.health > 0 for f in shown if f.side == i)) for i, side in enumerate(SIDES)}
        return Scene(self._name, shown, None, score)

    # ------------------------------------------------------------------------------------------- workings

    def _mirrored(self, units: Tensor) -> Tensor:
        """Features [F, U, B] as seen by `right`: its own units first, x measured from the other end of the field."""
        turned = units.roll(-self.force.n, 1)
        turned[0] = SIZE - turned[0]
        return turned

    def _orders(self, units: Tensor, action: dict[str, Action]) -> Orders:
        """Orders of all units from the actions of both sides."""
        n, size, num_envs, tables = self.force.n, self.force.size, units.shape[2], self._table_cache.get(units)
        chosen = [action[side].discrete for side in SIDES]
        choice = torch.stack([each.squeeze(-1).T for each in chosen if each is not None])  # [2, n, B]
        row = (choice + tables.ally_base).view(2, -1)
        aim = tables.ally_aim[row]
        aim[1] = (aim[1] + n) % size  # `right` numbers its own units first
        shift = tables.ally_shift[:, row].view(2, 2, n, num_envs)
        shift[0, 1] *= -1  # and its east is west
        lane = torch.arange(num_envs, device=units.device)
        # Dead units have no orders.
        code = choice.view(size, num_envs).masked_fill(units[2] <= 0, NOOP).to(units.dtype)
        return Orders(
            sheet=tables.ally_sheet[:, row].view(-1, size, num_envs),
            target=torch.add(lane, aim.view(-1, num_envs), alpha=num_envs).view(-1),
            point=shift.view(2, size, num_envs) + units[:2],
            code=code,
        )

    def _target(self, i: int, code: int) -> int | None:
        """Target of unit i under order `code`, None if it has none."""
        n, size = self.force.n, self.force.size
        target = self.force.target_of(i % n, code - FIRST_TARGET) if code >= FIRST_TARGET else None
        return target if target is None or i < n else (target + n) % size


def _turned_name(word: str) -> str:
    return {"east": "west", "west": "east"}.get(word, word)

"""A battle between two teams with the same units, fought by the same rules as those against the scripted enemy."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.envs.skirmish import Roster
from coterie.envs.skirmish.battle import BEST, KILL, WIN
from coterie.envs.skirmish.combat import Combat, Layout, Orders
from coterie.envs.skirmish.force import FIRST_TARGET, NOOP, Force, Shelf, tables
from coterie.envs.skirmish.muster import begun, fighters, formation
from coterie.envs.skirmish.render import Scene, draw
from coterie.envs.skirmish.sight import Sight
from coterie.envs.skirmish.terrain import SIZE
from coterie.envs.world import Outcome, State, View, World
from coterie.types import Action, EnvSpec, RoleSpec

SIDES = ("left", "right")


class DuelConfig(BaseModel):
    """What battles between two teams can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reward: Literal["shaped", "sparse"] = "shaped"
    """What a side is paid, the other side pays: shaped, points taken, 10 for each that falls, 200 for a won battle,
    scaled so that a battle won without a loss pays 20; sparse, 1 for a won battle.
    """
    episode_limit: int | None = Field(60, ge=1)
    """Steps after which an episode is cut: nobody won; None: never."""
    limit_ends: bool = False
    """The limit counts as an end of the task (terminated), not as a cut (truncated)."""


@final
class Duel(World):
    """A battle of two teams, `left` and `right`. It ends when a side has nobody left who can attack.

    Both see the field as left does: for right, east and west are exchanged, in observations, states and moves alike. So
    a policy of one can play the other. Rewards are the groups', and add up to zero. Metrics, at the last step:
    `left_won`, `right_won`, and how many have fallen, `left_dead`, `right_dead`.
    """

    def __init__(self, name: str, roster: Roster, config: DuelConfig, with_state: bool = False):
        self.config, self.force = config, Force(roster)
        assert roster.allies == roster.enemies, "the sides are equal"
        self.layout = Layout(self.force)
        self._name, self._with_state = name, with_state
        self._combat = Combat(self.force, self.layout, None)
        self._sight = Sight(self.force, self.layout)
        self._shelf = Shelf(lambda like: tables(self.force, like))
        self._scale = BEST / (self.force.total + KILL * self.force.m + WIN)
        self.restart_noise = 2 * self.force.size
        self.limit_ends = config.limit_ends
        seen, space = spaces.Box(-1, 1, (self._sight.size,), np.float32), spaces.Discrete(self.force.choices)
        called = {"left": self.force.called, "right": tuple(_turned_name(word) for word in self.force.called)}
        self.spec = EnvSpec(
            name,
            tuple(
                RoleSpec(side, side, tuple(f"{side}_{i}" for i in range(self.force.n)), seen, space, (called[side],))
                for side in SIDES
            ),
            dict.fromkeys(("global", *SIDES), self._sight.state_size) if with_state else {},
            mortal=True,
            paid_by_group=True,
            metrics=("left_won", "right_won", "left_dead", "right_dead"),
            episode_limit=config.episode_limit,
            equal_sides=True,
        )
        self._begin = formation(self.force, self.layout)

    # ------------------------------------------------------------------------------------------ the contract

    def restart(self, noise: Tensor) -> State:
        return {"units": begun(self._begin, noise).permute(2, 0, 1)}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        before = state["units"].permute(1, 2, 0).contiguous()
        n, kept = self.force.n, self._shelf.beside(before)
        units = self._combat.fight(before, self._orders(before, action), kept)
        lived, lives = before[2] > 0, units[2] > 0
        fell = lived & ~lives
        fights = lives if not self.force.healers else lives & kept.armed
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
            ended=~(stands & resists),
            agent_ended=fell.T,
            metrics=lambda: {
                "left_won": won[0],
                "right_won": won[1],
                "left_dead": (~lives[:n]).sum(0).to(units.dtype),
                "right_dead": (~lives[n:]).sum(0).to(units.dtype),
            },
        )

    def view(self, state: State) -> View:
        units = state["units"].permute(1, 2, 0).contiguous()
        copies, kept = units.shape[2], self._shelf.beside(units)
        both = torch.cat((units, self._turned(units)), 2)  # one look from either side
        obs, mask = self._sight.view(both, kept)
        known = self._sight.state(both, kept) if self._with_state else None
        states = {} if known is None else {"global": known[:copies], "left": known[:copies], "right": known[copies:]}
        return View(
            {"left": obs[:copies], "right": obs[copies:]},
            {"left": mask[:copies], "right": mask[copies:]},
            states,
            (units[2] > 0).T,
        )

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.scene(state), size)

    def scene(self, state: State) -> Scene:
        """The picture of the single copy that `state` holds."""
        shown = fighters(self.force, self.layout, state["units"][0], self._target)
        score = {side: float(sum(f.health > 0 for f in shown if f.side == i)) for i, side in enumerate(SIDES)}
        return Scene(self._name, shown, None, score)

    # ------------------------------------------------------------------------------------------- workings

    def _turned(self, units: Tensor) -> Tensor:
        """The rows [F, U, B] as right sees them: its own units first, x from the other end of the field."""
        turned = units.roll(-self.force.n, 1)
        turned[0] = SIZE - turned[0]
        return turned

    def _orders(self, units: Tensor, action: dict[str, Action]) -> Orders:
        """What everybody does by the two sides' choices."""
        n, size, copies, kept = self.force.n, self.force.size, units.shape[2], self._shelf.beside(units)
        chosen = [action[side].discrete for side in SIDES]
        choice = torch.stack([each.squeeze(-1).T for each in chosen if each is not None])  # [2, n, B]
        row = (choice + kept.ally_base).view(2, -1)
        aim = kept.ally_aim[row]
        aim[1] = (aim[1] + n) % size  # right counts its own units first
        shift = kept.ally_shift[:, row].view(2, 2, n, copies)
        shift[0, 1] *= -1  # and its east is west
        lane = torch.arange(copies, device=units.device)
        # What the fallen are told is nothing.
        code = choice.view(size, copies).masked_fill(units[2] <= 0, NOOP).to(units.dtype)
        return Orders(
            sheet=kept.ally_sheet[:, row].view(-1, size, copies),
            target=torch.add(lane, aim.view(-1, copies), alpha=copies).view(-1),
            point=shift.view(2, size, copies) + units[:2],
            code=code,
        )

    def _target(self, i: int, code: int) -> int | None:
        """The unit that unit i goes for with the order of that number, None for nobody."""
        n, size = self.force.n, self.force.size
        target = self.force.target_of(i % n, code - FIRST_TARGET) if code >= FIRST_TARGET else None
        return target if target is None or i < n else (target + n) % size


def _turned_name(word: str) -> str:
    return {"east": "west", "west": "east"}.get(word, word)

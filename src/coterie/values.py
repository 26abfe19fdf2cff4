"""Policies over action values: the best choice, or now and then any."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.fittable import Demonstrated, Fittable, Manner
from coterie.math.distributions import mask_logits
from coterie.math.exploration import epsilon_greedy
from coterie.math.imitation import agrees, shortfall
from coterie.nets.joint import action_size, beside, by_role, encoded, last_actions
from coterie.nets.memory import Carry
from coterie.nets.scaling import ObservationScale
from coterie.nets.team import Block, Shape, Share, TeamNet, join
from coterie.policy import Inspectable, Mode, Thought
from coterie.types import Action, Row, TeamSpec, Tree


class ValuePolicy(Inspectable, Fittable):
    """Epsilon-greedy over Q of every choice; several discrete components are worth the sum of their Q.

    last_action: networks read what their agent did in the row before; epsilon: probability of a uniformly drawn action,
    decided for every row and agent by itself.
    """

    def __init__(
        self,
        team: TeamSpec,
        shape: Shape,
        share: Share,
        agent_id: bool,
        last_action: bool,
        normalise_obs: bool,
        generator: torch.Generator,
        device: torch.device,
    ):
        self.team, self.device = team, device
        widths = {role.name: role.action.mask_size for role in team.roles}
        self.last_action = last_action
        extra = {role.name: action_size(role.action) for role in team.roles} if last_action else None
        self.net = TeamNet(team, widths, 1.0, shape, share, agent_id, generator, extra).to(device)
        self.blocks = self.net.blocks
        self.scale = ObservationScale(self.blocks, normalise_obs, device)
        self.networks = (self.net, self.scale.read)
        self.epsilon = 1.0
        self._width = max(widths.values())

    # ------------------------------------------------------------------------------------------------------- acting

    def start(self, copies: int) -> Carry:
        carry = self.net.start(copies, self.device)
        if self.last_action:
            carry["last"] = torch.zeros(copies, self.team.n, self._width, device=self.device)
        return carry

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        """One number an agent that decides whether it explores, and one a choice that decides which it takes then."""
        shape = (steps, copies, self.team.n, 1 + self._width)
        return list(torch.rand(shape, generator=generator, device=self.device).unbind(0))

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        q, memory = self._read(row, carry)
        actions = {}
        for block in self.blocks:
            drawn = None if mode == "greedy" else noise[:, block.start : block.stop]
            actions.update(block.split(self._choose(block, q[block.name], block.mask(row.action_mask), drawn)))
        if self.last_action:
            memory = memory | {"last": self.remembered(actions)}
        return actions, memory, {}

    def inspect(self, row: Row, carry: Carry, mode: Mode) -> dict[str, Thought]:
        q, _ = self._read(row, carry)
        epsilon = 0.0 if mode == "greedy" else self.epsilon
        thoughts: dict[str, Thought] = {}
        for block in self.blocks:
            own = q[block.name]
            drawn = epsilon_greedy(own, block.choices, block.mask(row.action_mask), epsilon)
            thoughts |= block.split(Thought(drawn, own))
        return thoughts

    def _read(self, row: Row, carry: Carry) -> tuple[dict[str, Tensor], Carry]:
        """Q by block on a row, and the network's memory."""
        extra = None
        if self.last_action:
            extra = self._extra(by_role(self.team, carry["last"].masked_fill(row.first.unsqueeze(-1), 0)))
        memory = {name: x for name, x in carry.items() if name != "last"}
        return self.net(self.scale(row.obs), row.first, memory, extra)

    def _choose(self, block: Block, q: Tensor, mask: Tensor | None, noise: Tensor | None) -> Action:
        """The best available choices [B, n, K], or uniformly drawn ones where an agent explores."""
        best = _highest(mask_logits(q, mask), block.choices)
        if noise is None:
            return Action(best)
        score = noise[..., 1 : 1 + q.shape[-1]]
        drawn = _highest(score if mask is None else torch.where(mask, score, -1.0), block.choices)
        return Action(torch.where(noise[..., :1] < self.epsilon, drawn, best))

    # ----------------------------------------------------------------------------------------------------- learning

    def misfit(self, batch: Demonstrated, manner: Manner) -> tuple[Tensor, Tensor]:
        carry = self.net.start(batch.live.shape[1], self.device)
        if self.last_action:
            carry["last"] = self.remembered(batch.before)
        q, _ = self.net(*self.inputs(batch.obs, batch.action, batch.first, carry))
        losses, same = {}, {}
        for block in self.blocks:
            mask, done = block.mask(batch.action_mask), block.action(batch.action)
            assert done.discrete is not None
            losses[block.name] = shortfall(q[block.name], done.discrete, mask, block.choices, manner.margin)
            with torch.no_grad():
                same[block.name] = agrees(self._choose(block, q[block.name], mask, None), done)
        return join(losses, self.blocks, -1), join(same, self.blocks, -1)

    def remembered(self, action: dict[str, Action]) -> Tensor:
        """Actions [.., n, K] by role as the memory holds the last ones [.., N, A]."""
        return beside({role.name: encoded(role.action, action[role.name]) for role in self.team.roles})

    def inputs(
        self, obs: dict[str, Tree], action: dict[str, Action], first: Tensor, carry: Carry
    ) -> tuple[dict[str, Tree], Tensor | None, Carry, dict[str, Tensor] | None]:
        """What the network reads of rows [R, B, ..] of which all but the last were acted on; carry: before them."""
        memory = {name: x for name, x in carry.items() if name != "last"}
        extra = None
        if self.last_action:
            done = {role.name: encoded(role.action, action[role.name]) for role in self.team.roles}
            extra = self._extra(last_actions(done, first, by_role(self.team, carry["last"])))
        return self.scale(obs), first if memory else None, memory, extra

    def _extra(self, last: dict[str, Tensor]) -> dict[str, Tensor]:
        """Last actions by block."""
        if len(last) == 1:
            return last
        return {block.name: torch.cat([last[role.name] for role in block.roles], -2) for block in self.blocks}

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "moments": self.scale.state_dict(), "epsilon": self.epsilon}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.scale.load_state_dict(state["moments"])
        self.epsilon = state["epsilon"]


def _highest(score: Tensor, choices: tuple[int, ...]) -> Tensor:
    """The choice of the highest score [.., sum A] of every component [.., K]."""
    if len(choices) == 1:
        return score.argmax(-1, keepdim=True)
    return torch.cat([part.argmax(-1, keepdim=True) for part in score.split(choices, -1)], -1)

"""The policy of a team that plays as many: each copy's episode against one of a pool's entries, all in one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from coterie.borrowed import Borrowed
from coterie.nets.memory import Carry, stacking
from coterie.policy import Mode, Policy
from coterie.selfplay.pool import Acting, Pool
from coterie.types import Action, Row, Tree, tree_map

_SLOT, _CLOSED = "opponent_slot", "opponent_closed"
"""Names in the memory: the slot that a copy plays against [B], and whether its last row was a closing one [B]."""


class Opponents(Policy):
    """Draws one of the pool's entries for every episode of every copy, and acts with it until the episode ends.

    The copies of one entry stand together and are acted on with its parameters, all entries in one batched call. Who
    acts is noted as `label` [B, N], the snapshot's number, -1 for the present policy.

    chances: of the pool's slots [slots], to be set between windows.
    """

    def __init__(self, pool: Pool, policy: Borrowed, live_only: bool = False):
        """policy: acts for the team with the networks that the pool holds snapshots of; live_only: nobody but slot 0
        is ever played.
        """
        self.team, self._pool, self._policy, self._live_only = policy.team, pool, policy, live_only
        self._acting = Acting(policy)
        self.chances = torch.ones(1, device=pool.device)

    def start(self, copies: int) -> Carry:
        device = self._pool.device
        return self._policy.start(copies) | {
            _SLOT: torch.zeros(copies, dtype=torch.int64, device=device),
            _CLOSED: torch.ones(copies, dtype=torch.bool, device=device),
        }

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        """The policy's own, and one number a copy that decides whom it meets if an episode begins."""
        drawn = torch.rand(steps, copies, generator=generator, device=self._pool.device).unbind(0)
        inner = self._policy.noise(steps, copies, generator)
        return [{"act": own, "draw": draw} for own, draw in zip(inner, drawn, strict=True)]

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        edges = self.chances.cumsum(0)[:-1]
        slot = torch.where(carry[_CLOSED], torch.searchsorted(edges, noise["draw"], right=True), carry[_SLOT])
        memory = {name: x for name, x in carry.items() if name not in (_SLOT, _CLOSED)}
        with torch.no_grad():
            part = (row.obs, row.action_mask, row.alive, row.first, row.acted, memory, noise["act"])
            alone = self._live_only or len(self._pool.numbers) == 1
            action, memory = self._alone(part) if alone else self._in_groups(slot, part)
        note = {"label": self._pool.label[slot].unsqueeze(1).expand(-1, self.team.n)}
        return _actions(action), memory | {_SLOT: slot, _CLOSED: ~row.acted}, note

    def _alone(self, part: tuple[Tree, ...]) -> tuple[Tree, Carry]:
        """Everybody plays slot 0."""
        return self._one({name: x[0] for name, x in self._pool.stacked.items()}, *part)

    def _in_groups(self, slot: Tensor, part: tuple[Tree, ...]) -> tuple[Tree, Carry]:
        """Copies [B] ordered by slot and filled up to equal groups [slots, C], acted on, and put back in their places.

        The size of the largest group is read by the host, once a row.
        """
        slots, copies = len(self._pool.numbers), len(slot)
        order = slot.argsort(stable=True)
        counts = torch.bincount(slot, minlength=slots)
        largest = int(counts.max())
        rank = torch.arange(copies, device=slot.device) - (counts.cumsum(0) - counts)[slot[order]]
        place = slot[order] * largest + rank
        take = torch.zeros(slots * largest, dtype=torch.int64, device=slot.device)
        take[place] = order
        back = torch.empty_like(order)
        back[order] = place
        grouped = tree_map(lambda x: x[take].unflatten(0, (slots, largest)), part)
        before = stacking.set(True)
        try:
            out = torch.vmap(self._one)(self._pool.stacked, *grouped)
        finally:
            stacking.reset(before)
        return tree_map(lambda x: x.flatten(0, 1)[back], out)

    def _one(
        self,
        tensors: dict[str, Tensor],
        obs: dict[str, Tree],
        action_mask: dict[str, Tensor],
        alive: Tensor,
        first: Tensor,
        acted: Tensor,
        memory: Carry,
        noise: Tree,
    ) -> tuple[Tree, Carry]:
        """What one entry does with the copies that it plays: plain dicts, which `vmap` can stack."""
        row = Row(obs, action_mask, {}, alive, first, acted)
        action, memory, _ = functional_call(self._acting, tensors, (row, memory, noise, "sample"))
        plain = {role: {name: x for name, x in vars(a).items() if x is not None} for role, a in action.items()}
        return plain, memory

    def plays(self, slot: int, carry: Carry) -> bool:
        """Whether a copy is in the middle of an episode against the slot; carry: of all copies."""
        return bool(((carry[_SLOT] == slot) & ~carry[_CLOSED]).any())

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what it acts with is the pool's."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _actions(plain: Tree) -> dict[str, Action]:
    return {role: Action(**numbers) for role, numbers in plain.items()}

"""Q of every agent's choices, and what all their choices together are worth to the team."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from coterie.math.choices import best, taken
from coterie.nets.critics import TeamView
from coterie.nets.joint import JointAction
from coterie.nets.memory import Carry
from coterie.nets.mixers import Duplex, Mixer
from coterie.nets.team import TeamNet, join
from coterie.types import Action, Tree

Choices = dict[str, Tensor]
"""Indices of choices by block, [.., n, K]."""


class TeamValue(nn.Module):
    """Agents' networks, a mixer (None: every agent for itself), and the view that the mixer's weights depend on."""

    def __init__(self, net: TeamNet, mixer: Mixer | None, view: TeamView | None, joint: JointAction):
        super().__init__()
        self.net, self.mixer, self.view = net, mixer, view
        self._joint = joint

    def forward(
        self, obs: dict[str, Tree], first: Tensor | None, carry: Carry, extra: dict[str, Tensor] | None
    ) -> tuple[dict[str, Tensor], Carry]:
        """Q by block [.., n, A], and the memory; arguments as of `TeamNet`."""
        return self.net(obs, first, carry, extra)

    def worth(
        self,
        q: dict[str, Tensor],
        picks: Choices,
        masks: dict[str, Tensor | None],
        alive: Tensor,
        obs: dict[str, Tree],
        state: Tensor | None,
    ) -> Tensor:
        """Q of `picks` to every agent [.., N], or with a mixer to the team [..].

        q, masks: by block, of the rows; alive: [.., N], others add nothing to the team; obs, state: what the mixer's
        view reads of these rows.
        """
        order = self.net.blocks
        chosen = join({b.name: taken(q[b.name], picks[b.name], b.choices) for b in order}, order, -1)
        if self.mixer is None:
            return chosen
        chosen = torch.where(alive, chosen, 0.0)
        seen = chosen if self.view is None else self.view(obs, state)
        top = joint = chosen
        if isinstance(self.mixer, Duplex):
            top = join({b.name: best(q[b.name], masks[b.name], b.choices)[1] for b in order}, order, -1)
            top, joint = torch.where(alive, top, 0.0), self._vector(picks, alive)
        return self.mixer(chosen, top, seen, joint, alive)

    def _vector(self, picks: Choices, alive: Tensor) -> Tensor:
        """What all do as one vector [.., J], zeros for the dead."""
        actions: dict[str, Action] = {}
        for block in self.net.blocks:
            actions |= block.split(Action(picks[block.name]))
        return self._joint.present(self._joint.join(self._joint.vectors(actions)), alive)


def agents_best(net: TeamNet, q: dict[str, Tensor], masks: dict[str, Tensor | None]) -> Choices:
    """What every agent would choose by its own Q."""
    return {b.name: best(q[b.name], masks[b.name], b.choices)[0] for b in net.blocks}


def agents_done(net: TeamNet, action: dict[str, Action]) -> Choices:
    """What every agent did, by block."""
    return {b.name: cast(Tensor, b.action(action).discrete) for b in net.blocks}

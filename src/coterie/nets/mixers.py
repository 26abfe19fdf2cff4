"""Mixers: from what every agent's choice is worth to it, to what all their choices are worth to the team."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.nets.bodies import Mlp
from coterie.nets.layers import Linear

MixerKind = Literal["none", "sum", "monotonic", "duplex"]


class Mixer(nn.Module, ABC):
    """Q_tot [..] of a team from its agents' Q. Entries of dead agents are zero and stay without influence."""

    @abstractmethod
    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        """chosen, best: [.., N], Q of what an agent did and of the best it could have done, zero where dead; state:
        [.., S]; joint: what all did [.., J]; alive: [.., N] bool.
        """


class Sum(Mixer):
    """Q_tot = sum_i Q_i. Source: Sunehag et al. 2018 (VDN)."""

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        return chosen.sum(-1)


class Monotonic(Mixer):
    """Q_tot grows with every Q_i, by weights that a network draws up from the state.

        Q_tot = elu(Q |W1(s)| + b1(s)) |w2(s)| + V(s)

    Source: Rashid et al. 2018 (QMIX).
    """

    def __init__(self, agents: int, state_size: int, embedding: int, hidden: int, generator: torch.Generator):
        super().__init__()
        self.agents, self.embedding = agents, embedding
        # All that depends on the state in as few products as possible: two hidden layers side by side, then heads.
        self.hidden = Linear(state_size, 2 * hidden, None, 2**0.5, generator)
        self.first = Linear(hidden, agents * embedding, None, 1.0, generator)
        self.second = Linear(hidden, embedding, None, 1.0, generator)
        self.direct = Linear(state_size, 2 * embedding, None, 1.0, generator)
        self.value = Linear(embedding, 1, None, 1.0, generator)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        lead = chosen.shape[:-1]
        state = state.reshape(-1, state.shape[-1])
        h1, h2 = self.hidden(state).relu().chunk(2, -1)
        bias, v = self.direct(state).chunk(2, -1)
        w1 = self.first(h1).abs().unflatten(-1, (self.agents, self.embedding))
        w2 = self.second(h2).abs()
        mixed = bias + (chosen.reshape(-1, self.agents, 1) * w1).sum(1)  # thousands of tiny products: not by bmm
        total = (nn.functional.elu(mixed) * w2).sum(-1) + self.value(v.relu()).squeeze(-1)
        return total.reshape(lead)


class Duplex(Mixer):
    """Values and advantages mixed apart, with positive weights, so that every Q_tot with the right best can be had.

        Q_tot = sum_i (w_i(s) Q_i^best + b_i(s)) + sum_i lambda_i(s, u) w_i(s) (Q_i - Q_i^best),   w_i, lambda_i > 0

    Source: Wang et al. 2021 (QPLEX), with one network in place of attention heads for lambda, and
    softplus in place of absolute values, which can vanish.
    """

    def __init__(
        self, agents: int, state_size: int, joint_size: int, embedding: int, hidden: int, generator: torch.Generator
    ):
        super().__init__()
        self.weigh = Mlp(state_size, (hidden,), "relu", False, None, generator)
        self.heads = Linear(hidden, 2 * agents, None, 1.0, generator)
        self.attend = Mlp(state_size + joint_size, (hidden, embedding), "relu", False, None, generator)
        self.importance = Linear(embedding, agents, None, 1.0, generator)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        lead, agents = chosen.shape[:-1], chosen.shape[-1]
        state, joint = state.reshape(-1, state.shape[-1]), joint.reshape(-1, joint.shape[-1])
        here = alive.reshape(-1, agents).to(chosen.dtype)
        weight, offset = self.heads(self.weigh(state)).chunk(2, -1)
        weight = nn.functional.softplus(weight)
        importance = nn.functional.softplus(self.importance(self.attend(torch.cat([state, joint], -1))))
        mine, top = chosen.reshape(-1, agents), best.reshape(-1, agents)
        # lambda w A = w A + (lambda - 1) w A; the second part teaches lambda alone, so that agents learn as in a sum.
        surplus = (importance - 1) * (weight * (mine - top)).detach()
        return ((weight * mine + offset * here) + surplus * here).sum(-1).reshape(lead)


class Unrestricted(Mixer):
    """Q_tot by a plain network of agents' Q and the state, which need not grow with any. Source: Rashid et al. 2020."""

    def __init__(self, agents: int, state_size: int, hidden: int, generator: torch.Generator):
        super().__init__()
        self.body = Mlp(agents + state_size, (hidden, hidden), "relu", False, None, generator)
        self.head = Linear(hidden, 1, None, 1.0, generator)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        x = torch.cat([chosen, state], -1)
        return self.head(self.body(x.reshape(-1, x.shape[-1]))).reshape(chosen.shape[:-1])


def build_mixer(
    kind: MixerKind,
    agents: int,
    state_size: int,
    joint_size: int,
    embedding: int,
    hidden: int,
    generator: torch.Generator,
) -> Mixer | None:
    """The mixer of that name; None for independent learners."""
    if kind == "none":
        return None
    if kind == "sum":
        return Sum()
    if kind == "monotonic":
        return Monotonic(agents, state_size, embedding, hidden, generator)
    return Duplex(agents, state_size, joint_size, embedding, hidden, generator)

"""Mixers of QPLEX and of weighted QMIX's Q*, and the choice of a mixer by name."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from coterie.nets.config import NetworkConfig
from coterie.nets.layers import MLP, Linear
from coterie.nets.mixers import Mixer, QMIXMixer, VDNMixer

MixerKind = Literal["none", "vdn", "qmix", "qplex"]


class QPLEXMixer(Mixer):
    """Mixes values and advantages separately, with positive weights.

    It can represent any Q_tot whose greedy joint action consists of the agents' greedy actions.

        Q_tot = sum_i (w_i(s) V_i + b_i(s)) + sum_i lambda_i(s, u) w_i(s) (Q_i - V_i)
        V_i = max_a Q_i(a),    w_i, lambda_i > 0

    Source: Wang et al. 2021 (QPLEX), with one network in place of attention heads for lambda, and softplus in place of
    absolute values, which can vanish.
    """

    reads_joint_action = True

    def __init__(
        self, agents: int, state_size: int, joint_size: int, embedding: int, hidden: int, generator: torch.Generator
    ):
        super().__init__()
        self.weights = MLP(state_size, NetworkConfig((hidden,), "relu"), generator)
        self.heads = Linear(hidden, 2 * agents, gain=1.0, generator=generator)
        self.attend = MLP(state_size + joint_size, NetworkConfig((hidden, embedding), "relu"), generator)
        self.importance = Linear(embedding, agents, gain=1.0, generator=generator)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        lead, agents = chosen.shape[:-1], chosen.shape[-1]
        state, joint = state.reshape(-1, state.shape[-1]), joint.reshape(-1, joint.shape[-1])
        here = alive.reshape(-1, agents).to(chosen.dtype)
        weight, offset = self.heads(self.weights(state)).chunk(2, -1)
        weight = nn.functional.softplus(weight)
        importance = nn.functional.softplus(self.importance(self.attend(torch.cat([state, joint], -1))))
        mine, top = chosen.reshape(-1, agents), best.reshape(-1, agents)
        # lambda w A = w A + (lambda - 1) w A. Only lambda is learned from the second part, so agents learn as in a sum.
        surplus = (importance - 1) * (weight * (mine - top)).detach()
        return ((weight * mine + offset * here) + surplus * here).sum(-1).reshape(lead)


class UnrestrictedMixer(Mixer):
    """Q_tot as a feed-forward network of the agents' Q and the state, which need not be monotonic.

    Source: Rashid et al. 2020 (weighted QMIX).
    """

    def __init__(self, agents: int, state_size: int, hidden: int, generator: torch.Generator):
        super().__init__()
        self.body = MLP(agents + state_size, NetworkConfig((hidden, hidden), "relu"), generator)
        self.head = Linear(hidden, 1, gain=1.0, generator=generator)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        x = torch.cat([chosen, state], -1)
        return self.head(self.body(x.reshape(-1, x.shape[-1]))).reshape(chosen.shape[:-1])


def build_mixer(
    kind: MixerKind,
    *,
    agents: int,
    state_size: int,
    joint_size: int,
    embed_dim: int,
    hidden: int | None,
    generator: torch.Generator,
) -> Mixer | None:
    """Creates a mixer.

    Args:
        kind: Name of the mixer; none for independent learners.
        agents: Number of agents.
        state_size: Features of the state that the mixer reads.
        joint_size: Length of the joint action.
        embed_dim: Width of the mixing layer.
        hidden: Hidden units of the hypernetworks; None for single linear layers, which only QMIX can have.
        generator: Generator of the initial weights.

    Returns:
        The mixer; None for independent learners.
    """
    if kind == "none":
        return None
    if kind == "vdn":
        return VDNMixer()
    if kind == "qmix":
        return QMIXMixer(agents, state_size, embed_dim, hidden, generator=generator)
    assert hidden is not None
    return QPLEXMixer(agents, state_size, joint_size, embed_dim, hidden=hidden, generator=generator)

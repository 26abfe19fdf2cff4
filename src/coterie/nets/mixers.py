"""Team Q-networks: the agents' Q-networks and a mixer that combines their Q-values into the team's Q."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, cast

import torch
from torch import Tensor, nn

from coterie.core.tree import Tree
from coterie.core.types import Action
from coterie.functional.choices import best, taken
from coterie.kernels import switch
from coterie.kernels.mixing import qmix
from coterie.nets.config import NetworkConfig
from coterie.nets.joint_actions import JointAction
from coterie.nets.layers import MLP, Linear
from coterie.nets.team import CentralEncoder, TeamNetwork, join_blocks

Choices = dict[str, Tensor]
"""Indices of discrete actions by block [.., n, K]."""


class Mixer(nn.Module, ABC):
    """Q_tot [..] of a team from its agents' Q. Dead agents have Q = 0 and do not contribute."""

    reads_joint_action = False
    """True if the mixer needs the agents' best Q and the joint action."""

    @abstractmethod
    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        """Returns Q_tot [..].

        Args:
            chosen: Q of the agents' actions [.., N].
            best: Q of their best actions [.., N].
            state: State of the environment, or the joint observation [.., S].
            joint: Joint action [.., J].
            alive: [.., N] bool.
        """


class VDNMixer(Mixer):
    """Q_tot = sum_i Q_i. Source: Sunehag et al. 2018 (VDN)."""

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        return chosen.sum(-1)


class QMIXMixer(Mixer):
    """Q_tot as a monotonic function of the agents' Q, with weights from hypernetworks of the state.

        Q_tot = elu(Q |W1(s)| + b1(s)) |w2(s)| + V(s)

    Source: Rashid et al. 2018 (QMIX).

    Args:
        agents: Number of agents.
        state_size: Features of the state.
        embedding: Width of the mixing layer.
        hidden: Hidden units of the hypernetworks W1 and w2; None: they are single linear layers.
        generator: Draws the initial weights.
    """

    def __init__(self, agents: int, state_size: int, embedding: int, hidden: int | None, generator: torch.Generator):
        super().__init__()
        self.agents, self.embedding = agents, embedding
        # As few products as possible: the hidden layers of both hypernetworks are one layer.
        self.hidden = None if hidden is None else Linear(state_size, 2 * hidden, gain=2**0.5, generator=generator)
        inputs = state_size if hidden is None else hidden
        self.first = Linear(inputs, agents * embedding, gain=0.1, generator=generator)
        self.second = Linear(inputs, embedding, gain=0.1, generator=generator)
        self.direct = Linear(state_size, 2 * embedding, gain=1.0, generator=generator)
        self.value = Linear(embedding, 1, gain=1.0, generator=generator)
        # With these biases, Q_tot begins near the sum of the agents' Q plus V(s), on the scale of returns. Without any,
        # all weights of a state of zeros are 0, where absolute values have no gradient.
        for layer in (self.first, self.second):
            nn.init.constant_(layer.bias, embedding**-0.5)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        if switch.on and self.hidden is not None:
            layers = (self.hidden, self.first, self.second, self.direct, self.value)
            if (total := qmix(chosen, state, layers)) is not None:
                return total
        lead = chosen.shape[:-1]
        state = state.reshape(-1, state.shape[-1])
        h1, h2 = (state, state) if self.hidden is None else self.hidden(state).relu().chunk(2, -1)
        bias, v = self.direct(state).chunk(2, -1)
        w1 = self.first(h1).abs().unflatten(-1, (self.agents, self.embedding))
        w2 = self.second(h2).abs()
        mixed = bias + (chosen.reshape(-1, self.agents, 1) * w1).sum(
            1
        )  # faster than bmm for thousands of tiny products
        total = (nn.functional.elu(mixed) * w2).sum(-1) + self.value(v.relu()).squeeze(-1)
        return total.reshape(lead)


class TeamQNetwork(nn.Module):
    """Q-networks of the agents, a mixer, and the network of the mixer's input.

    Args:
        net: Q-networks of the agents.
        mixer: The mixer; None for independent learners.
        encoder: Network of the mixer's input; None if the mixer has none.
        joint: Layout of joint actions.
    """

    def __init__(self, net: TeamNetwork, mixer: Mixer | None, encoder: CentralEncoder | None, joint: JointAction):
        super().__init__()
        self.net, self.mixer, self.encoder = net, mixer, encoder
        self._joint = joint

    def evaluate(
        self, q: dict[str, Tensor], actions: Choices, *, masks: dict[str, Tensor | None], alive: Tensor,
        obs: dict[str, Tree], state: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Returns Q of `actions` for each agent [.., N], or with a mixer for the team [..].

        Args:
            q: Q of all choices by block [.., n, A].
            actions: Actions by block.
            masks: Action masks by block.
            alive: [.., N] bool; other agents do not contribute to the team's Q.
            obs: Observations by role, for mixers that read them.
            state: State of the environment [.., S], for mixers that read it.
        """
        blocks = self.net.blocks
        chosen = join_blocks(
            {b.name: taken(q[b.name], actions[b.name], b.action_spec.choices) for b in blocks}, blocks, -1
        )
        if self.mixer is None:
            return chosen
        chosen = torch.where(alive, chosen, 0.0)
        seen = chosen if self.encoder is None else self.encoder(obs, state)
        top = joint = chosen
        if self.mixer.reads_joint_action:
            top = join_blocks(
                {b.name: best(q[b.name], masks[b.name], b.action_spec.choices)[1] for b in blocks}, blocks, -1
            )
            top, joint = torch.where(alive, top, 0.0), self._joint_action(actions, alive)
        return self.mixer(chosen, top, seen, joint, alive=alive)

    def same_actions(self, actions: Choices, others: Choices) -> Tensor:
        """Returns [.., N] bool, True where an agent's actions are equal."""
        same = {name: (action == others[name]).all(-1) for name, action in actions.items()}
        return join_blocks(same, self.net.blocks, -1)

    def _joint_action(self, actions: Choices, alive: Tensor) -> Tensor:
        """The joint action as one vector [.., J], with zeros for dead agents."""
        by_role: dict[str, Action] = {}
        for block in self.net.blocks:
            by_role |= block.split_by_role(Action(actions[block.name]))
        return self._joint.mask_absent(self._joint.join(self._joint.encode(by_role)), alive)


def greedy_actions(net: TeamNetwork, q: dict[str, Tensor], masks: dict[str, Tensor | None]) -> Choices:
    """Returns the action of each agent with the highest Q, by block."""
    return {b.name: best(q[b.name], masks[b.name], b.action_spec.choices)[0] for b in net.blocks}


def taken_actions(net: TeamNetwork, action: dict[str, Action]) -> Choices:
    """Returns discrete actions by block, from actions by role."""
    return {b.name: cast(Tensor, b.join_actions(action).discrete) for b in net.blocks}


MixerKind = Literal["none", "vdn", "qmix", "qplex", "qfix_sum", "qfix_mono", "qfix_lin"]


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


class QFIXMixer(Mixer):
    """Weighs the advantage of a mixer by the state and the joint action, so that it can represent any Q_tot of IGM.

        A     = f(Q_1, .., Q_N) - f(V_1, .., V_N),    V_i = max_a Q_i(a)
        Q_tot = w(s, u) A + b(s)                              w > 0
        Q_tot = f(Q_1, .., Q_N) + (w(s, u) - 1) sg(A) + b(s)  additive, which has the gradient of f for the agents

    f is VDN (QFIX-sum) or QMIX (QFIX-mono). QFIX-lin is QFIX-sum with a weight per agent, sum_i w_i (Q_i - V_i). The
    joint action that maximizes f maximizes Q_tot, as A is 0 there and negative elsewhere.

    Source: Baisero et al. 2025 (QFIX, Q+FIX), with softplus in place of absolute values, which can vanish, and weights
    that begin near 1, where Q_tot is that of f and a bias.

    Args:
        fixee: The mixer f.
        agents: Number of agents.
        state_size: Features of the state.
        joint_size: Length of the joint action.
        hidden: Hidden units of w and b.
        generator: Draws the initial weights.
        per_agent: A weight for each agent; only with VDN.
        additive: The second form.
    """

    reads_joint_action = True

    def __init__(
        self, fixee: VDNMixer | QMIXMixer, agents: int, state_size: int, joint_size: int, hidden: int,
        generator: torch.Generator, *, per_agent: bool, additive: bool,
    ):  # fmt: skip
        super().__init__()
        self.fixee, self._per_agent, self._additive = fixee, per_agent, additive
        config, outputs = NetworkConfig((hidden,), "relu"), agents if per_agent else 1
        self.weigh = MLP(state_size + joint_size, config, generator)
        self.weight = Linear(hidden, outputs, gain=0.1, generator=generator)
        nn.init.constant_(self.weight.bias, math.log(math.e - 1))  # softplus: 1
        self.value = MLP(state_size, config, generator)
        self.bias = Linear(hidden, 1, gain=1.0, generator=generator)

    def forward(self, chosen: Tensor, best: Tensor, state: Tensor, joint: Tensor, alive: Tensor) -> Tensor:
        lead = chosen.shape[:-1]
        chosen, best, state, joint, alive = (x.reshape(-1, x.shape[-1]) for x in (chosen, best, state, joint, alive))
        total = self.fixee(chosen, chosen, state, joint, alive)
        if self._per_agent:
            advantage = chosen - best
        else:
            advantage = (total - self.fixee(best, best, state, joint, alive)).unsqueeze(-1)
        weight = nn.functional.softplus(self.weight(self.weigh(torch.cat([state, joint], -1))))
        bias = self.bias(self.value(state)).squeeze(-1)
        if self._additive:
            fixed = total + ((weight - 1) * advantage.detach()).sum(-1)
        else:
            fixed = (weight * advantage).sum(-1)
        return (fixed + bias).reshape(lead)


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
    additive: bool = False,
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
        additive: The additive form of QFIX.
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
    if kind == "qplex":
        return QPLEXMixer(agents, state_size, joint_size, embed_dim, hidden=hidden, generator=generator)
    fixee = QMIXMixer(agents, state_size, embed_dim, hidden, generator) if kind == "qfix_mono" else VDNMixer()
    return QFIXMixer(
        fixee, agents, state_size, joint_size, hidden, generator, per_agent=kind == "qfix_lin", additive=additive
    )

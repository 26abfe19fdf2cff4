"""Centralized action-value critics of deterministic actors (MADDPG, MATD3), and the gradient that actors ascend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import HiddenState
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.joint_actions import JointAction
from coterie.nets.layers import action_size
from coterie.nets.team import AgentNetwork, CentralEncoder


class ActionValueNetwork(nn.Module):
    """Q(encoding, action) for agents [.., n, ..] with one set of parameters, or `sets` of them.

    A recurrent layer reads observations only. One pass over a sequence then serves any actions at its timesteps.
    """

    def __init__(
        self,
        obs_size: int,
        action_features: int,
        outputs: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        sets: int | None,
    ):
        super().__init__()
        self.history = None
        if config.rnn != "none":
            self.history = AgentNetwork(obs_size, config.rnn_size, config, generator, sets=sets)
            obs_size = config.rnn_size
        feed_forward = replace(config, rnn="none")
        self.network = AgentNetwork(obs_size + action_features, outputs, feed_forward, generator, sets=sets)

    def encode(self, obs: Tensor, first: Tensor | None, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        """Returns the history's features of `obs` [.., n, D] and the hidden state; `obs` without a recurrent layer."""
        return (obs, hidden_state) if self.history is None else self.history(obs, first, hidden_state)

    def forward(self, encoding: Tensor, action: Tensor) -> Tensor:
        return self.network(torch.cat([encoding, action], -1), None, {})[0]


class CentralizedActionCritic(nn.Module):
    """Q_i(s, a) of the team's observations and joint action, and of other teams' in a global critic: [.., N, K].

    With a recurrent layer, `first` is [T, M, 1] and the hidden state [M, 1, H], or [M, N, H] with a network per agent.

    Args:
        team: The team.
        num_signals: Number of reward signals K.
        config: Architecture.
        generator: Source of the initial weights.
        inputs: Observations that the critic reads besides actions.
        per_agent_network: Every agent has a critic of its own; otherwise one network has an output per agent.
        shared_output: The one network has a single output for all agents, for teams with a common reward.
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        inputs: CentralInputs,
        per_agent_network: bool,
        shared_output: bool,
    ):
        super().__init__()
        self.encoder = CentralEncoder(team, inputs, generator)
        joint_size = sum(action_size(role.action) * role.n for role in (*team.roles, *inputs.other_roles))
        self.num_agents, self.per_agent_network, self.shared_output = team.n, per_agent_network, shared_output
        if per_agent_network:
            outputs, sets = num_signals, team.n
        else:
            outputs, sets = num_signals * (1 if shared_output else team.n), None
        self.network = ActionValueNetwork(
            self.encoder.features, joint_size, outputs, config, generator=generator, sets=sets
        )

    def encode(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns encodings [.., 1, F], or [.., N, F] with a network per agent, and the next hidden state.

        `obs` has the observations of the team, and of other teams in a global critic, by role.
        """
        x = self.encoder(obs, state).unsqueeze(-2)
        if self.per_agent_network:
            x = x.expand(*x.shape[:-2], self.num_agents, -1)
        return self.network.encode(x, None if first is None else first.expand(x.shape[:-1]), hidden_state)

    def q_values(self, encoding: Tensor, joint_action: Tensor) -> Tensor:
        """Returns Q [.., N, K] given what `encode` gave.

        Args:
            encoding: [.., 1, F] or [.., N, F].
            joint_action: [.., J], the same for every agent; or [.., N, J], a joint action per agent. May be relaxed.
        """
        by_agent = joint_action.ndim == encoding.ndim
        joint_action = joint_action if by_agent else joint_action.unsqueeze(-2)
        count = self.num_agents if by_agent or self.per_agent_network else 1
        values = self.network(
            encoding.expand(*encoding.shape[:-2], count, -1), joint_action.expand(*joint_action.shape[:-2], count, -1)
        )
        if self.per_agent_network:
            return values
        if self.shared_output:
            return values.expand(*values.shape[:-2], self.num_agents, -1)
        values = values.unflatten(-1, (self.num_agents, -1))  # [.., 1 or N, N, K]
        return values.diagonal(dim1=-3, dim2=-2).movedim(-1, -2) if by_agent else values.squeeze(-3)


def replayed_actions_gradient(
    critic: Any, features: Tree, action: Tensor, taken: Tensor, valid: Tensor, *, joint: JointAction
) -> tuple[Tensor, Tensor]:
    """Gradient of each agent's Q in its own action, with the other agents' actions from the replay buffer.

    Source: Lowe et al. 2017, eq. 5.

    Args:
        critic: A centralized critic, whose parameters get no gradient.
        features: Its features of the timesteps (`encode`).
        action: Joint action of the actors [T, S, J].
        taken: Joint action taken [T, S, J].
        valid: [T, S, N] bool, entries that are learned from.
        joint: Layout of joint actions.

    Returns:
        The gradients, joint [T, S, J], and the sum of the agents' Q over valid entries [].
    """
    by_agent = joint.with_own(taken, action).requires_grad_()  # [T, S, N, J]
    q = torch.where(valid, critic.q_values(features, by_agent)[..., 0], 0.0).sum()
    (gradient,) = torch.autograd.grad(q, by_agent)
    return torch.where(joint.is_own, gradient, 0.0).sum(-2), q.detach()

"""Centralized action-value critics of deterministic actors (MADDPG, MATD3), and the gradient that actors ascend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import HiddenState
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.encoders import build_encoder
from coterie.nets.joint_actions import JointAction, action_size
from coterie.nets.team import (
    AgentNetwork,
    Block,
    CentralEncoder,
    PooledTeam,
    join_blocks,
    join_by_block,
    join_hidden_states,
    observation_network,
    slice_agents,
    team_blocks,
)


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
        obs_network = observation_network(team, config, generator)
        if obs_network is None:
            self.encoder = CentralEncoder(team, inputs, generator)
        else:
            self.encoder, config = PooledTeam(obs_network, inputs.state_size), replace(config, body=None)
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


class DecentralizedActionCritic(nn.Module):
    """Q(o_i, a_i) of each agent's own observation and action, [.., N, K].

    It may also read `state_size` features of a state, the same for all agents, such as the time left.
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        state_size: int = 0,
    ):
        super().__init__()
        self.blocks = team_blocks(team, config.share_params)
        self.obs_agent_id = config.obs_agent_id
        self.encoders, self.networks = ModulesByName(), ModulesByName()
        self.obs_network = observation_network(team, config, generator)
        for block in self.blocks:
            sets, network = config.parameter_sets(block.n), config.of_rows(block.name)
            obs_size = config.hidden_sizes[-1]
            if self.obs_network is None:
                self.encoders[block.name] = build_encoder(block.roles[0].observation_space, sets, generator)
                obs_size = self.encoders[block.name].features
            obs_size += state_size + (block.n if self._reads_id(block) else 0)
            self.networks[block.name] = ActionValueNetwork(
                obs_size, action_size(block.action_spec), num_signals, network, generator=generator, sets=sets
            )

    def _reads_id(self, block: Block) -> bool:
        return self.obs_agent_id and block.n > 1

    def encode(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[dict[str, Tensor], HiddenState]:
        """Returns encodings by block [.., n, F] and the next hidden state.

        Arguments are those of `TeamNetwork`, and the state [.., S], None if it is not read.
        """
        encodings, hidden_states = {}, []
        encoded = self.obs_network and self.obs_network(obs, None, {})[0]
        for block in self.blocks:
            x = encoded[block.name] if encoded else self.encoders[block.name](block.join_obs(obs))
            if state is not None:
                x = torch.cat([x, state.unsqueeze(-2).expand(*x.shape[:-1], -1)], -1)
            if self._reads_id(block):
                x = torch.cat([x, torch.eye(block.n, device=x.device).expand(*x.shape[:-1], block.n)], -1)
            block_first, block_state = slice_agents(block, first, hidden_state)
            encodings[block.name], block_state = self.networks[block.name].encode(x, block_first, block_state)  # pyright: ignore
            hidden_states.append(block_state)
        return encodings, join_hidden_states(hidden_states)

    def q_values(self, encodings: dict[str, Tensor], action: dict[str, Tensor]) -> Tensor:
        """Returns Q [.., N, K] of actions, vectors by role [.., n, P] that may be relaxed, given what `encode` gave."""
        joined = join_by_block(action, self.blocks)
        values = {name: self.networks[name](encoding, joined[name]) for name, encoding in encodings.items()}
        return join_blocks(values, self.blocks, -2)


def own_action_gradient(
    critic: Any, features: Tree, action: Tensor, taken: Tensor, valid: Tensor, *, joint: JointAction
) -> tuple[Tensor, Tensor]:
    """Gradient for critics that read an agent's own observation and action."""
    action = action.requires_grad_()
    q = torch.where(valid, critic.q_values(features, joint.split(action))[..., 0], 0.0).sum()
    return torch.autograd.grad(q, action)[0], q.detach()


def current_actions_gradient(
    critic: Any, features: Tree, action: Tensor, taken: Tensor, valid: Tensor, *, joint: JointAction
) -> tuple[Tensor, Tensor]:
    """Gradient for centralized critics, with the other agents' actions from their current actors."""
    if critic.per_agent_network:
        return replayed_actions_gradient(critic, features, action, action, valid=valid, joint=joint)
    action = action.requires_grad_()
    q = critic.q_values(features, action)[..., 0]  # one forward pass, as all agents evaluate the same joint action
    if critic.shared_output:  # and one backward pass, as all have the same Q
        (gradient,) = torch.autograd.grad(q[..., 0].sum(), action)
        return joint.mask_team(gradient, valid), torch.where(valid, q.detach(), 0.0).sum()
    q = torch.where(valid, q, 0.0).sum((0, 1))
    gradient, agents = torch.zeros_like(action), len(q)
    for agent in range(agents):
        (found,) = torch.autograd.grad(q[agent], action, retain_graph=agent + 1 < agents)
        gradient += torch.where(joint.is_own[agent], found, 0.0)
    return gradient, q.detach().sum()


def select_action_gradient(
    centralized: bool, other_actions: Literal["replay", "current"]
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns the gradient function for a kind of critic and for the origin of the other agents' actions."""
    if not centralized:
        return own_action_gradient
    return replayed_actions_gradient if other_actions == "replay" else current_actions_gradient

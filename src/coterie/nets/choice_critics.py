"""Critics with a Q of every choice of an agent, given the actions of the others.

COMA's critic, and those of SAC and MASAC, which are also given continuous actions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.encoders import build_encoder
from coterie.nets.joint_actions import JointAction, action_size, encode_actions
from coterie.nets.recurrent import unroll_with_burn_in, zero_hidden_state
from coterie.nets.team import (
    AgentNetwork,
    Block,
    CentralEncoder,
    join_choices,
    observation_network,
    slice_agents,
    team_blocks,
)


class CounterfactualCritic(nn.Module):
    """Q_i(s, (u_-i, a)) of every choice a of every agent i: [.., N, A], padded with zeros.

    The input is the joint observation or environment state, the agent's own observation, the other agents' actions (the
    agent's own part of the joint action is zero), optionally its one-hot id, and optionally the last joint action of
    the team. A global critic also reads observations and actions of other teams.
    Source: Foerster et al. 2018, section 4.
    """

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        device: torch.device,
        *,
        inputs: CentralInputs,
        reads_last_action: bool,
    ):
        super().__init__()
        self.encoder = CentralEncoder(team, inputs, generator)
        self.joint = JointAction(team, device, inputs.other_roles)
        self.blocks = team_blocks(team, config.share_params)
        self.obs_agent_id = config.obs_agent_id
        last_size = JointAction(team, device).size if reads_last_action else 0
        central_size = self.encoder.features + self.joint.size + last_size
        self.obs_encoders, self.networks = ModulesByName(), ModulesByName()
        self.obs_network = observation_network(team, config, generator)
        for block in self.blocks:
            sets = config.parameter_sets(block.n)
            obs_size = config.hidden_sizes[-1]
            if self.obs_network is None:
                self.obs_encoders[block.name] = build_encoder(block.roles[0].observation_space, sets, generator)
                obs_size = self.obs_encoders[block.name].features
            in_features = obs_size + central_size + (block.n if self.obs_agent_id else 0)
            self.networks[block.name] = AgentNetwork(
                in_features, block.action_spec.mask_size, config.of_rows(block.name), generator, sets=sets
            )

    def forward(
        self,
        obs: dict[str, Tree],
        state: Tensor | None,
        joint_action: Tensor,
        last_joint_action: Tensor | None,
    ) -> Tensor:
        """Returns Q [.., N, A].

        Args:
            obs: By role [.., n, ..], with those of other teams in a global critic.
            state: [.., S], None if the critic does not read it.
            joint_action: [.., J] of this timestep, with other teams in a global critic.
            last_joint_action: The team's [.., J] of the timestep before, zero at the start of an episode; None if not
                read.
        """
        return self.given_others(obs, state, self.joint.others(joint_action), last_joint_action)

    def given_others(
        self, obs: dict[str, Tree], state: Tensor | None, others: Tensor, last_joint_action: Tensor | None = None
    ) -> Tensor:
        """Returns Q of every choice given actions of the others for each agent.

        Args:
            obs: As above.
            state: As above.
            others: Joint action that each agent reads, its own entries zero [.., N, J], or several of them
                [E, .., N, J].
            last_joint_action: As above.

        Returns:
            Q [.., N, A] or [E, .., N, A].
        """
        central = self.encoder(obs, state) if self.encoder.features else others[..., 0, :0]
        if last_joint_action is not None:
            central = torch.cat([central, last_joint_action], -1)
        central = central.unsqueeze(-2).expand(*others.shape[:-1], -1)
        values, encoded = {}, self.obs_network and self.obs_network(obs, None, {})[0]
        for block in self.blocks:
            agents = slice(block.start, block.stop)
            own = encoded[block.name] if encoded else self.obs_encoders[block.name](block.join_obs(obs))
            own = own.expand(*others.shape[:-2], *own.shape[-2:])
            x = self._block_input(block, own, [central[..., agents, :], others[..., agents, :]])
            values[block.name], _ = self.networks[block.name](x, None, {})
        return join_choices(values, self.blocks, 0.0)

    def _block_input(self, block: Block, x: Tensor, extra: list[Tensor]) -> Tensor:
        """Encoded observations, `extra` inputs [.., n, D] and one-hot ids of a block's agents."""
        parts = [x, *extra]
        if self.obs_agent_id:
            parts.append(torch.eye(block.n, device=x.device).expand(*x.shape[:-1], block.n))
        return torch.cat(parts, -1)


class SoftCritic(nn.Module):
    """Q of every choice of every agent: [.., N, A], padded with zeros; agents without choices have one entry.

    The input is the agent's own observation, optionally its one-hot id, the joint observation or environment state, and
    `action_sizes` numbers by block that encode actions. A recurrent layer reads observations only, so that the hidden
    state does not depend on which actions are evaluated. No gradient flows through the first `burn_in` timesteps of a
    sequence to it.
    """

    def __init__(
        self,
        team: TeamSpec,
        action_sizes: dict[str, int],
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        inputs: CentralInputs,
        burn_in: int,
    ):
        super().__init__()
        self._config, self._burn_in = config, burn_in
        self.blocks = team_blocks(team, config.share_params)
        self.central_encoder = CentralEncoder(team, inputs, generator)
        self.obs_encoders, self.histories, self.heads = ModulesByName(), ModulesByName(), ModulesByName()
        self.obs_network = observation_network(team, config, generator)
        for block in self.blocks:
            sets, network = config.parameter_sets(block.n), config.of_rows(block.name)
            obs_size = config.hidden_sizes[-1]
            if self.obs_network is None:
                self.obs_encoders[block.name] = build_encoder(block.roles[0].observation_space, sets, generator)
                obs_size = self.obs_encoders[block.name].features
            features = obs_size + self.central_encoder.features + (block.n if config.obs_agent_id else 0)
            if config.rnn != "none":
                self.histories[block.name] = AgentNetwork(features, config.rnn_size, network, generator, sets=sets)
                features = config.rnn_size
            features, outputs = features + action_sizes[block.name], max(1, block.action_spec.mask_size)
            self.heads[block.name] = AgentNetwork(features, outputs, replace(network, rnn="none"), generator, sets=sets)

    def forward(
        self,
        obs: dict[str, Tree],
        state: Tensor | None,
        actions: dict[str, Tensor],
        first: Tensor | None,
        hidden_state: HiddenState,
    ) -> Tensor:
        """Returns Q [.., N, A]; `actions` [.., n, P] are encoded, by block, without entries for blocks that read none.

        See `TwinCritic.forward`.
        """
        values = {}
        for name, x in self.encode(obs, state, first, hidden_state).items():
            if name in actions:
                x = torch.cat([x, actions[name]], -1)
            values[name] = self.heads[name](x, None, {})[0]
        return join_choices(values, self.blocks, 0.0)

    def encode(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> dict[str, Tensor]:
        """Returns what the critic reads besides actions, by block [.., n, F]; arguments as in `forward`."""
        central = self.central_encoder(obs, state) if self.central_encoder.features else None
        features, encoded = {}, self.obs_network and self.obs_network(obs, None, {})[0]
        for block in self.blocks:
            parts = [encoded[block.name] if encoded else self.obs_encoders[block.name](block.join_obs(obs))]
            lead = parts[0].shape[:-1]
            if central is not None:
                parts.append(central.unsqueeze(-2).expand(*lead, -1))
            if self._config.obs_agent_id:
                parts.append(torch.eye(block.n, device=parts[0].device).expand(*lead, block.n))
            x = torch.cat(parts, -1)
            if self.histories:
                block_first, block_state = slice_agents(block, first, hidden_state)
                history = self.histories[block.name]
                x = unroll_with_burn_in(history, x, block_first, block_state, burn_in=self._burn_in)
            features[block.name] = x
        return features


class TwinCritic(nn.Module):
    """Two critics that differ only in their initial weights: [2, .., N, A]. The smaller Q is used.

    An agent's own choices are outputs, its own continuous actions are inputs. A centralized critic also reads the
    other agents' actions, a global one those of other teams as well.

    Source: Fujimoto et al. 2018, section 4.2 (two critics); Foerster et al. 2018, section 4 (an output for each choice,
    given the others' actions).

    Args:
        team: The team.
        config: Architecture.
        generator: Source of the initial weights.
        device: Where the networks are stored.
        inputs: Inputs besides own observations and actions.
        centralized: The critics read the other agents' actions.
        burn_in: Timesteps of sequences that only warm up the hidden state of recurrent critics.
    """

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        device: torch.device,
        *,
        inputs: CentralInputs,
        centralized: bool,
        burn_in: int = 0,
    ):
        super().__init__()
        self.blocks = team_blocks(team, config.share_params)
        self._config, self._team, self._device = config, team, device
        self._roles = (*team.roles, *inputs.other_roles)
        self._joint = JointAction(team, device, inputs.other_roles) if centralized else None
        action_sizes = {block.name: block.action_spec.continuous for block in self.blocks}
        if self._joint is not None:
            specs = [role.action for role in self._roles for _ in role.agents]
            is_choice = torch.cat([torch.arange(action_size(spec)) < spec.mask_size for spec in specs]).to(device)
            self._own_choices, self._own_numbers = self._joint.is_own & is_choice, self._joint.is_own & ~is_choice
            action_sizes = dict.fromkeys(action_sizes, self._joint.size)
        self.first_critic = SoftCritic(team, action_sizes, config, generator, inputs=inputs, burn_in=burn_in)
        self.second_critic = SoftCritic(team, action_sizes, config, generator, inputs=inputs, burn_in=burn_in)
        self.to(device)

    def forward(
        self,
        obs: dict[str, Tree],
        state: Tensor | None,
        action: dict[str, Action],
        own_action: dict[str, Action] | None,
        first: Tensor | None,
        alive: Tensor | None = None,
    ) -> Tensor:
        """Returns Q [2, .., N, A].

        The gradient of entry i reaches only agent i's numbers in `own_action`. Recurrent critics read sequences
        [T, M, ..] from a zero hidden state.

        Args:
            obs: By role [.., n, ..], with those of other teams in a global critic.
            state: [.., S], None if the critics do not read it.
            action: Actions of all agents, by role, with those of other teams in a global critic.
            own_action: Actions that replace each agent's own continuous actions, by the same roles; None: those of
                `action`.
            first: [T, M, N] bool, needed by recurrent critics.
            alive: [.., N] bool, with other teams in a global critic; the actions of dead agents are masked; None: all
                are alive.
        """
        actions = self._encode_actions(action, action if own_action is None else own_action, alive)
        hidden_state = self._initial_hidden_state(first)
        critics = (self.first_critic, self.second_critic)
        return torch.stack([critic(obs, state, actions, first, hidden_state=hidden_state) for critic in critics])

    def encode(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns what each of the critics reads besides actions, by block [.., n, F]; arguments as in `forward`."""
        inputs = (obs, state, first, self._initial_hidden_state(first))
        return self.first_critic.encode(*inputs), self.second_critic.encode(*inputs)

    def of_agent(
        self,
        agent: int,
        features: tuple[dict[str, Tensor], dict[str, Tensor]],
        action: dict[str, Action],
        alive: Tensor | None = None,
    ) -> Tensor:
        """Returns Q of each choice of one agent [2, .., 1, A], by centralized critics that a role's agents share.

        Args:
            agent: Index of the agent in the team.
            features: Result of `encode`.
            action: Actions of all agents, as in `forward`, with gradients in the agent's own continuous actions.
            alive: As in `forward`.
        """
        assert self._joint is not None
        joint = self._encode(action)
        joint = joint if alive is None else self._joint.mask_absent(joint, alive)
        visible = joint.masked_fill(self._own_choices[agent], 0).unsqueeze(-2)
        block = next(block for block in self.blocks if block.start <= agent < block.stop)
        values = []
        for critic, encoded in zip((self.first_critic, self.second_critic), features, strict=True):
            own = encoded[block.name].narrow(-2, agent - block.start, 1)
            values.append(critic.heads[block.name](torch.cat([own, visible], -1), None, {})[0])
        return torch.stack(values)

    def taken(self, action: dict[str, Action]) -> Tensor:
        """Returns the choices of `action` as ones among zeros [.., N, A]; Q of the action is the sum of Q over them."""
        one_hot = {}
        for block in self.blocks:
            spec, joined = block.action_spec, block.join_actions(action)
            if spec.choices:
                one_hot[block.name] = encode_actions(replace(spec, continuous=0), Action(joined.discrete))
            else:
                assert joined.continuous is not None
                one_hot[block.name] = torch.ones_like(joined.continuous[..., :1])
        return join_choices(one_hot, self.blocks, 0.0)

    def _initial_hidden_state(self, first: Tensor | None) -> HiddenState:
        """Zeros for sequences with resets `first` [T, M, N]; {} for feed-forward critics."""
        if first is None:
            return {}
        return zero_hidden_state(self._config.rnn, (first.shape[1], self._team.n, self._config.rnn_size), self._device)

    def _encode_actions(
        self, action: dict[str, Action], own_action: dict[str, Action], alive: Tensor | None
    ) -> dict[str, Tensor]:
        """Actions as every agent's critic reads them, by block: its own choices are zero."""
        if self._joint is None:
            numbers = {block.name: block.join_actions(own_action).continuous for block in self.blocks}
            return {name: x for name, x in numbers.items() if x is not None}
        joint = self._encode(action)
        joint = (joint if alive is None else self._joint.mask_absent(joint, alive)).unsqueeze(-2)
        if own_action is not action:
            own = self._encode(own_action).unsqueeze(-2)
            joint = torch.where(self._own_numbers, own, joint)
        visible = joint.masked_fill(self._own_choices, 0)
        return {block.name: visible[..., block.start : block.stop, :] for block in self.blocks}

    def _encode(self, action: dict[str, Action]) -> Tensor:
        """The joint action [.., J]: the vectors of all agents one after the other."""
        return torch.cat([encode_actions(role.action, action[role.name]).flatten(-2) for role in self._roles], -1)

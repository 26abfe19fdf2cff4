"""Decentralized action-value critics of deterministic actors (DDPG, TD3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import HiddenState
from coterie.nets.action_critics import ActionValueNetwork
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import NetworkConfig
from coterie.nets.encoders import build_encoder
from coterie.nets.layers import action_size
from coterie.nets.team import Block, join_blocks, join_hidden_states, slice_agents, team_blocks


class DecentralizedActionCritic(nn.Module):
    """Q(o_i, a_i) of each agent's own observation and action: [.., N, K]."""

    def __init__(self, team: TeamSpec, num_signals: int, config: NetworkConfig, generator: torch.Generator):
        super().__init__()
        self.blocks = team_blocks(team, config.share_params)
        self.obs_agent_id = config.obs_agent_id
        self.encoders, self.networks = ModulesByName(), ModulesByName()
        for block in self.blocks:
            sets, network = config.parameter_sets(block.n), config.of_role(block.name)
            encoder = build_encoder(block.roles[0].observation_space, sets, generator)
            obs_size = encoder.features + (block.n if self._reads_id(block) else 0)
            self.encoders[block.name] = encoder
            self.networks[block.name] = ActionValueNetwork(
                obs_size, action_size(block.action_spec), num_signals, network, generator=generator, sets=sets
            )

    def _reads_id(self, block: Block) -> bool:
        return self.obs_agent_id and block.n > 1

    def encode(
        self, obs: dict[str, Tree], first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[dict[str, Tensor], HiddenState]:
        """Returns encodings by block [.., n, F] and the next hidden state; arguments as in `TeamNetwork`."""
        encodings, hidden_states = {}, []
        for block in self.blocks:
            x = self.encoders[block.name](block.join_obs(obs))
            if self._reads_id(block):
                x = torch.cat([x, torch.eye(block.n, device=x.device).expand(*x.shape[:-1], block.n)], -1)
            block_first, block_state = slice_agents(block, first, hidden_state)
            encodings[block.name], block_state = self.networks[block.name].encode(x, block_first, block_state)  # pyright: ignore
            hidden_states.append(block_state)
        return encodings, join_hidden_states(hidden_states)

    def q_values(self, encodings: dict[str, Tensor], action: dict[str, Tensor]) -> Tensor:
        """Returns Q [.., N, K] of actions, vectors by role [.., n, P] that may be relaxed, given what `encode` gave."""
        values = {}
        for block in self.blocks:
            vectors = [action[role.name] for role in block.roles]
            joined = vectors[0] if len(vectors) == 1 else torch.cat(vectors, -2)
            values[block.name] = self.networks[block.name](encodings[block.name], joined)
        return join_blocks(values, self.blocks, -2)

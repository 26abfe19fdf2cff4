"""COMA's critic: Q of every choice of an agent, given the actions of the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.nets.by_name import ModulesByName
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.encoders import build_encoder
from coterie.nets.joint_actions import JointAction
from coterie.nets.team import AgentNetwork, Block, CentralEncoder, join_choices, team_blocks


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
        for block in self.blocks:
            sets = config.parameter_sets(block.n)
            obs_encoder = build_encoder(block.roles[0].observation_space, sets, generator)
            in_features = obs_encoder.features + central_size + (block.n if self.obs_agent_id else 0)
            self.obs_encoders[block.name] = obs_encoder
            self.networks[block.name] = AgentNetwork(
                in_features, block.action_spec.mask_size, config.of_role(block.name), generator, sets=sets
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
        others = self.joint.others(joint_action)
        central = self.encoder(obs, state) if self.encoder.features else joint_action[..., :0]
        if last_joint_action is not None:
            central = torch.cat([central, last_joint_action], -1)
        central = central.unsqueeze(-2).expand(*others.shape[:-1], -1)
        values = {}
        for block in self.blocks:
            agents = slice(block.start, block.stop)
            x = self._block_input(block, obs, [central[..., agents, :], others[..., agents, :]])
            values[block.name], _ = self.networks[block.name](x, None, {})
        return join_choices(values, self.blocks, 0.0)

    def _block_input(self, block: Block, obs: dict[str, Tree], extra: list[Tensor]) -> Tensor:
        """Own observations, `extra` inputs [.., n, D] and one-hot ids of a block's agents."""
        x = self.obs_encoders[block.name](block.join_obs(obs))
        parts = [x, *extra]
        if self.obs_agent_id:
            parts.append(torch.eye(block.n, device=x.device).expand(*x.shape[:-1], block.n))
        return torch.cat(parts, -1)

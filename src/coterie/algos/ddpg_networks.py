"""Construction of the critics of DDPG."""

from __future__ import annotations

import torch
from torch import nn

from coterie.algos.algorithm import central_inputs, learns_common_reward
from coterie.algos.ddpg_config import DDPGConfig
from coterie.core.specs import TeamSpec
from coterie.nets.action_critics import CentralizedActionCritic
from coterie.nets.decentralized_action_critic import DecentralizedActionCritic


def build_critics(
    config: DDPGConfig, team: TeamSpec, state_name: str | None, generator: torch.Generator
) -> nn.ModuleList:
    """Creates the critic, or the twin critics.

    Args:
        config: Settings of the learner.
        team: The team.
        state_name: Name of the environment state that the critics read; None for none.
        generator: Source of the initial weights.
    """
    network = config.critic_network_config(team, per_agent=config.critic == "own")
    share_critic = config.share_params != "none" if config.share_critic is None else config.share_critic
    inputs = central_inputs(config.critic, team, state_name)
    critics = nn.ModuleList()
    for _ in range(2 if config.twin_critics else 1):
        if config.critic == "own":
            critics.append(DecentralizedActionCritic(team, 1, network, generator))
            continue
        critic = CentralizedActionCritic(
            team,
            1,
            network,
            generator,
            inputs=inputs,
            per_agent_network=not share_critic,
            shared_output=learns_common_reward(config, team),
        )
        critics.append(critic)
    return critics

"""Networks and optimizers of SAC and MASAC."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from coterie.algos.algorithm import central_inputs
from coterie.algos.optimizer import Optimizer, TargetNetwork
from coterie.algos.sac_config import SACConfig
from coterie.core.specs import TeamSpec
from coterie.nets.soft_critics import TwinCritic
from coterie.nets.team import Block
from coterie.policies.squashed import SquashedPolicy


class SACNetworks:
    """Policy, critics and temperature of a team, with an optimizer each.

    Args:
        config: Settings of the learner.
        team: The team.
        state_name: Environment state that the critics read; None for none.
        generator: Source of the initial weights.
        device: Where the networks are stored.

    Attributes:
        policy: The policy.
        critics: The two critics.
        temperature: Entropy temperatures.
        target: Target network of the critics.
        critic_optimizer, policy_optimizer, temperature_optimizer: Their optimizers.
    """

    def __init__(
        self,
        config: SACConfig,
        team: TeamSpec,
        state_name: str | None,
        generator: torch.Generator,
        *,
        device: torch.device,
    ):
        self.policy: SquashedPolicy = SquashedPolicy(team, config.network_config(team), generator, device)
        network = config.critic_network_config(team)
        inputs, burn_in = None, config.burn_in if config.recurrent else 0
        if config.critic != "own":
            inputs = central_inputs(config.critic, team, state_name)
        self.critics = TwinCritic(team, network, generator, device, inputs=inputs, burn_in=burn_in)
        self.temperature = Temperature(self.policy.blocks, config.temperature, device)
        settings = config.adam_settings
        self.critic_optimizer = Optimizer({"critic": self.critics}, *settings)
        self.policy_optimizer = Optimizer({"policy": self.policy.net}, *settings)
        self.temperature_optimizer = Optimizer({"temperature": self.temperature}, config.adam_eps, 0.0, None)
        self.target = TargetNetwork(self.critics, config.tau, config.target_update_interval)

    def parts(self) -> dict[str, Any]:
        """Returns what has a state, by its name in checkpoints."""
        return {
            "policy": self.policy,
            "critic": self.critics,
            "target": self.target,
            "temperature": self.temperature,
            "critic_optimizer": self.critic_optimizer,
            "policy_optimizer": self.policy_optimizer,
            "temperature_optimizer": self.temperature_optimizer,
        }


class Temperature(nn.Module):
    """Entropy temperature: one positive number per block of agents, stored as its logarithm.

    Attributes:
        log: Logarithms of the temperatures [blocks].
        block_of: Index of each agent's block [N].
    """

    def __init__(self, blocks: tuple[Block, ...], initial: float, device: torch.device):
        super().__init__()
        self.log = nn.Parameter(torch.full((len(blocks),), math.log(initial), device=device))
        sizes = torch.tensor([block.n for block in blocks])
        self.block_of = torch.repeat_interleave(torch.arange(len(blocks)), sizes).to(device)

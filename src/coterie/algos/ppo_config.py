"""Settings of PPO, IPPO and MAPPO."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from coterie.algos.algorithm import central_inputs
from coterie.algos.on_policy import ClippedConfig
from coterie.core.specs import TeamSpec
from coterie.nets.value_critics import CentralizedCritic, DecentralizedCritic


class PPOConfig(ClippedConfig):
    """Settings of PPO, IPPO and MAPPO."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "own"
    """Input of the critic: the agent's own observation, the joint observation of the team, the environment's state,
    joint observation and state, or the observations of all teams (global).
    """
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation."""
    entropy_decay: float | None = Field(None, gt=0, lt=1)
    """Factor of the entropy bonus per update, down to `entropy_end` times its initial weight; replaces the schedule."""
    target_kl: float | None = Field(None, gt=0, le=10**6)
    """Estimated KL divergence from the old policy at which an update stops; null: never."""
    rnn_size: int = Field(128, ge=1, le=100_000)
    common_reward: bool = False
    """Give every agent the mean reward of the team."""

    @property
    def centralized(self) -> bool:
        """True if one critic evaluates the whole team."""
        return self.critic != "own"

    @property
    def needs_state(self) -> bool:
        """True if the critic reads the environment's state."""
        return "state" in self.critic


def build_critic(
    config: PPOConfig, team: TeamSpec, state_name: str | None, signals: int, weights: torch.Generator
) -> DecentralizedCritic | CentralizedCritic:
    """Returns the critic with an output per reward signal; `weights` draws its initial parameters."""
    network = config.critic_network_config(team, per_agent=not config.centralized)
    if not config.centralized:
        return DecentralizedCritic(team, signals, network, weights)
    inputs = central_inputs(config.critic, team, state_name)
    return CentralizedCritic(team, signals, network, weights, inputs=inputs)

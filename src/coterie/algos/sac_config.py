"""Settings of SAC and MASAC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coterie.algos.base_config import CriticConfig
from coterie.algos.off_policy import OffPolicyConfig
from coterie.config.schema import Count


class SACConfig(OffPolicyConfig, CriticConfig):
    """Settings of SAC and MASAC."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "own"
    """Input of the critics besides the agent's own observation and action: nothing (own), or the other agents' actions
    and the joint observation (joint), the environment's state (state), or both (joint_state), or observations and
    actions of all teams (global).
    """
    n_step: int = Field(1, ge=1, le=1000)
    """Rewards per target before it bootstraps. Sequences of feed-forward networks have this length; their later
    timesteps have shorter targets.
    """
    batch_size: int = Field(256, ge=1, le=1_000_000)
    """Sequences per gradient step; all timesteps of each are learned from."""
    tau: float = Field(0.005, gt=0, le=1)
    critic_lr: float | None = Field(None, gt=0, lt=1)
    """Learning rate of the critics; null: that of the actor."""
    other_actions: Literal["replay", "current"] = "replay"
    """Actions of the other agents in an actor's loss: those in the replay buffer, or those of their current policies.
    Actions of other teams are always those in the replay buffer.
    """
    temperature: float = Field(1.0, gt=0, le=10**6)
    """Initial coefficient of the entropy, in reward per nat."""
    learn_temperature: bool = True
    """Adjust the temperature so that the entropy of the policy reaches its target, separately for each role."""
    temperature_lr: float | None = Field(None, gt=0, lt=1)
    """Learning rate of the temperature; null: that of the actor."""
    target_entropy: float = Field(-1.0, ge=-(10**6), le=0.69)
    """Target entropy per continuous action in [-1, 1], in nats; that of the uniform distribution is 0.69."""
    target_entropy_scale: float = Field(0.5, ge=0, le=1)
    """Target entropy of discrete actions, as a fraction of that of the uniform distribution over available choices."""
    reward_scale: Literal["none", "std", "standardize"] = "none"
    """Divide rewards by their running standard deviation (std), or also subtract their running mean (standardize),
    which changes the optimal policy where episodes differ in length. The temperature then refers to scaled rewards.
    """
    random_steps: Count = Field(0, ge=0, le=10**15)
    """Environment steps at the start, including reset steps, with uniformly random actions."""

    @property
    def needs_state(self) -> bool:
        """True if the critics read an environment state."""
        return "state" in self.critic

"""Settings of DDPG."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coterie.algos.base_config import CriticConfig
from coterie.algos.off_policy import OffPolicyConfig
from coterie.algos.optimizer import Schedule
from coterie.config.schema import Count
from coterie.policies.deterministic import NoiseKind


class DDPGConfig(OffPolicyConfig, CriticConfig):
    """Settings of DDPG, MADDPG, TD3 and MATD3."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "own"
    """Input of the critic: the agent's own observation and action (own), or the actions of the whole team with its
    joint observation (joint), with the environment's state (state), or with both (joint_state), or observations and
    actions of all teams (global).
    """
    share_critic: bool | None = None
    """Use one network for a centralized critic, with an output per agent, or a single one if `common_reward` is set.
    False: a network per agent; null: true unless `share_params` is none.
    """
    twin_critics: bool = False
    """Use two critics; targets take the smaller of their values."""
    policy_delay: int = Field(1, ge=1, le=1000)
    """Gradient steps of the critic per gradient step of the actor and soft update of the target networks. Hard updates
    are counted in gradient steps of the critic.
    """
    target_noise: float = Field(0.0, ge=0, le=2)
    """Standard deviation of the noise on continuous target actions."""
    target_noise_clip: float = Field(0.5, gt=0, le=2)
    """Maximum absolute value of that noise."""
    n_step: int = Field(1, ge=1, le=1000)
    """Rewards per target before it bootstraps."""
    other_actions: Literal["replay", "current"] = "replay"
    """Actions of the other agents in an actor's loss: those in the replay buffer, or those of their current actors.
    Actions of other teams are always those in the replay buffer.
    """
    next_action_policy: Literal["target", "online"] = "target"
    """Networks that choose the next actions of targets: the target actors or the online actors."""
    gumbel_temperature: float = Field(1.0, gt=0, le=100)
    """Temperature of the Gumbel-softmax for the gradient of discrete actions."""
    logit_penalty: float = Field(1e-3, ge=0, le=10**6)
    """Coefficient of the mean squared logit in the actor's loss."""
    noise: NoiseKind = "gaussian"
    """Exploration noise on continuous actions: independent per timestep, or an Ornstein-Uhlenbeck process."""
    noise_std: float = Field(0.1, ge=0, le=2)
    """Initial standard deviation of Gaussian noise, or of the increments of Ornstein-Uhlenbeck noise; actions range
    from -1 to 1.
    """
    noise_schedule: Schedule = "constant"
    """Schedule of the noise, from its initial standard deviation to `noise_end` times it over the run."""
    noise_end: float = Field(0.1, gt=0, le=1)
    """Final noise as a fraction of the initial one."""
    noise_theta: float = Field(0.15, gt=0, le=1)
    """Mean reversion of Ornstein-Uhlenbeck noise per step."""
    random_steps: Count = Field(0, ge=0, le=10**15)
    """Environment steps at the start with uniformly random actions."""
    critic_lr: float | None = Field(None, gt=0, lt=1)
    """Learning rate of the critic; null: that of the actor."""

    @property
    def needs_state(self) -> bool:
        """True if the critic reads an environment state."""
        return "state" in self.critic

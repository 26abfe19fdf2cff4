"""Settings of COMA, its metrics, and the construction of its networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from coterie.algos.algorithm import central_inputs
from coterie.algos.base_config import Units
from coterie.algos.on_policy import OnPolicyConfig, require_samples
from coterie.algos.optimizer import Schedule
from coterie.config.schema import Count
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.specs import TeamSpec
from coterie.nets.config import Activation, RNNKind
from coterie.nets.counterfactual_critic import CounterfactualCritic
from coterie.policies.epsilon_soft import EpsilonSoftPolicy

declare(
    Metric("policy/pi_max", "", "mean probability of the most likely choice", better=None, combine="mean"),
    Metric("value/lr", "", "learning rate of the critic", better=None, combine="last"),
)


class COMAConfig(OnPolicyConfig):
    """Settings of COMA."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "joint"
    """Input of the critic besides the agent's own observation and the actions of the others: nothing (own), the joint
    observation of the team, the environment's state, both of these, or observations and actions of all teams (global).
    """
    critic_last_action: bool = False
    """The critic reads the previous actions of all agents of the team."""
    obs_last_action: bool = False
    """The actor reads the previous action of its agent."""
    rollout_length: int = Field(26, ge=1, le=100_000)
    sequence_length: int | None = Field(None, ge=1, le=100_000)
    """Timesteps per sequence: traces of returns and recurrent networks do not extend over its ends; null: the rollout
    length.
    """
    epochs: int = Field(1, ge=1, le=1000)
    batch_size: int | None = Field(None, ge=1, le=1_000_000)
    """Sequences per minibatch, drawn without replacement for each; null: each pass partitions the rollout's."""
    critic_time_chunks: int = Field(1, ge=1, le=100_000)
    """Chunks of time per minibatch, from the last to the first, each one gradient step of the critic. Advantages use
    the values before the step, see `updated_advantages`. Surplus timesteps go to the latest chunks; at most one chunk
    per timestep.
    """
    critic_loss_mask: Literal["team", "agent"] = "team"
    """Timesteps of an agent that the critic's loss includes: those in which anybody of the team acts (team, as PyMARL),
    or those in which the agent itself acts (agent, as XuanCe's feed-forward learner). They differ where agents die.
    """
    updated_advantages: bool = False
    """Compute advantages with the critic after its steps on the minibatch, as XuanCe with MindSpore; false: with its
    values before, as XuanCe with PyTorch.
    """
    lr_schedule: Schedule = "constant"
    """Schedule of the actor's learning rate, from `lr` to `lr_end` times `lr` over the run."""
    lr_end: float = Field(0.01, gt=0, le=1)
    """Final learning rate of the actor as a fraction of the initial one."""
    critic_lr_schedule: Schedule = "constant"
    """Schedule of the critic's learning rate, down to `critic_lr_end` times its value over the run."""
    critic_lr_end: float = Field(0.01, gt=0, le=1)
    """Final learning rate of the critic as a fraction of the initial one."""
    td_lambda: float = Field(0.8, ge=0, le=1)
    """Lambda of the critic's TD(lambda) targets."""
    tau: float = Field(0.01, gt=0, le=1)
    """Fraction of the soft update of the target critic."""
    target_update_interval: int | None = Field(200, ge=1, le=10**12)
    """Gradient steps of the critic between hard updates of its target; null: a soft update after each step."""
    epsilon_start: float = Field(0.5, ge=0, le=1)
    """Initial fraction of uniform exploration that is mixed into the policy."""
    epsilon_end: float = Field(0.01, ge=0, le=1)
    """Final fraction of uniform exploration."""
    epsilon_schedule: Schedule = "linear"
    """Schedule of the fraction from `epsilon_start` to `epsilon_end`."""
    epsilon_decay_steps: Count | None = Field(None, ge=1, le=10**15)
    """Environment steps from `epsilon_start` to `epsilon_end`; null: the whole run."""
    entropy_coef: float = Field(0.0, ge=0, le=10**6)
    normalize_advantage: bool = False
    """Normalize advantages over the valid entries of a minibatch."""
    critic_hidden_sizes: tuple[Units, ...] | None = Field((128, 128), min_length=1)
    activation: Activation = "relu"
    rnn: RNNKind = "none"
    """Recurrent layer of the actor; the critic has none."""
    common_reward: bool = True
    """Give every agent the mean reward of the team; false: its own plus that of its group."""

    @property
    def needs_state(self) -> bool:
        """True if the critic reads the environment's state."""
        return "state" in self.critic

    def check(self, sequences_per_env: int, num_envs: int) -> None:
        """Raises UserError if minibatches want more sequences than a rollout has, or epsilon cannot reach its end."""
        if self.batch_size is None:
            require_samples("num_minibatches", self.num_minibatches, sequences_per_env, num_envs)
        else:
            require_samples("batch_size", self.batch_size, sequences_per_env, num_envs)
        if self.epsilon_schedule == "exponential":
            for name, epsilon in (("epsilon_end", self.epsilon_end), ("epsilon_start", self.epsilon_start)):
                if epsilon == 0:
                    raise UserError(
                        f"algo.{name}: must be above 0 for an exponential schedule. Use algo.epsilon_schedule=linear."
                    )


def build_policy(
    config: COMAConfig, team: TeamSpec, weights: torch.Generator, device: torch.device
) -> EpsilonSoftPolicy:
    """Returns the policy with its initial epsilon; `weights` draws its initial parameters."""
    network = replace(config.network_config(team), obs_last_action=config.obs_last_action)
    policy = EpsilonSoftPolicy(team, network, weights, device, stores_last_action=config.critic_last_action)
    policy.epsilon = config.epsilon_start
    return policy


def build_critic(
    config: COMAConfig, team: TeamSpec, state_name: str | None, weights: torch.Generator, *, device: torch.device
) -> CounterfactualCritic:
    """Returns the critic; `weights` draws its initial parameters."""
    network = replace(config.critic_network_config(team), rnn="none")
    inputs = central_inputs(config.critic, team, state_name)
    critic = CounterfactualCritic(
        team, network, weights, device, inputs=inputs, reads_last_action=config.critic_last_action
    )
    return critic.to(device)

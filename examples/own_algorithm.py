"""Your own algorithm: an advantage actor-critic (A2C) whose loss is one pure function.

python examples/own_algorithm.py [STEPS]
"""

import sys

import torch
from pydantic import Field

import coterie
from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, AlgorithmContext, Capabilities, group_membership
from coterie.algos.base_config import LearnerConfig
from coterie.algos.optimizer import Optimizer, mean_metrics
from coterie.algos.ppo import DecentralizedCritic
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator
from coterie.core.types import Rollout
from coterie.functional.policy_gradient import gae
from coterie.functional.returns import agent_rewards, bootstrap_masks, valid_mask
from coterie.functional.statistics import masked_mean, standardize
from coterie.policies.stochastic import StochasticPolicy

METRICS = ("loss/actor_critic", "policy/action_entropy")
declare(
    Metric("loss/actor_critic", "", "loss of actor and critic"),
    Metric("policy/action_entropy", "nat", "entropy of an agent's action distribution"),
)


class ActorCriticConfig(LearnerConfig):
    """Settings of the actor-critic."""

    rollout_length: int = Field(16, ge=1)
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value loss."""


def actor_critic_loss(log_prob, entropy, value, advantage, target, valid, *, entropy_coef, value_coef, reduction):
    """Computes L = -mean A log pi(a | o) - c_H mean H + c_V mean (V - G)^2 over valid entries [T, B, N]."""
    policy_loss = -masked_mean(advantage * log_prob, valid, reduction)
    value_loss = masked_mean((value - target).square(), valid, reduction)
    return policy_loss - entropy_coef * masked_mean(entropy, valid, reduction) + value_coef * value_loss


class ActorCritic(Algorithm):
    """Advantage actor-critic with a critic on each agent's own observation."""

    Config = ActorCriticConfig
    capabilities = Capabilities(actions=ALL_ACTIONS, images=True, rnn=False)

    def __init__(self, config: ActorCriticConfig, context: AlgorithmContext) -> None:
        team, device = context.team, context.device
        self.config, self.team, self.ranks = config, team, context.ranks
        self.rollout_length = context.rollout_length or config.rollout_length
        weights = generator(context.seed, "weights")
        self.policy: StochasticPolicy = StochasticPolicy(team, config.network_config(team), weights, device)
        self.critic = DecentralizedCritic(team, 1, config.network_config(team), weights).to(device)
        modules = {"policy": self.policy.actor, "value": self.critic}
        self.optimizer = Optimizer(modules, *config.adam_settings, ranks=context.ranks)
        self.membership = group_membership(team).to(device)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config, team = self.config, self.team
        valid = valid_mask(rollout)  # False for dead agents and final timesteps
        reduction = self.ranks.reduction  # None in a run of one process
        # Targets
        values = self.critic(rollout.obs, None, None, {})[0].squeeze(-1)  # [T + 1, B, N]
        value, next_value = values[:-1], values[1:].detach()
        terminated, boundary = bootstrap_masks(rollout, False, team.agents_can_die)
        advantage = gae(
            reward=agent_rewards(rollout, self.membership, team.has_group_reward, False),
            value=value.detach(),
            next_value=next_value,
            terminated=terminated,  # termination stops bootstrapping, truncation does not
            boundary=boundary,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        target = advantage + value.detach()
        # Loss
        obs = {role: x[:-1] for role, x in rollout.obs.items()}
        masks = {role: x[:-1] for role, x in rollout.action_mask.items()}
        log_prob, entropy = self.policy.actor.evaluate(obs, masks, rollout.action, first=None, hidden_state={})
        loss = actor_critic_loss(
            log_prob,
            entropy,
            value,
            standardize(advantage, valid, reduction),
            target,
            valid,
            entropy_coef=config.entropy_coef,
            value_coef=config.value_coef,
            reduction=reduction,
        )
        # Optimizer step
        self.optimizer.step(loss, {"policy": config.lr, "value": config.lr})
        # Metrics
        report = torch.stack([loss.detach(), masked_mean(entropy.detach(), valid, reduction)])
        return mean_metrics(report.unsqueeze(0), METRICS, team.name, ranks=self.ranks)

    def state_dict(self):
        parts = {"policy": self.policy, "critic": self.critic, "optimizer": self.optimizer}
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state):
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "200k"
    run = coterie.train(algo="own_algorithm:ActorCritic", env="probe/both", steps=steps, out="runs/own_algorithm")
    print(coterie.evaluate(run, episodes=100)["teams"])

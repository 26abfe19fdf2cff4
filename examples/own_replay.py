"""Your own algorithm with a replay buffer: independent Q-learning with a target network.

python examples/own_replay.py [STEPS]
"""

import sys

import torch
from pydantic import Field

import coterie
from coterie.algos.algorithm import Algorithm, AlgorithmContext, Capabilities, group_membership
from coterie.algos.off_policy import OffPolicyConfig, make_replay_buffer
from coterie.algos.optimizer import Optimizer, TargetNetwork, mean_metrics
from coterie.algos.replay.checkpoint import ReplayCheckpoint
from coterie.core.seeds import generator
from coterie.core.types import Rollout
from coterie.functional.choices import mask_logits
from coterie.functional.returns import agent_rewards, bootstrap_masks, valid_mask
from coterie.functional.statistics import masked_mean
from coterie.nets.team import join_blocks
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy


class QLearnerConfig(OffPolicyConfig):
    """Settings of the Q-learner."""

    rollout_length: int = Field(8, ge=1)
    batch_size: int = Field(32, ge=1)
    learning_starts: int = Field(200, ge=0)
    epsilon: float = Field(0.1, ge=0, le=1)
    """Probability of a random action during training."""


def q_loss(q, next_q, reward, terminated, valid, *, gamma, reduction):
    """Computes L = mean (Q(o, a) - r - gamma (1 - terminated) max_a' Q'(o', a'))^2 over valid entries [1, S, N]."""
    target = reward + gamma * torch.where(terminated, 0.0, next_q)
    return masked_mean((q - target.detach()).square(), valid, reduction)


class QLearner(Algorithm):
    """Independent Q-learning: each agent learns the value of its own actions."""

    Config = QLearnerConfig
    capabilities = Capabilities(actions=frozenset({"discrete"}), images=True, rnn=False, eval_mode="greedy")

    def __init__(self, config: QLearnerConfig, context: AlgorithmContext) -> None:
        team, device = context.team, context.device
        self.config, self.team, self.steps = context.with_derived(config), team, 0
        self.ranks = context.ranks
        self.rollout_length = context.rollout_length or config.rollout_length
        weights = generator(context.seed, "weights")
        self.policy: EpsilonGreedyPolicy = EpsilonGreedyPolicy(team, config.network_config(team), weights, device)
        self.policy.epsilon = config.epsilon
        modules: dict[str, torch.nn.Module] = {"value": self.policy.net}
        self.optimizer = Optimizer(modules, *config.adam_settings, ranks=context.ranks)
        self.target = TargetNetwork(self.policy.net, config.tau, config.target_update_interval)
        self.buffer = make_replay_buffer(config, context, n_step=1, states=(), hidden_state={})
        self.replay = ReplayCheckpoint(self.buffer)
        self.membership = group_membership(team).to(device)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        self.steps += self.buffer.add(rollout)
        if self.steps < config.learning_starts or self.buffer.num_sequences < config.batch_size:
            return {}
        losses = []
        for _ in range(config.gradient_steps):
            batch = self.buffer.sample(config.batch_size).rollout  # timesteps [2, S, ..], steps [1, S, ..]
            loss = self.loss(batch)
            self.optimizer.step(loss, {"value": config.lr})
            self.target.update()
            losses.append(loss.detach())
        return mean_metrics(torch.stack(losses).unsqueeze(-1), ("loss/td",), self.team.name, ranks=self.ranks)

    def loss(self, batch: Rollout) -> torch.Tensor:
        team, blocks = self.team, self.policy.blocks
        q, _ = self.policy.net({role: x[:-1] for role, x in batch.obs.items()}, None, {})
        with torch.no_grad():
            next_q, _ = self.target.module({role: x[1:] for role, x in batch.obs.items()}, None, {})
        next_mask = {role: x[1:] for role, x in batch.action_mask.items()}
        taken, best = {}, {}
        for block in blocks:  # the roles that one network reads
            action = block.join_actions(batch.action).discrete
            taken[block.name] = q[block.name].gather(-1, action).squeeze(-1)
            best[block.name] = mask_logits(next_q[block.name], block.join_masks(next_mask)).amax(-1)
        terminated, _ = bootstrap_masks(batch, False, team.agents_can_die)
        return q_loss(
            join_blocks(taken, blocks, -1),
            join_blocks(best, blocks, -1),
            agent_rewards(batch, self.membership, team.has_group_reward, False),
            terminated,
            valid_mask(batch),
            gamma=self.config.gamma,
            reduction=self.ranks.reduction,
        )

    def state_dict(self):
        parts = {"policy": self.policy, "target": self.target, "optimizer": self.optimizer, "replay": self.replay}
        return {name: part.state_dict() for name, part in parts.items()} | {"steps": self.steps}

    def load_state_dict(self, state):
        self.policy.load_state_dict(state["policy"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.replay.load_state_dict(state["replay"])
        self.steps = state["steps"]


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "50k"
    run = coterie.train(algo="own_replay:QLearner", env="probe/action", steps=steps, out="runs/own_replay")
    print(coterie.evaluate(run, episodes=100)["teams"])

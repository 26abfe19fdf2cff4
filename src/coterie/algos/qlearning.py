"""Q-learning: DDQN, IQL, VDN, QMIX, QPLEX and weighted QMIX.

Each agent has a Q-value per choice, and a mixer combines the Q-values of the chosen actions into the team's Q. Without
a mixer, agents learn independently (DDQN for a single agent, IQL for several). The setting `mixer` selects the method.

Sources: van Hasselt et al. 2016 (double Q), Tampuu et al. 2017 (IQL), Sunehag et al. 2018 (VDN), Rashid et al. 2018
(QMIX) and 2020 (weighted QMIX), Wang et al. 2021 (QPLEX), Kapturowski et al. 2019 (stored state and burn-in).
Differences: targets bootstrap at time limits; sequences continue into the next episode, where the hidden state is
reset, instead of being padded; Adam replaces RMSprop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.algos.algorithm import AlgorithmContext, Capabilities
from coterie.algos.behavior_cloning import CloningOptimizer
from coterie.algos.graphed_steps import StepResult
from coterie.algos.off_policy import OffPolicyLearner
from coterie.algos.optimizer import Optimizer, TargetNetwork, mean_metrics, scheduled
from coterie.algos.qlearning_config import QLearningConfig, mixer_state, require_consistent
from coterie.algos.qlearning_networks import build_central, build_policy, build_value
from coterie.algos.recurrent_q import Inputs, RecurrentReader
from coterie.algos.replay.buffer import ReplaySample, timesteps_of
from coterie.algos.replay.prioritized import sequence_error
from coterie.algos.weighted_qmix import CentralQ, weighted_td_loss
from coterie.core.seeds import generator
from coterie.core.tree import tree_map
from coterie.core.types import Rollout, Timestep
from coterie.math.returns import (
    agent_rewards,
    bootstrap_masks,
    lambda_return,
    n_step_return,
    present_successors,
    valid_mask,
)
from coterie.math.running_moments import Moments, initial_moments, mean_and_std
from coterie.math.statistics import masked_mean, masked_sum, valid_count
from coterie.nets.mixers import Choices, TeamQNetwork, greedy_actions, taken_actions
from coterie.nets.normalization import ObservationNormalizer
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy

METRICS = ("loss/td", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")
"""Metrics of a gradient step."""


Q = dict[str, Tensor]
"""Q-values of all choices by block [T, S, n, A]."""


def td_loss(q: Tensor, target: Tensor, valid: Tensor, weight: Tensor, huber_delta: float | None) -> Tensor:
    """Temporal-difference loss of Q-learning.

        L = sum valid w l(Q - y) / sum valid,    l(e) = e^2 / 2, linear beyond |e| = huber_delta

    With a mixer, Q and y are those of the team. Source: Mnih et al. 2015; Rashid et al. 2018, eq. 6, for QMIX.

    Args:
        q: Q of the actions taken [T, S] or [T, S, N].
        target: y, the same shape, without gradient.
        valid: bool, the same shape, the entries that are learned from.
        weight: w, importance weights of the sequences [S].
        huber_delta: Error beyond which the loss is linear; None for the squared error.

    Returns:
        The loss [].
    """
    if huber_delta is None:
        error = 0.5 * (q - target).square()
    else:
        error = functional.huber_loss(q, target, reduction="none", delta=huber_delta)
    return masked_mean(error * weight.view(1, -1, *[1] * (error.ndim - 2)), valid)


@dataclass(frozen=True)
class QBatch:
    """Q-values and targets of a minibatch: [T, S, N], or [T, S] for a team with a mixer.

    Attributes:
        q: Q of the actions taken.
        target: Its target, without gradient.
        valid: bool, entries that are learned from.
        central_q: Q* of the actions taken [T, S] in weighted QMIX; None otherwise.
        weight: Weights of the joint actions [T, S] in weighted QMIX; None otherwise.
    """

    q: Tensor
    target: Tensor
    valid: Tensor
    central_q: Tensor | None = None
    weight: Tensor | None = None


class FeedForwardReader:
    """Evaluates feed-forward Q-networks on sequences, of which only the first timestep is learned from.

    The other timesteps serve its n-step target. `RecurrentReader` is the counterpart for recurrent networks.
    """

    def __init__(self, obs_normalizer: ObservationNormalizer | None):
        self._obs_normalizer = obs_normalizer

    def start(self, rollout: Rollout) -> tuple[Rollout, dict[str, Inputs], dict[str, Inputs]]:
        """Returns the rollout and the inputs of online and target networks, by name."""
        obs = rollout.obs if self._obs_normalizer is None else self._obs_normalizer(rollout.obs)
        inputs: dict[str, Inputs] = dict.fromkeys(("value", "central"), (obs, None, {}, None))
        return rollout, inputs, inputs

    def online(self, value: TeamQNetwork, inputs: Inputs) -> tuple[Q, Q]:
        """Returns Q of the timesteps to learn from, and of all successors without gradient."""
        obs, *_ = inputs
        q, _ = value(tree_map(lambda x: x[:1], obs), None, {}, None)
        with torch.no_grad():
            next_q, _ = value(tree_map(lambda x: x[1:], obs), None, {}, None)
        return q, next_q

    def unroll(self, value: TeamQNetwork, inputs: Inputs) -> Q:
        """Returns Q of all T + 1 timesteps."""
        return value(*inputs)[0]


class QLearning(OffPolicyLearner):
    """Q-learning with one of several mixers, see the module."""

    Config: ClassVar = QLearningConfig
    capabilities: ClassVar = Capabilities(
        actions=frozenset({"discrete", "multi_discrete"}), images=True, cuda_graphs=True, eval_mode="greedy"
    )

    def __init__(self, config: QLearningConfig, context: AlgorithmContext) -> None:
        super().__init__(config, context)
        self.config, team, device = config, context.team, context.device
        require_consistent(team, config)
        draw = generator(context.seed, "weights")
        self.policy: EpsilonGreedyPolicy = build_policy(config, team, draw, device)
        self.policy.epsilon = config.epsilon_start
        self._mixes = config.mixer != "none"
        self._state_name = mixer_state(team, config)
        self.value = build_value(config, team, self.policy, self._state_name, draw=draw)
        parts = {"value": self.value}
        if config.weighting != "none":
            parts["central"] = build_central(config, team, self._state_name, draw, device=device)
        self.module = nn.ModuleDict(parts).to(device)
        self._optimizer = Optimizer({"value": self.module}, *config.adam_settings)
        self.target = TargetNetwork(self.module, config.tau, config.target_update_interval)
        targets: dict[str, TeamQNetwork] = dict(self.target.module.items())  # pyright: ignore[reportCallIssue]
        self.target_value = targets["value"]
        self.reader = (
            RecurrentReader(self.policy, config.burn_in, parts, targets)
            if config.recurrent
            else FeedForwardReader(self.policy.obs_normalizer)
        )
        self._central = None
        if "central" in parts:
            rule, alpha = config.weighting, config.weighting_alpha
            self._central = CentralQ(
                parts["central"], targets["central"], self.reader, evaluate=self.evaluate, greedy=self._greedy,
                rule=rule, alpha=alpha,
            )  # fmt: skip
        self._create_buffer(config, context, config.n_step, self._state_name)
        self.reward_moments: Moments = initial_moments(1, device)
        self._create_step(self._step, (self._optimizer,), (self.module,), (self.target,))

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        self._add(rollout)
        metrics = {"policy/epsilon": self.policy.epsilon, **self._replay_metrics()}
        if self._steps < config.learning_starts or self.buffer.num_sequences < config.batch_size:
            return metrics
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        self.buffer.priority_beta = scheduled("linear", config.priority_beta, 1.0, progress)
        reports = []
        for _ in range(self._gradient_steps):
            reports += self._learn({"value": lr})
            self.target.count_step()
        metrics |= mean_metrics(torch.stack(reports), METRICS, self.team.name)
        return metrics | {"policy/lr": lr, "replay/updates": float(self._updates)}

    def _add(self, rollout: Rollout) -> None:
        """Adds a rollout to the replay buffer; updates epsilon and statistics."""
        config = self.config
        self._steps += self.buffer.add(rollout)
        decayed = min(1.0, self._steps / config.epsilon_decay_steps)
        self.policy.epsilon = scheduled(config.epsilon_schedule, config.epsilon_start, config.epsilon_end, decayed)
        if self.policy.obs_normalizer is not None:
            self.policy.obs_normalizer.update(tree_map(lambda x: x[:-1], rollout.obs), valid_mask(rollout))
        if config.reward_scale != "none":  # once per reward, when it is added, and not whenever it is sampled
            self._add_rewards(*self._rewards(rollout))

    def _step(self, sample: ReplaySample, lr: Mapping[str, float | Tensor]) -> StepResult:
        """Takes a gradient step; `lr` is the learning rate by module."""
        batch = self.evaluate_batch(sample.rollout)
        loss = self._loss(batch, sample.weight)
        grad_norm = self._optimizer.step(loss, lr)
        self.target.soft_update()
        return self._report(batch, loss, grad_norm)

    def evaluate_batch(self, rollout: Rollout) -> QBatch:
        """Returns the Q-values of the actions taken and their targets, from sequences [T + 1, S, ..]."""
        rollout, inputs, target_inputs = self.reader.start(rollout)
        q, next_q = self.reader.online(self.value, inputs["value"])
        timesteps, (reward, valid) = timesteps_of(rollout), self._rewards(rollout)
        with torch.no_grad():
            target = self._targets(rollout, timesteps, reward, next_q=next_q, inputs=target_inputs)
        target = target[: len(next(iter(q.values())))]
        timesteps = tree_map(lambda x: x[: len(target)], timesteps)
        actions = taken_actions(self.policy.net, tree_map(lambda x: x[: len(target)], rollout.action))
        q_taken = self.evaluate(self.value, q, actions, timesteps)
        valid = valid[: len(target)]
        if self._central is None:
            return QBatch(q_taken, target, valid)
        central_q, weight = self._central.evaluate_batch(
            inputs["central"], q=q, q_taken=q_taken, target=target, actions=actions, timesteps=timesteps
        )
        return QBatch(q_taken, target, valid, central_q, weight=weight)

    def _targets(
        self, rollout: Rollout, timesteps: Timestep, reward: Tensor, *, next_q: Q, inputs: dict[str, Inputs]
    ) -> Tensor:
        """Returns the targets of all steps [T, S, N] or [T, S]."""
        config = self.config
        next_timesteps = replace(tree_map(lambda x: x[1:], timesteps), alive=present_successors(rollout))
        next_target_q = self.reader.unroll(self.target_value, inputs["value"])
        next_target_q = {name: x[1:] for name, x in next_target_q.items()}
        actions = self._greedy(next_q if config.double_q else next_target_q, next_timesteps)
        if self._central is None:
            next_value = self.evaluate(self.target_value, next_target_q, actions, next_timesteps)
        else:
            next_value = self._central.next_value(inputs["central"], actions, next_timesteps)
        if config.reward_scale != "none":
            mean, std = mean_and_std(self.reward_moments)
            reward = (reward - mean if config.reward_scale == "standardize" else reward) / std
        terminated, boundary = bootstrap_masks(rollout, self._mixes, self.team.agents_can_die)
        if self._mixes:
            terminated, boundary = terminated[..., 0], boundary[..., 0]
        if config.td_lambda is not None:
            return lambda_return(
                reward,
                next_value,
                terminated=terminated,
                boundary=boundary,
                gamma=config.gamma,
                td_lambda=config.td_lambda,
            )
        return n_step_return(
            reward, next_value, terminated=terminated, boundary=boundary, gamma=config.gamma, n=config.n_step
        )

    def evaluate(self, value: TeamQNetwork, q: Q, actions: Choices, timesteps: Timestep) -> Tensor:
        """Returns Q of `actions` for each agent [.., N], or with a mixer for the team [..]."""
        state, obs = None, {}
        if self._state_name is not None:
            state = timesteps.state[self._state_name]
        elif self._mixes:
            obs = self.policy.normalize(timesteps.obs)
        masks, alive = self._masks(timesteps), timesteps.alive
        return value.evaluate(q, actions, masks=masks, alive=alive, obs=obs, state=state)

    def _greedy(self, q: Q, timesteps: Timestep) -> Choices:
        return greedy_actions(self.policy.net, q, self._masks(timesteps))

    def _masks(self, timesteps: Timestep) -> dict[str, Tensor | None]:
        return {block.name: block.join_masks(timesteps.action_mask) for block in self.policy.blocks}

    def _rewards(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Returns rewards and valid entries: of agents [T, S, N], or with a mixer of the team [T, S]."""
        valid = valid_mask(rollout)
        if not self._mixes:
            has_group_reward = self.team.has_group_reward
            return agent_rewards(rollout, self._membership, has_group_reward, self._common_reward), valid
        reward = rollout.reward.sum(-1)
        if self.team.has_group_reward:
            reward = reward + rollout.group_reward.sum(-1)
        return reward, valid.any(-1)

    def _loss(self, batch: QBatch, weight: Tensor) -> Tensor:
        delta = self.config.huber_delta
        if batch.central_q is None or batch.weight is None:
            return td_loss(batch.q, batch.target, batch.valid, weight, huber_delta=delta)
        return weighted_td_loss(
            batch.q, batch.central_q, batch.target, valid=batch.valid, weight=batch.weight, importance=weight,
            huber_delta=delta,
        )  # fmt: skip

    @torch.no_grad()
    def _report(self, batch: QBatch, loss: Tensor, grad_norm: Tensor) -> StepResult:
        """Returns the values of `METRICS` [5], and the errors of the sequences if they have priorities."""
        error = (batch.q - batch.target).abs()
        sums = [masked_sum(x, batch.valid)[0] for x in (error, batch.q, batch.target)]
        count = valid_count(batch.valid)
        report = torch.stack([loss, *(x / count for x in sums), grad_norm[0]]).detach()
        return StepResult((report,), sequence_error(error, batch.valid) if self.config.priority_alpha else None)

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self._optimizer.for_module("value"), (self.target,))

    def _parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "module": self.module,
            "target": self.target,
            "optimizer": self._optimizer,
        }

"""The MAPPO of a 2020 trainer, whose settings are the presets `mappo/original` and `mappo/original_best`.

Differs from PPO in the order of an update: for each minibatch of sequences it first computes targets, then trains the
critic backward in time, and then takes one step of the actor on the advantages of the values before these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, AlgorithmContext, Capabilities, ValueEstimator
from coterie.algos.behavior_cloning import CloningLearner, CloningOptimizer
from coterie.algos.clipped_learner import ValueState, until_kl
from coterie.algos.graphed_steps import GraphedStep
from coterie.algos.minibatches import backward_in_time, minibatch_indices, select_envs
from coterie.algos.on_policy import require_samples, sequence_length
from coterie.algos.optimizer import mean_metrics, scheduled
from coterie.algos.other_teams import GlobalCriticLearner, OtherTeamsReader
from coterie.algos.ppo import PPO, Batch, entropy_weight
from coterie.algos.ppo_config import PPOConfig
from coterie.algos.reward_streams import combined
from coterie.algos.sequences import as_sequences
from coterie.core import cuda_graphs
from coterie.core.errors import UserError
from coterie.core.seeds import generator, restore
from coterie.core.tree import tree_map
from coterie.core.types import HiddenState, Rollout, Timestep
from coterie.math.policy_gradient import EMAMoments, clipped_policy_loss, value_error
from coterie.math.returns import valid_mask
from coterie.math.statistics import masked_mean, standardize
from coterie.policies.stochastic import StochasticPolicy

_REPORTED = ("loss/policy", "policy/entropy", "policy/kl", "policy/clip_fraction", "loss/value")
_REPORTED += ("policy/grad_norm", "value/grad_norm")


class MAPPOOriginalConfig(PPOConfig):
    """Settings of `mappo/original`."""

    batch_size: int | None = Field(None, ge=1, le=1_000_000)
    """Sequences per minibatch, drawn without replacement for each; null: each pass partitions the rollout's."""
    critic_time_chunks: int = Field(1, ge=1, le=100_000)
    """Chunks of time per minibatch, from the last to the first, each one gradient step of the critic. Surplus timesteps
    go to the latest chunks.
    """
    sequence_length: int | None = Field(None, ge=1, le=100_000)
    """Timesteps per sequence; null: the rollout length."""


class MinibatchResult(NamedTuple):
    """Results of the steps on a minibatch.

    Attributes:
        report: Metrics of the networks [7].
        metrics: Metrics of the targets and advantages [] by name.
        value_moments: Moments of the returns after the minibatch.
    """

    report: Tensor
    metrics: dict[str, Tensor]
    value_moments: EMAMoments


class MAPPOOriginal(Algorithm, ValueEstimator, CloningLearner, GlobalCriticLearner):
    """PPO with separate optimizers and a critic that is trained first, see the module's description."""

    Config: ClassVar = MAPPOOriginalConfig
    capabilities: ClassVar = Capabilities(
        actions=ALL_ACTIONS, images=True, rnn=False, reward_streams=True, cuda_graphs=True
    )

    def __init__(self, config: MAPPOOriginalConfig, context: AlgorithmContext) -> None:
        if config.recurrent:
            raise UserError(
                f"algo.rnn: {config.rnn} is not supported with critic steps on chunks of time "
                f"(algo.critic_time_chunks={config.critic_time_chunks}). Use algo.rnn=none, or algo=mappo."
            )
        self.config, self.team = config, context.team
        self.rollout_length = context.rollout_length or config.rollout_length
        self._length = sequence_length(config.sequence_length, self.rollout_length)
        setting = "num_minibatches" if config.batch_size is None else "batch_size"
        wanted = config.num_minibatches if config.batch_size is None else config.batch_size
        require_samples(setting, wanted, self.rollout_length // self._length, context.total_envs)
        self.ppo = PPO(config, context)
        weight_decay = config.weight_decay
        self._actor_optimizer = self.ppo.optimizer.for_module("policy", weight_decay=weight_decay)
        self._critic_optimizer = self.ppo.optimizer.for_module("value", weight_decay=weight_decay)
        self._shuffle = generator(context.seed, "minibatches", device=context.device)
        self.others: OtherTeamsReader = self.ppo.others
        self._updates = 0
        self._step_function: Callable[..., MinibatchResult] = self._step
        if cuda_graphs.enabled:
            self._step_function = GraphedStep(
                self._step,
                optimizers=(self._actor_optimizer, self._critic_optimizer),
                modules=(*self.policy.networks, self.ppo.critic, *self.others.networks),
                what=f"the update of team {self.team.name}",
            )

    @property
    def policy(self) -> StochasticPolicy:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The policy."""
        return self.ppo.policy

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        entropy_coef = entropy_weight(config, self._updates, progress)
        coefficients = {
            "policy": lr,
            "value": lr * (config.critic_lr or config.lr) / config.lr,
            "entropy": entropy_coef,
        }
        streams = self.ppo.reward_streams
        stream_weights = None if streams is None else streams.weights(progress)
        sequences = as_sequences(rollout, self._length, {})
        extras: list[dict[str, Tensor]] = []

        def epochs() -> Iterator[list[Tensor]]:
            for _ in range(config.epochs):
                reports = []
                # Minibatches
                for indices in minibatch_indices(
                    sequences.num_envs,
                    config.num_minibatches,
                    config.batch_size,
                    self._shuffle,
                    num_envs=rollout.num_envs,
                ):
                    minibatch = sequences if indices is None else select_envs(sequences, indices)
                    # Targets, steps of the critic, step of the actor
                    result = self._step_function((minibatch, self.ppo.value_moments, stream_weights), coefficients)
                    self.ppo.value_moments = result.value_moments
                    reports.append(result.report)
                    extras.append(result.metrics)
                yield reports

        passes = list(until_kl(epochs(), config.target_kl, _REPORTED.index("policy/kl")))
        # Metrics
        if self.policy.obs_normalizer is not None:
            self.policy.obs_normalizer.update(tree_map(lambda x: x[:-1], rollout.obs), valid_mask(rollout))
        self.others.update(rollout.others, rollout.acted)
        self._updates += 1
        more = {name: torch.stack([extra[name] for extra in extras]).mean() for name in extras[0]}
        metrics = mean_metrics(
            torch.stack([report for reports in passes for report in reports]), _REPORTED, self.team.name, more
        )
        return metrics | {"policy/lr": lr, "policy/entropy_coef": entropy_coef, "policy/epochs": len(passes)}

    def _step(
        self, sample: tuple[Rollout, EMAMoments, Tensor | None], coefficients: Mapping[str, float | Tensor]
    ) -> MinibatchResult:
        """Computes the targets of a minibatch, takes the steps of the critic, and one of the actor.

        Args:
            sample: Sequences, the moments of the returns before them, and the weights of the reward signals [K], None
                if there is only the environment's reward.
            coefficients: Learning rates `policy` and `value`, and the weight of the `entropy`.
        """
        minibatch, moments, stream_weights = sample
        # Targets
        with torch.no_grad():
            targets = self.ppo.targets(minibatch, ValueState(moments, {}), stream_weights, as_sequences=True)
        after = targets.value_state.moments
        # Critic: loss and optimizer steps. Advantages use the values before the steps.
        value, critic_report = self._train_critic(targets.batch, coefficients)
        advantage, mean_advantage = self._advantages(targets.batch, value, after, stream_weights)
        # Actor: loss and optimizer step
        actor_report = self._train_actor(replace(targets.batch, advantage=advantage), coefficients)
        report = torch.cat([actor_report[:4], critic_report[:1], actor_report[4:], critic_report[1:]])
        return MinibatchResult(report, targets.metrics | {"policy/advantage": mean_advantage}, after)

    def _train_critic(self, batch: Batch, coefficients: Mapping[str, float | Tensor]) -> tuple[Tensor, Tensor]:
        """Trains the critic backward in time.

        Returns:
            Normalized values before each step [L, S, N, K], and the mean loss and gradient norm [2].
        """
        config, critic = self.config, self.ppo.critic

        def step(time: slice) -> tuple[Tensor, Tensor]:
            chunk = tree_map(lambda x: x[time], batch)
            value, _ = critic(chunk.obs, chunk.state, None, {})
            error = value_error(value, chunk.target, config.huber_delta)
            loss = masked_mean(error.mean(-1), chunk.critic_valid)
            grad_norm = self._critic_optimizer.step(config.value_coef * loss, coefficients)
            return value.detach(), torch.stack([loss.detach(), grad_norm[0]])

        return backward_in_time(len(batch.target), config.critic_time_chunks, step)

    def _advantages(
        self, batch: Batch, value: Tensor, moments: EMAMoments, stream_weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns advantages [L, S, N], targets minus values [L, S, N, K], and their mean before normalization [].

        Args:
            batch: Targets on the scale of `moments`.
            value: Values on the same scale.
            moments: Moments of the returns.
            stream_weights: Weights of the reward signals [K]; None if there is only the environment's reward.
        """
        _, std = self.ppo.value_scale(moments)
        advantage = combined((batch.target - value) * std, stream_weights)
        assert batch.valid is not None
        advantage = torch.where(batch.valid, advantage, 0.0)
        mean = masked_mean(advantage, batch.valid)
        return standardize(advantage, batch.valid) if self.config.normalize_advantage else advantage, mean

    def _train_actor(self, batch: Batch, coefficients: Mapping[str, float | Tensor]) -> Tensor:
        """Takes one step of the actor and returns its report [5]."""
        log_prob, entropies = self.policy.actor.evaluate(
            batch.obs, batch.action_mask, batch.action, first=None, hidden_state={}
        )
        policy_loss, kl, clip_fraction = clipped_policy_loss(
            log_prob, batch.log_prob, batch.advantage, batch.valid, clip_eps=self.config.clip_eps
        )
        entropy = masked_mean(entropies, batch.valid)
        grad_norm = self._actor_optimizer.step(policy_loss - coefficients["entropy"] * entropy, coefficients)
        return torch.stack([policy_loss.detach(), entropy.detach(), kl, clip_fraction, grad_norm[0]])

    def start_value_estimation(self, num_envs: int) -> HiddenState:
        return self.ppo.start_value_estimation(num_envs)

    def estimate_value(self, timestep: Timestep, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        return self.ppo.estimate_value(timestep, hidden_state)

    def load_critic(self, state: dict[str, Any]) -> None:
        self.ppo.load_critic(state)

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self.ppo.optimizer.for_module("policy"))

    def state_dict(self) -> dict[str, Any]:
        return self.ppo.state_dict() | {
            "optimizer": self._actor_optimizer.state_dict() | self._critic_optimizer.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ppo.load_state_dict(state | {"optimizer": {name: {} for name in state["optimizer"]}})
        self._actor_optimizer.load_state_dict(state["optimizer"])
        self._critic_optimizer.load_state_dict(state["optimizer"])
        restore(self._shuffle, state["shuffle"])
        self._updates = state["updates"]

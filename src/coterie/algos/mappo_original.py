"""The MAPPO of a 2020 trainer, whose settings are the presets `mappo/original` and `mappo/original_best`.

Differs from PPO in the order of an update: for each minibatch of sequences it first computes targets, then trains the
critic backward in time, and then takes one step of the actor on the advantages of the values before these steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext, Capabilities
from coterie.algos.clipped_learner import ValueState
from coterie.algos.on_policy import require_samples
from coterie.algos.ppo import PPO, Batch, PPOConfig
from coterie.algos.sequences import as_sequences, backward_in_time, sequence_length, sequence_minibatches
from coterie.core.errors import UserError
from coterie.core.tree import tree_map
from coterie.core.types import Rollout
from coterie.functional.policy_gradient import EMAMoments, clipped_policy_loss, combined, value_error
from coterie.functional.returns import terminate_at_limit
from coterie.functional.statistics import masked_mean, standardize


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

    @property
    def learns_from_sequences(self) -> bool:
        return True


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


class MAPPOOriginal(PPO):
    """PPO with separate optimizers and a critic that is trained first, see the module's description."""

    Config: ClassVar = MAPPOOriginalConfig
    base: ClassVar = "mappo/original"
    capabilities: ClassVar = Capabilities(
        actions=ALL_ACTIONS, images=True, rnn=False, reward_streams=True, cuda_graphs=True
    )

    def __init__(self, config: MAPPOOriginalConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        if config.recurrent:
            raise UserError(
                f"algo.rnn: {config.rnn} is not supported with critic steps on chunks of time "
                f"(algo.critic_time_chunks={config.critic_time_chunks}). Use algo.rnn=none, or algo=mappo."
            )
        for name in ("advantages", "loss_terms"):
            if getattr(type(self), name) is not getattr(PPO, name):
                raise UserError(
                    f"{type(self).__name__}.{name}: has no effect in a class derived from MAPPOOriginal, whose steps "
                    "compute advantages and losses of their own. Derive it from coterie.algos.ppo.PPO."
                )
        super().__init__(config, context)
        self.config: MAPPOOriginalConfig = config
        self._sequence_length = sequence_length(config.sequence_length, self.rollout_length)
        setting = "num_minibatches" if config.batch_size is None else "batch_size"
        wanted = self._num_minibatches if config.batch_size is None else config.batch_size
        require_samples(setting, wanted, self.rollout_length // self._sequence_length, context.total_envs)
        options: dict[str, Any] = {"weight_decay": config.weight_decay, "ranks": self.ranks}
        self._actor_optimizer = self.optimizer.for_module("policy", **options)
        self._critic_optimizer = self.optimizer.for_module("value", **options)
        self._step_function = self._captured(
            self._steps_on,
            optimizers=(self._actor_optimizer, self._critic_optimizer),
            modules=(*self.policy.networks, self.critic, *self.others.networks, *self._state.networks),
        )

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        coefficients = self._coefficients(progress)
        stream_weights = None if self.reward_streams is None else self.reward_streams.weights(progress)
        sequences = as_sequences(rollout, self._sequence_length, {})
        extras: list[dict[str, Tensor]] = []

        def step(minibatch: Rollout) -> Tensor:
            """Targets, steps of the critic, step of the actor."""
            result = self._step_function((minibatch, self.value_moments, stream_weights), coefficients)
            self.value_moments = result.value_moments
            extras.append(result.metrics)
            return result.report

        # Minibatches
        reports, epochs = self._train(
            lambda: sequence_minibatches(
                sequences,
                self._num_minibatches,
                config.batch_size,
                self._shuffle,
                num_envs=rollout.num_envs,
                ranks=self.ranks,
            ),
            step,
            config.target_kl,
        )
        # Metrics
        self._observe(rollout)
        self._updates += 1
        more = {name: torch.stack([extra[name] for extra in extras]).mean() for name in extras[0]}
        metrics = self._mean_metrics(reports, self.reported, more)
        lr, entropy_coef = coefficients["policy"], coefficients["entropy"]
        return metrics | {"policy/lr": lr, "policy/entropy_coef": entropy_coef, "policy/epochs": epochs}

    def _steps_on(
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
            targets = self.targets(minibatch, ValueState(moments, {}), stream_weights, as_sequences=True)
        after = targets.value_state.moments
        # Critic: loss and optimizer steps. Advantages use the values before the steps.
        value, critic_report = self._train_critic(targets.batch, coefficients)
        advantage, mean_advantage = self._actor_advantages(targets.batch, value, after, stream_weights)
        # Actor: loss and optimizer step
        actor_report = self._train_actor(replace(targets.batch, advantage=advantage), coefficients)
        report = torch.cat([actor_report[:4], critic_report[:1], actor_report[4:], critic_report[1:]])
        return MinibatchResult(report, targets.metrics | {"policy/advantage": mean_advantage}, after)

    def _train_critic(self, batch: Batch, coefficients: Mapping[str, float | Tensor]) -> tuple[Tensor, Tensor]:
        """Trains the critic backward in time.

        Returns:
            Normalized values before each step [L, S, N, K], and the mean loss and gradient norm [2].
        """
        config, critic = self.config, self.critic

        def step(time: slice) -> tuple[Tensor, Tensor]:
            chunk = tree_map(lambda x: x[time], batch)
            value, _ = critic(chunk.obs, chunk.state, None, {})
            error = value_error(value, chunk.target, config.huber_delta)
            loss = masked_mean(error.mean(-1), chunk.critic_valid, self.reduction)
            grad_norm = self._critic_optimizer.step(config.value_coef * loss, coefficients)
            return value.detach(), torch.stack([loss.detach(), grad_norm[0]])

        return backward_in_time(len(batch.target), config.critic_time_chunks, step)

    def _actor_advantages(
        self, batch: Batch, value: Tensor, moments: EMAMoments, stream_weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns advantages [L, S, N], targets minus values [L, S, N, K], and their mean before normalization [].

        Args:
            batch: Targets on the scale of `moments`.
            value: Values on the same scale.
            moments: Moments of the returns.
            stream_weights: Weights of the reward signals [K]; None if there is only the environment's reward.
        """
        _, std = self.value_scale(moments)
        advantage = combined((batch.target - value) * std, stream_weights)
        assert batch.valid is not None
        advantage = torch.where(batch.valid, advantage, 0.0)
        mean = masked_mean(advantage, batch.valid, self.reduction)
        if self.config.normalize_advantage:
            advantage = standardize(advantage, batch.valid, self.reduction)
        return advantage, mean

    def _train_actor(self, batch: Batch, coefficients: Mapping[str, float | Tensor]) -> Tensor:
        """Takes one step of the actor and returns its report [5]."""
        log_prob, entropies = self.policy.actor.evaluate(
            batch.obs, batch.action_mask, batch.action, first=None, hidden_state={}
        )
        policy_loss, kl, clip_fraction = clipped_policy_loss(
            log_prob,
            batch.log_prob,
            batch.advantage,
            batch.valid,
            clip_eps=self.config.clip_eps,
            kernels=self.kernels,
            reduction=self.reduction,
        )
        entropy = masked_mean(entropies, batch.valid, self.reduction)
        grad_norm = self._actor_optimizer.step(policy_loss - coefficients["entropy"] * entropy, coefficients)
        return torch.stack([policy_loss.detach(), entropy.detach(), kl, clip_fraction, grad_norm[0]])

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._actor_optimizer.state_dict() | self._critic_optimizer.state_dict()
        return super().state_dict() | {"optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state | {"optimizer": {name: {} for name in state["optimizer"]}})
        self._actor_optimizer.load_state_dict(state["optimizer"])
        self._critic_optimizer.load_state_dict(state["optimizer"])

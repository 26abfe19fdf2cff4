"""Training data, passes and state of learners with a clipped policy gradient: PPO, IPPO, MAPPO and MA-POCA."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.algos.algorithm import AlgorithmContext, CloningOptimizer, ValueEstimator, require_equal_spaces
from coterie.algos.base_config import ClippedConfig
from coterie.algos.graphed import GraphedFunction, GraphedMinibatches
from coterie.algos.on_policy import OnPolicyLearner, random_parts, require_samples
from coterie.algos.optimizer import Optimizer, TargetNetwork
from coterie.algos.reward_streams import RewardStream, RewardStreams
from coterie.algos.sequences import UnrolledPolicy, actor_states, sequence_length, split_into_sequences
from coterie.core.seeds import restore
from coterie.core.tree import Tree, register_pytree, tree_map
from coterie.core.types import Action, HiddenState, Rollout
from coterie.functional.policy_gradient import EMAMoments, ema_mean_and_std, initial_ema_moments
from coterie.policies.stochastic import StochasticPolicy
from coterie.ranks.ranks import ONE, Ranks


@register_pytree
@dataclass(frozen=True)
class ClippedBatch:
    """Training data: timesteps [M, ..], or sequences [L, M, ..]. Learners add their own fields."""

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    action: dict[str, Action]
    log_prob: Tensor
    """Log-probabilities under the policy that collected the rollout [.., N]."""
    advantage: Tensor
    target: Tensor
    """Lambda-returns on the normalized scale [.., N, K]."""
    value: Tensor
    """Values before the update on the normalized scale [.., N, K]."""
    valid: Tensor | None
    """[.., N] bool, entries that the policy learns from; None: all."""
    first: Tensor | None
    critic_first: Tensor | None

    def masked(self, mask: Tensor) -> ClippedBatch:
        """Returns the batch, of which only entries are learned from where `mask` [.., N] bool is True."""
        return replace(self, valid=joint_mask(self.valid, mask))


def joint_mask(mask: Tensor | None, other: Tensor) -> Tensor:
    """Returns where both masks are True; a mask that is None is True everywhere."""
    return other if mask is None else mask & other


class ValueState(NamedTuple):
    """Moments and hidden state of value estimation, which an update passes to the next one.

    Attributes:
        moments: Moving moments of the returns of each reward signal.
        hidden_state: Hidden state of the critic before the rollout; {} for a feed-forward critic.
    """

    moments: EMAMoments
    hidden_state: HiddenState


class Targets(NamedTuple):
    """Training data of a rollout.

    Attributes:
        batch: Inputs, advantages and targets [T, B, ..]. Observations are normalized if networks read them so.
        critic_states: Hidden state of the critic before each sequence; {} for a feed-forward critic.
        metrics: Metrics of the rollout [] by name.
        value_state: For the next update.
    """

    batch: Any
    critic_states: HiddenState
    metrics: dict[str, Tensor]
    value_state: ValueState


class Samples(NamedTuple):
    """Samples of a rollout that minibatches are drawn from.

    Attributes:
        batch: Timesteps, or sequences if there are hidden states.
        hidden_states: Hidden states of actor and critic before each sequence; {} for timesteps.
        candidates: Indices of the samples to draw from.
    """

    batch: ClippedBatch
    hidden_states: dict[str, HiddenState]
    candidates: Tensor


class ClippedLearner(OnPolicyLearner, ValueEstimator):
    """A learner that owns a stochastic policy and a critic, and its state in checkpoints.

    Attributes:
        policy: The policy.
        critic: The critic.
        optimizer: Trains both.
        reward_streams: Reward signals with values of their own; None if there is only the environment's reward.
        value_moments: Moving moments of the returns of each signal.

    Args:
        config: Settings of the learner.
        context: Team, environments and device.
        streams: Reward signals.
        weights: Draws the initial parameters of the policy.
    """

    policy: StochasticPolicy
    critic: nn.Module
    optimizer: Optimizer
    _critic_state: HiddenState
    """Hidden state of the critic before the next rollout."""

    def __init__(
        self,
        config: ClippedConfig,
        context: AlgorithmContext,
        streams: tuple[RewardStream, ...],
        weights: torch.Generator,
    ) -> None:
        super().__init__(config, context)
        self._normalize_value = config.normalize_value
        self._recurrent = config.recurrent
        self._length, per_env, unit = None, self.rollout_length, "timesteps"
        if self._recurrent:
            self._length = sequence_length(config.sequence_length, self.rollout_length)
            per_env, unit = self.rollout_length // self._length, "sequences"
        require_samples("num_minibatches", self._num_minibatches, per_env, context.total_envs, unit=unit)
        require_equal_spaces(self.team, config.share_params)
        self.reward_streams = RewardStreams(streams, config.gamma, self.device) if streams else None
        self.value_moments = initial_ema_moments(max(1, len(streams)), self.device)
        self.policy = self._build_policy(config, weights)

    def _build_policy(self, config: ClippedConfig, weights: torch.Generator) -> StochasticPolicy:
        """Returns the policy; `weights` draws its initial parameters."""
        return StochasticPolicy(
            self.team,
            config.network_config(self.team),
            weights,
            self.device,
            state_dependent_std=config.state_dependent_std,
            init_std=config.init_std,
        )

    def _create_optimizer(self, config: ClippedConfig, *networks: nn.Module) -> None:
        """Creates the optimizer of policy and critic. If CUDA graphs are used, an update consists of two, one of its
        targets and one of a gradient step.

        Args:
            config: Settings of the learner.
            networks: Networks that targets depend on besides those of the policy and the critic.
        """
        modules = self._trained_modules()
        self.optimizer = Optimizer(modules, *config.adam_settings, ranks=self.ranks)
        self._compute_samples = self._targets_as_samples
        self._graphs = None
        if self.cuda_graphs:
            modules, what = tuple(modules.values()), f"the update of team {self.team.name}"
            read = (*self.policy.networks, *modules, *networks)
            self._compute_samples = GraphedFunction(
                self._targets_as_samples,
                reads=lambda: [x for network in read for x in (*network.parameters(), *network.buffers())],
                what=f"the targets of team {self.team.name}",
            )
            self._graphs = GraphedMinibatches(self._step, self.optimizer, modules, what)
        self._create_step()

    def _create_step(self, *optimizers: Optimizer, targets: Sequence[TargetNetwork] = ()) -> None:
        """Creates the gradient step on a minibatch, as a trace if it can be traced.

        Args:
            *optimizers: Optimizers that take it besides that of policy and critic.
            targets: Target networks that it reads and updates.
        """
        self._step_function = self._traced(
            self._step_on,
            optimizers=(self.optimizer, *optimizers),
            modules=tuple(self._trained_modules().values()),
            targets=targets,
        )

    def _trained_modules(self) -> dict[str, nn.Module]:
        """Returns what a gradient step trains, by name of the learning rate."""
        return {"policy": self.policy.actor, "value": self.critic}

    @abstractmethod
    def targets(
        self, rollout: Rollout, before: ValueState, stream_weights: Tensor | None, *, as_sequences: bool
    ) -> Targets:
        """Computes advantages and lambda-returns from one pass of the critic over T + 1 timesteps.

        It is a function of its arguments and the weights of the networks, so that a CUDA graph can contain it.

        Args:
            rollout: Experience of the team.
            before: Value state before the rollout.
            stream_weights: Weights of the reward signals [K]; None if there is only the environment's reward.
            as_sequences: True if timesteps in which nobody acts stay in the batch, where they are masked.
        """

    def _targets_as_samples(
        self, rollout: Rollout, before: ValueState, stream_weights: Tensor | None
    ) -> tuple[ClippedBatch, dict[str, HiddenState], dict[str, Tensor], ValueState]:
        """Returns targets as timesteps or sequences, hidden states before these, metrics, and the next value state."""
        batch, critic_states, metrics, after = self.targets(
            rollout, before, stream_weights, as_sequences=self._recurrent
        )
        if self._length is None:
            return tree_map(lambda x: x.flatten(0, 1), batch), {}, metrics, after
        actor = actor_states(self._unrolled_policy(), batch.obs, rollout, self._length)
        return split_into_sequences(batch, self._length), {"actor": actor, "critic": critic_states}, metrics, after

    def _unrolled_policy(self) -> UnrolledPolicy:
        """Returns the policy that collected the rollout, which gives the hidden states before sequences."""
        return self.policy

    @torch.no_grad()
    def _samples(self, rollout: Rollout, progress: float) -> tuple[Samples, dict[str, Tensor]]:
        """Computes the training data of an update, and replaces the value state.

        Returns:
            The samples, and metrics of the rollout [] by name.
        """
        before = ValueState(self.value_moments, self._critic_state)
        weights = None if self.reward_streams is None else self.reward_streams.weights(progress)
        batch, hidden_states, metrics, after = self._compute_samples(rollout, before, weights)
        # Copies, because the next replay of a graph overwrites the results of this one.
        self.value_moments, self._critic_state = tree_map(torch.clone, after)
        if self._length is None:
            candidates = acted_candidates(rollout.acted[:-1], self.ranks)
        else:
            candidates = torch.arange(batch.log_prob.shape[1] * self.ranks.size, device=self.device)
        return Samples(batch, hidden_states, candidates), metrics

    def _step_on(
        self, minibatch: tuple[Any, dict[str, HiddenState]], coefficients: Mapping[str, float | Tensor]
    ) -> Tensor:
        batch, hidden_state = minibatch
        return self._step(batch, hidden_state, coefficients)

    @abstractmethod
    def _step(
        self, batch: Any, hidden_state: dict[str, HiddenState], coefficients: Mapping[str, float | Tensor]
    ) -> Tensor:
        """Takes a gradient step on a minibatch and returns its report [metrics].

        Args:
            batch: Timesteps or sequences.
            hidden_state: Hidden states before sequences of actor and critic; {} for timesteps.
            coefficients: Learning rates `policy` and `value`, and other numbers that schedules change.
        """

    def _train_on(
        self, samples: Samples, coefficients: dict[str, float], target_kl: float | None = None
    ) -> tuple[list[Tensor], int]:
        """Takes gradient steps on the minibatches of several passes, see `_train`."""
        batch, hidden_states, candidates = samples
        if self._graphs is None:
            return self._train(
                lambda: self._minibatches(batch, hidden_states, candidates),
                lambda minibatch: self._step_function(minibatch, coefficients),
                target_kl,
            )
        graphs, loaded = self._graphs, self._graphs.load(batch, hidden_states, coefficients)
        size = -(-batch.log_prob.shape[1 if hidden_states else 0] // self._num_minibatches)
        return self._train(
            lambda: random_parts(candidates, self._num_minibatches, self._shuffle),
            lambda chosen: graphs(loaded, chosen, size),
            target_kl,
        )

    def value_scale(self, moments: EMAMoments | None = None) -> tuple[Tensor, Tensor] | tuple[float, float]:
        """Returns mean and standard deviation of the returns [K]; (0, 1) without normalization.

        Args:
            moments: Moments of the returns; None: the present ones.
        """
        return ema_mean_and_std(moments or self.value_moments) if self._normalize_value else (0.0, 1.0)

    def load_critic(self, state: dict[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        self.value_moments = {name: x.to(self.device) for name, x in state["value_moments"].items()}

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self.optimizer.for_module("policy"))

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "value_moments": self.value_moments,
            "hidden_state": self._critic_state,
            "shuffle": self._shuffle.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.load_critic(state)
        self.optimizer.load_state_dict(state["optimizer"])
        self._critic_state = {name: x.to(self.device) for name, x in state["hidden_state"].items()}
        restore(self._shuffle, state["shuffle"])


def acted_candidates(acted: Tensor, ranks: Ranks = ONE) -> Tensor:
    """Returns the indices t * B + b of timesteps of all ranks that were acted on [M], from `acted` [T, B_r] bool."""
    acted = acted if ranks.size == 1 else ranks.all_envs(acted, 1)
    return acted.flatten().nonzero().squeeze(-1)

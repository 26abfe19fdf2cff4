"""Training data, construction and state of learners with a clipped policy gradient: PPO, IPPO, MAPPO and MA-POCA."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.algos.algorithm import Algorithm, AlgorithmContext, ValueEstimator, require_equal_spaces
from coterie.algos.behavior_cloning import CloningLearner, CloningOptimizer
from coterie.algos.graphed_minibatches import GraphedMinibatches
from coterie.algos.minibatches import minibatches
from coterie.algos.on_policy import ClippedConfig, build_actor, require_minibatches, sequence_length
from coterie.algos.optimizer import Optimizer
from coterie.algos.reward_streams import RewardStream, RewardStreams
from coterie.core import cuda_graphs
from coterie.core.seeds import generator, restore
from coterie.core.tree import Tree, register_pytree
from coterie.core.types import Action, HiddenState
from coterie.math.policy_gradient import initial_ema_moments
from coterie.policies.stochastic import StochasticPolicy


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


class ClippedLearner(Algorithm, ValueEstimator, CloningLearner):
    """A learner that owns a stochastic policy and a critic, and its state in checkpoints.

    Attributes:
        team: The team.
        device: Device of the networks.
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
        self.team, self.device = context.team, context.device
        self.rollout_length = context.rollout_length or config.rollout_length
        self._recurrent = config.recurrent
        self._length = sequence_length(config.sequence_length, self.rollout_length) if self._recurrent else None
        require_minibatches(config.num_minibatches, self._length, self.rollout_length, context.total_envs)
        require_equal_spaces(self.team, config.share_params)
        self.reward_streams = RewardStreams(streams, config.gamma, self.device) if streams else None
        self.value_moments = initial_ema_moments(max(1, len(streams)), self.device)
        self.policy = build_actor(config, self.team, weights, self.device)
        self._shuffle = generator(context.seed, "minibatches", device=context.device)

    def _create_optimizer(self, config: ClippedConfig) -> None:
        """Creates the optimizer of policy and critic, and the CUDA graph of its steps if the setting is on."""
        modules = {"policy": self.policy.actor, "value": self.critic}
        self.optimizer = Optimizer(modules, config.adam_eps, config.weight_decay, config.max_grad_norm)
        self._graphs = None
        if cuda_graphs.enabled:
            modules, what = (self.policy.actor, self.critic), f"the update of team {self.team.name}"
            self._graphs = GraphedMinibatches(self._step, self.optimizer, modules, what)

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

    def _epochs(
        self, samples: Samples, coefficients: dict[str, float], config: ClippedConfig, num_envs: int
    ) -> Iterator[list[Tensor]]:
        """Takes gradient steps on minibatches, and yields their reports after each pass over the samples."""
        batch, hidden_states, candidates = samples
        if self._graphs is not None:
            loaded = self._graphs.load(batch, hidden_states, coefficients)
            for _ in range(config.epochs):
                yield self._graphs.epoch(loaded, candidates, config.num_minibatches, shuffle=self._shuffle)
            return
        for _ in range(config.epochs):
            drawn = minibatches(
                batch, hidden_states, candidates, config.num_minibatches, shuffle=self._shuffle, num_envs=num_envs
            )
            yield [self._step(minibatch, states, coefficients) for minibatch, states in drawn]

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

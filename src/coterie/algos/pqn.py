"""PQN: Q-learning from rollouts, with neither a replay buffer nor a target network. Independent, VDN and QMIX.

Each rollout gives lambda-returns that bootstrap from the greedy actions of the present network, and several passes of
minibatches fit the Q-values of the actions taken to them. Layer normalization keeps the values bounded that a target
network would otherwise hold still. The setting `mixer` selects independent learners (PQN), VDN or QMIX.

Sources: Gallici et al. 2025, Simplifying Deep Temporal Difference Learning (PQN, PQN-VDN); Rashid et al. 2018 (QMIX);
Naik et al. 2024, Reward Centering. Differences: returns bootstrap at time limits; values are learned relative to the
return of an average step if it is negative; recurrent networks have targets of whole rollouts, where the paper's code
computes them anew in each minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from coterie.algos.algorithm import AlgorithmContext, Capabilities, CloningOptimizer
from coterie.algos.base_config import LAYERS, MinibatchConfig, Units
from coterie.algos.clipped_learner import acted_candidates
from coterie.algos.on_policy import OnPolicyLearner, require_samples
from coterie.algos.optimizer import Optimizer, Rule, Schedule, scheduled
from coterie.algos.sequences import critic_values, sequence_length, split_into_sequences
from coterie.algos.team_q import Discount, TeamQConfig, TeamQLearner
from coterie.config.needs import Needs
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator, restore
from coterie.core.tree import Tree, register_pytree, tree_map
from coterie.core.types import HiddenState, Rollout
from coterie.functional.returns import (
    lambda_return,
    present_agents,
    terminate_at_limit,
)
from coterie.functional.statistics import (
    Reduction,
    initial_moments,
    masked_mean,
    masked_sum,
    mean_and_std,
    root_mean_square,
    update_moments,
    valid_count,
)
from coterie.nets.config import LayerNormKind
from coterie.nets.mixers import Choices, greedy_actions, taken_actions

declare(
    Metric(
        "value/reward_scale",
        "reward",
        "root mean square of rewards, by which they are divided: values in rewards are this times the logged ones",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/average_return",
        "reward",
        "return of an average step if it is negative, after reward scaling, relative to which values are learned",
        better=None,
        combine="mean",
    ),
)


class PQNConfig(MinibatchConfig, TeamQConfig):
    """Settings of PQN, PQN-VDN and PQN-QMIX."""

    minibatches: ClassVar = 16

    rollout_length: int = Field(32, ge=1, le=100_000)
    lr: float = Field(1e-3, gt=0, lt=1)
    gamma: Discount = None
    lr_schedule: Schedule = "linear"
    max_grad_norm: float | None = Field(1.0, gt=0, le=10**12)
    optimizer: Rule = "radam"
    hidden_sizes: Annotated[tuple[Units, ...], Needs(LAYERS[0])] = Field((128, 128), min_length=1)
    layer_norm: LayerNormKind = "hidden"
    epochs: int = Field(4, ge=1, le=1000)
    num_minibatches: int | None = Field(None, ge=1, le=10_000)
    """Minibatches per pass, each of which is a gradient step. null: 16, or one per sequence if a rollout has fewer."""
    td_lambda: float = Field(0.65, ge=0, le=1)
    """Lambda of the returns."""
    center_values: bool = True
    """Learn values relative to the return of an average step if it is negative, so that states that are no longer
    visited look average; false: relative to 0, beside which they look good.
    """


@register_pytree
@dataclass(frozen=True)
class Batch:
    """Training data: timesteps [M, ..], or sequences [L, M, ..].

    With a mixer, targets and valid entries are those of the team [..], else of each agent [.., N].
    """

    obs: dict[str, Tree]
    """Observations as networks read them."""
    last_action: dict[str, Tensor] | None
    """Last actions by block, if networks read them."""
    action: Choices
    masks: dict[str, Tensor | None]
    """Action masks by block, for mixers that read them."""
    state: Tensor | None
    """What mixers read of the state."""
    alive: Tensor
    target: Tensor
    valid: Tensor
    """Bool, entries that are learned from."""
    first: Tensor | None


def pqn_loss(
    q: Tensor, target: Tensor, valid: Tensor, huber_delta: float | None = None, *, reduction: Reduction | None = None
) -> Tensor:
    """Loss of PQN.

        L = mean l(Q(s, a) - G),    l(e) = e^2 / 2, linear beyond |e| = huber_delta

    The mean is over valid entries. With a mixer, Q and G are those of the team. Source: Gallici et al. 2025, section 4.

    Args:
        q: Q of the actions taken [..] or [.., N].
        target: Lambda-returns G, the same shape, without gradient.
        valid: Bool, the same shape.
        huber_delta: Error beyond which the loss is linear; None for the squared error.
        reduction: Processes whose entries the mean is over; None for this one's.
    """
    if huber_delta is None:
        return masked_mean(0.5 * (q - target).square(), valid, reduction)
    return masked_mean(functional.huber_loss(q, target, reduction="none", delta=huber_delta), valid, reduction)


def return_of_average_step(reward: Tensor, end: Tensor, gamma: float) -> Tensor:
    """Return of a step with the mean reward, after which the episode ends with the mean probability.

        b = r / (1 - gamma (1 - e)),    so that b = r + gamma (1 - e) b

    Args:
        reward: r, mean reward of a step [].
        end: e, fraction of the steps after which nothing follows [].
        gamma: Discount factor.

    Returns:
        [], bounded where nothing is discounted and no episode ends.
    """
    return reward / (1.0 - gamma * (1.0 - end)).clamp_min(1e-3)


class PQN(OnPolicyLearner, TeamQLearner):
    """PQN, PQN-VDN and PQN-QMIX, see the module.

    Attributes:
        end_moments: Moments of a number that is 1 where an episode, or an agent's life, ends, else 0; of all timesteps.
    """

    Config: ClassVar = PQNConfig
    base: ClassVar = "pqn_vdn"
    capabilities: ClassVar = Capabilities(
        actions=frozenset({"discrete", "multi_discrete"}), images=True, eval_mode="greedy"
    )
    reported: ClassVar = ("loss/td", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")

    def __init__(self, config: PQNConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        super().__init__(config, context)
        self.config = config
        assert config.gamma is not None  # derived
        self._gamma = config.gamma
        self._length, per_env, unit = None, self.rollout_length, "timesteps"
        if config.recurrent:
            self._length = sequence_length(config.sequence_length, self.rollout_length)
            per_env, unit = self.rollout_length // self._length, "sequences"
        require_samples("num_minibatches", self._num_minibatches, per_env, context.total_envs, unit=unit)
        self._create_value(config, context, generator(context.seed, "weights"))
        self.value.to(self.device)
        self._optimizer = Optimizer({"value": self.value}, *config.adam_settings, ranks=self.ranks)
        self._step_function = self._traced(
            self._step_on,
            optimizers=(self._optimizer,),
            modules=(self.value, *self._state.networks),
        )
        self._steps = 0
        self.end_moments = initial_moments(1, self.device)
        if config.center_values and self.reward_moments is None:
            self.reward_moments = initial_moments(1, self.device)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        # Targets
        reward, valid = self._rewards(rollout)
        self._add_rewards(reward, valid)
        ends = self._bootstrap_masks(rollout)[0].to(reward.dtype).unsqueeze(-1)
        self.end_moments = update_moments(self.end_moments, ends, valid, self.reduction, kernels=self.kernels)
        batch, hidden_states = self.samples(rollout)
        # Minibatches, each of which is a step
        acted = candidates = acted_candidates(rollout.acted[:-1], self.ranks)
        if self._length is not None:
            candidates = torch.arange(batch.alive.shape[1] * self.ranks.size, device=self.device)
        reports, _ = self._train(
            lambda: self._minibatches(batch, hidden_states, candidates),
            lambda minibatch: self._step_function(minibatch, {"value": lr}),
        )
        # Metrics
        self._observe(rollout)
        metrics = self._mean_metrics(reports, self.reported, self._scale_metrics())
        for name in ("value/q_taken_mean", "value/target_mean"):
            metrics[name] += metrics.get("value/average_return", 0.0)
        metrics |= {"policy/lr": lr, "policy/epsilon": self.policy.epsilon}
        # Exploration of the next rollout
        self._steps += len(acted)
        self._decay_epsilon(self._steps)
        return metrics

    @torch.no_grad()
    def samples(self, rollout: Rollout) -> tuple[Batch, HiddenState]:
        """Returns the timesteps of a rollout, or its sequences and the hidden states before them, with their targets.

        One pass over T + 1 timesteps gives the Q-values that targets bootstrap from.
        """
        net, present = self.policy.net, present_agents(rollout)
        obs, first, hidden_state, last_action = self.policy.network_inputs(
            rollout.obs, rollout.action, rollout.first, rollout.hidden_state, present
        )
        q, before = self._unroll(obs, last_action, first, hidden_state)
        state, masks = self._state(rollout.state), self._masks(rollout)

        def later(tree: Tree) -> Tree:
            return tree_map(lambda x: x[1:], tree)

        def now(tree: Tree) -> Tree:
            return tree_map(lambda x: x[:-1], tree)

        next_value = self.value.evaluate(
            later(q),
            self._of_living(greedy_actions(net, later(q), later(masks)), present[1:]),
            masks=later(masks),
            alive=present[1:],
            obs=later(obs),
            state=later(state),
        )
        (reward, valid), baseline = self._rewards(rollout), self.average_return()
        reads_masks = self.value.mixer is not None and self.value.mixer.reads_joint_action
        batch = Batch(
            obs=now(obs),
            last_action=now(last_action),
            action=self._of_living(taken_actions(net, rollout.action), rollout.alive[:-1]),
            masks=now(masks) if reads_masks else dict.fromkeys(masks),
            state=now(state),
            alive=rollout.alive[:-1],
            target=self.targets(rollout, reward, next_value + baseline) - baseline,
            valid=valid,
            first=now(first),
        )
        if self._length is None:
            return tree_map(lambda x: x.flatten(0, 1), batch), {}
        return split_into_sequences(batch, self._length), before

    def targets(self, rollout: Rollout, reward: Tensor, next_value: Tensor) -> Tensor:
        """Returns the targets of all steps, by default lambda-returns; for subclasses to override.

        With a mixer, rewards, values and targets are those of the team [T, B], else of each agent [T, B, N]. It is
        called without gradients.

        Args:
            rollout: Experience of the team.
            reward: Rewards before scaling.
            next_value: Q of the next greedy actions among those available.
        """
        terminated, boundary = self._bootstrap_masks(rollout)
        return lambda_return(
            self._scaled(reward),
            next_value,
            terminated=terminated,
            boundary=boundary,
            gamma=self._gamma,
            td_lambda=self.config.td_lambda,
        )

    def average_return(self) -> Tensor:
        """Returns the return of an average step [], on the scale of values, which networks leave out, see
        `center_values`; 0 if it is positive, since states without data should not look good.
        """
        if not self.config.center_values or self.reward_moments is None:
            return self.end_moments["mean"].new_zeros(())
        reward, end = (mean_and_std(moments)[0] for moments in (self.reward_moments, self.end_moments))
        return return_of_average_step(self._scaled(reward), end, self._gamma).squeeze(-1).clamp_max(0.0)

    def _unroll(
        self,
        obs: dict[str, Tree],
        last_action: dict[str, Tensor] | None,
        first: Tensor | None,
        hidden_state: HiddenState,
    ) -> tuple[dict[str, Tensor], HiddenState]:
        """Returns Q of all T + 1 timesteps by block [T + 1, B, n, A], and the hidden states before each sequence."""
        if first is None or self._length is None:
            return self.policy.net(obs, None, {}, last_action)[0], {}

        def evaluate(
            obs: dict[str, Tree], last_action: dict[str, Tensor] | None, first: Tensor, hidden_state: HiddenState
        ) -> tuple[dict[str, Tensor], HiddenState]:
            return self.policy.net(obs, first, hidden_state, last_action)

        q, before, _ = critic_values(evaluate, (obs, last_action), first, hidden_state, length=self._length)
        return q, before

    def _step_on(self, minibatch: tuple[Batch, HiddenState], lr: Mapping[str, float | Tensor]) -> Tensor:
        batch, hidden_state = minibatch
        return self._step(batch, hidden_state, lr)

    def _step(self, batch: Batch, hidden_state: HiddenState, lr: Mapping[str, float | Tensor]) -> Tensor:
        """Takes a gradient step on a minibatch and returns its report [reported]; `lr` is that of `value`."""
        # Loss
        q, _ = self.policy.net(batch.obs, batch.first, hidden_state, batch.last_action)
        q_taken = self.value.evaluate(
            q, batch.action, masks=batch.masks, alive=batch.alive, obs=batch.obs, state=batch.state
        )
        loss = self.loss(q_taken, batch)
        # Optimizer step
        grad_norm = self._optimizer.step(loss, lr)
        with torch.no_grad():
            values = ((q_taken - batch.target).abs(), q_taken, batch.target)
            count = valid_count(batch.valid, reduction=self.reduction)
            means = [masked_sum(x, batch.valid)[0] / count for x in values]
            return torch.stack([loss.detach(), *means, grad_norm[0]])

    def loss(self, q: Tensor, batch: Batch) -> Tensor:
        """Returns the loss of a minibatch [], see `pqn_loss`; for subclasses to override.

        Args:
            q: Q of the actions taken: of each agent [.., N], or with a mixer of the team [..].
            batch: Targets and valid entries.
        """
        return pqn_loss(q, batch.target, batch.valid, self.config.huber_delta, reduction=self.reduction)

    def _scale_metrics(self) -> dict[str, Tensor]:
        """Returns the number by which rewards are divided [], if they are, and the average return [], if it is used."""
        found = {"value/average_return": self.average_return()} if self.config.center_values else {}
        if self._reward_scale == "rms" and self.reward_moments is not None:
            found["value/reward_scale"] = root_mean_square(self.reward_moments)[0]
        return found

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self._optimizer.for_module("value"))

    def state_dict(self) -> dict[str, Any]:
        state = {
            "policy": self.policy.state_dict(),
            "module": self.value.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "state": self._state.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "steps": self._steps,
            "end_moments": self.end_moments,
        }
        if self.reward_moments is not None:
            state["reward_moments"] = {name: x.clone() for name, x in self.reward_moments.items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.value.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._state.load_state_dict(state["state"])
        restore(self._shuffle, state["shuffle"])
        self._steps = state["steps"]
        self.end_moments = {name: x.to(self.device) for name, x in state["end_moments"].items()}
        if self.reward_moments is not None:
            self.reward_moments = {name: x.to(self.device, copy=True) for name, x in state["reward_moments"].items()}

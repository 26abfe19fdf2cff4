"""MA-POCA: clipped policy gradients for groups whose members come and go, with counterfactual baselines.

One critic reads the group as a set. It estimates the value V of the group from all observations, and for each member i
a baseline b_i from the observation of i and the observations and actions of the others. The advantage of i is the
lambda-return of the group minus b_i, the effect of its own action. Returns continue when a member leaves, so that the
rewards that the group receives later reach a member that left for them (posthumous credit).

Source: Cohen et al. 2022.
Differences: the trace of a return continues through the group's steps when a member leaves, where the original ends it
and bootstraps; values are learned on a normalized scale; V and its target are computed once per environment; gradients
of actor and critic are clipped separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext, Capabilities
from coterie.algos.base_config import SEVERAL_STEPS, ClippedConfig, Units
from coterie.algos.clipped_learner import ClippedBatch, ClippedLearner, Targets, ValueState
from coterie.algos.learner import CentralState
from coterie.algos.optimizer import Schedule, scheduled
from coterie.algos.reward_streams import weighted_streams
from coterie.algos.sequences import critic_first, timestep_critic_first
from coterie.config.needs import Needs
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator
from coterie.core.tree import Tree, register_pytree, tree_map
from coterie.core.types import HiddenState, Rollout, Timestep
from coterie.functional.policy_gradient import clipped_policy_loss, clipped_value_error, combined, update_value_moments
from coterie.functional.returns import (
    lambda_return,
    present_agents,
    replaced_agents,
    team_bootstrap_masks,
    terminate_at_limit,
    valid_mask,
)
from coterie.functional.statistics import Reduction, explained_variance, masked_mean, standardize
from coterie.nets.config import Activation, LayerNormKind
from coterie.nets.entity_critic import HEADS, EntityCritic

declare(
    Metric(
        "loss/baseline",
        "",
        "baseline loss on the normalized scale, mean over the update",
        better="down",
        combine="mean",
    ),
    Metric(
        "value/baseline",
        "reward",
        "mean baseline of the members, before the update, of the environment's reward",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/group_return",
        "reward",
        "mean lambda-return of the group, the target of value and baselines, of the environment's reward",
        better="up",
        combine="mean",
    ),
    Metric("policy/clip_eps", "", "clip range of the policy ratio", better=None, combine="last"),
)


class POCAConfig(ClippedConfig):
    """Settings of MA-POCA."""

    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per step of the environment's reward."""
    extrinsic_weight: float = Field(1.0, ge=0, le=10**6)
    """Weight of the environment's reward among the reward signals, multiplied by `rewards.extrinsic.weight`."""
    td_lambda: float = Field(0.95, ge=0, le=1)
    """Lambda of the returns."""
    signal_returns: Annotated[
        Literal["member", "group"], Needs("rewards.icm!=null", "rewards.rnd!=null", "rewards.gail!=null")
    ] = "member"
    """Returns of reward signals besides the environment's: of each member's own rewards, as in ML-Agents (member), or
    of their sum over the group (group).
    """
    member_end: Literal["group", "member"] = "group"
    """Trace of the return of a member that ends before its group: it continues through the group's later steps (group),
    or ends with the member and bootstraps from the group's next value, as in ML-Agents (member).
    """
    clip_eps: Annotated[float, SEVERAL_STEPS] = Field(0.2, gt=0, lt=1)
    """Initial clip range of the policy ratio."""
    clip_schedule: Schedule = "linear"
    """Schedule of the clip range, from `clip_eps` to `clip_end` times `clip_eps` over the run."""
    clip_end: Annotated[float, Needs("clip_schedule!=constant")] = Field(0.5, gt=0, le=1)
    """Final clip range as a fraction of the initial one."""
    entropy_coef: float = Field(5e-3, ge=0, le=10**6)
    entropy_schedule: Schedule = "linear"
    entropy_end: float = Field(2e-3, gt=0, le=1)
    value_coef: float = Field(1.0, gt=0, le=10**6)
    """Weight of the value loss and the baseline loss together."""
    baseline_coef: float = Field(0.5, gt=0, le=10**6)
    """Weight of the baseline loss relative to the value loss."""
    critic_hidden_sizes: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critic's hidden layers after the attention; null: `hidden_sizes`."""
    embedding_size: int = Field(64, ge=HEADS, le=100_000, multiple_of=HEADS)
    """Size of an agent's embedding in the critic's attention; a multiple of its 4 heads."""
    activation: Activation = "silu"
    layer_norm: LayerNormKind = False
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to hidden
    layers, before their activation (hidden). The attention has its own in any case.
    """


@register_pytree
@dataclass(frozen=True)
class Batch(ClippedBatch):
    """Training data of MA-POCA: values [.., 1 + N, K] of the group and baselines, and targets of the same shape, or
    [.., 1, K] if all are equal."""

    state: Tensor | None
    present: Tensor | None
    """[.., N] bool, members that the critic reads; None: all."""


class POCALoss(NamedTuple):
    """Terms of the loss and diagnostics, each []."""

    policy: Tensor
    value: Tensor
    baseline: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor


def poca_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    batch: Batch,
    *,
    clip_eps: float | Tensor,
    value_clip_eps: float | None,
    huber_delta: float | None,
    kernels: bool = False,
    reduction: Reduction | None = None,
) -> POCALoss:
    """Computes the terms of MA-POCA's loss, L = L_policy + c_V (L_value + c_b L_baseline) - c_H H.

        rho_i      = pi(a_i | o_i) / pi_old(a_i | o_i)
        L_policy   = -mean min(rho_i A_i, clip(rho_i, 1 - eps, 1 + eps) A_i),  A_i = G - b_i
        L_value    = mean l(V, G)
        L_baseline = mean l(b_i, G)

    The means are over valid entries. l is half the squared error or the Huber loss, whichever is larger with and
    without clipping the value to within eps_V of the old one.

    Args:
        log_prob: log pi(a_i | o_i) [.., N].
        entropy: H, entropy of pi(. | o_i) [.., N].
        value: V, then the baselines [.., 1 + N, K].
        batch: Old log-probabilities and values, advantages A and returns G.
        clip_eps: Clip range of the ratio.
        value_clip_eps: Clip range of the value; None for no clipping.
        huber_delta: Error above which l is linear; None for the squared error.
        kernels: Compute terms by fused kernels where there are some.
        reduction: Processes whose entries the means are over; None for this one's.

    Source: Cohen et al. 2022, eq. 5 to 8.
    """
    policy, kl, clip_fraction = clipped_policy_loss(
        log_prob,
        batch.log_prob,
        batch.advantage,
        batch.valid,
        clip_eps=clip_eps,
        kernels=kernels,
        reduction=reduction,
    )
    target = batch.target.expand_as(value)
    error = clipped_value_error(value, batch.value, target, clip_eps=value_clip_eps, huber_delta=huber_delta).mean(-1)
    return POCALoss(
        policy=policy,
        value=masked_mean(error[..., 0], None if batch.valid is None else batch.valid.any(-1), reduction),
        baseline=masked_mean(error[..., 1:], batch.valid, reduction),
        entropy=masked_mean(entropy, batch.valid, reduction),
        kl=kl,
        clip_fraction=clip_fraction,
    )


class POCA(ClippedLearner):
    """MA-POCA, see the module's description."""

    Config: ClassVar = POCAConfig
    base: ClassVar = "poca"
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, reward_streams=True, cuda_graphs=True)
    reported: ClassVar = (
        *("loss/policy", "loss/value", "loss/baseline", "policy/entropy", "policy/kl", "policy/clip_fraction"),
        *("policy/grad_norm", "value/grad_norm"),
    )

    def __init__(self, config: POCAConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        self.config, team, device = config, context.team, context.device
        weights = generator(context.seed, "weights")
        signals = weighted_streams(context.reward_streams, config.extrinsic_weight)
        super().__init__(config, context, signals, weights)
        network = config.row_critic_network_config(
            team, reason="MA-POCA's critic has attention over agents, and its hidden layers read the result"
        )
        size = config.embedding_size
        self._state = CentralState(config, team, None, device)
        critic = EntityCritic(
            team,
            max(1, len(signals)),
            embedding_size=size,
            config=network,
            generator=weights,
            state_size=self._state.size,
        )
        self.critic: EntityCritic = critic.to(device)
        self._create_optimizer(config)
        self._critic_state = self.critic.initial_hidden_state(context.num_envs, device)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        clip_eps = config.clip_eps * scheduled(config.clip_schedule, 1.0, config.clip_end, progress)
        entropy_coef = config.entropy_coef * scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)
        coefficients = {
            "policy": lr,
            "value": lr * (config.critic_lr or config.lr) / config.lr,
            "entropy": entropy_coef,
            "clip_eps": clip_eps,
        }
        # Targets
        samples, extra = self._samples(rollout, progress)
        # Minibatches, each of which is a step
        reports, _ = self._train_on(samples, coefficients)
        # Metrics
        self._observe(rollout)
        metrics = self._mean_metrics(reports, self.reported, extra)
        return metrics | {"policy/lr": lr, "policy/entropy_coef": entropy_coef, "policy/clip_eps": clip_eps}

    def _step(
        self, batch: Batch, hidden_state: dict[str, HiddenState], coefficients: Mapping[str, float | Tensor]
    ) -> Tensor:
        """Takes a gradient step on a minibatch and returns its report [8].

        The `coefficients` include the weight of the `entropy` and `clip_eps`, the clip range of the ratio.
        """
        # Loss
        log_prob, entropy = self.policy.actor.evaluate(
            batch.obs, batch.action_mask, batch.action, first=batch.first, hidden_state=hidden_state.get("actor", {})
        )
        critic_state = hidden_state.get("critic", {})
        value, _ = self.critic(
            batch.obs, batch.state, batch.action, batch.present, batch.critic_first, hidden_state=critic_state
        )
        terms = self.loss_terms(log_prob, entropy, value, batch, clip_eps=coefficients["clip_eps"])
        value_loss = terms.value + self.config.baseline_coef * terms.baseline
        loss = terms.policy + self.config.value_coef * value_loss - coefficients["entropy"] * terms.entropy
        # Optimizer step
        grad_norms = self.optimizer.step(loss, coefficients)
        return torch.cat([torch.stack(terms).detach(), grad_norms])

    def targets(
        self, rollout: Rollout, before: ValueState, stream_weights: Tensor | None, *, as_sequences: bool
    ) -> Targets:
        config, team, reduction = self.config, self.team, self.reduction
        obs = self.policy.obs_normalizer.of_rollout(rollout)
        first = critic_first(rollout, centralized=True) if self._recurrent else None
        old_value, last_value, critic_states, hidden_state = self._values(obs, rollout, first, before.hidden_state)
        mean, std = self.value_scale(before.moments)
        value = old_value * std + mean
        group_value, baseline = value[:, :, :1], value[:, :, 1:]
        values = torch.cat([group_value, last_value * std + mean])  # V [T + 1, B, 1, K]
        terminated, boundary = team_bootstrap_masks(rollout, team.agents_can_die)
        valid = valid_mask(rollout)
        any_valid = valid.any(-1, keepdim=True)
        returns = self.returns(rollout, values, terminated[..., None, None], boundary[..., None, None])
        if self.reward_streams is None:
            advantage = combined(self.advantages(returns, baseline), None) * config.extrinsic_weight
        else:
            advantage = combined(self.advantages(returns, baseline), stream_weights)
        target = returns if returns.shape[2] == 1 else _mean_of_valid(returns, valid)
        metrics = {
            "value/explained_variance": explained_variance(
                target[..., 0], (target - group_value)[..., 0], any_valid, reduction
            ),
            "policy/advantage": masked_mean(advantage, valid, reduction),  # before normalization
            "value/estimate": masked_mean(group_value[..., 0], any_valid, reduction),
            "value/baseline": masked_mean(baseline[..., 0], valid, reduction),
            "value/group_return": masked_mean(target[..., 0], any_valid, reduction),
        }
        for k, stream in enumerate(() if self.reward_streams is None else self.reward_streams.streams):
            if k:
                metrics[f"value/{stream.name}_estimate"] = masked_mean(group_value[..., k], any_valid, reduction)
                metrics[f"value/{stream.name}_baseline"] = masked_mean(baseline[..., k], valid, reduction)
        moments = before.moments
        if config.normalize_value:
            moments = update_value_moments(moments, target, any_valid, config.value_norm_decay, reduction)
            mean, std = self.value_scale(moments)
        masked = team.agents_can_die or as_sequences
        batch = Batch(
            obs=tree_map(lambda x: x[:-1], obs),
            action_mask={name: x[:-1] for name, x in rollout.action_mask.items()},
            action=rollout.action,
            log_prob=rollout.extras["log_prob"],
            advantage=standardize(advantage, valid, reduction) if config.normalize_advantage else advantage,
            target=((target if returns.shape[2] == 1 else torch.cat([target, returns], 2)) - mean) / std,
            value=old_value,
            state=None if (state := self._state(rollout.state)) is None else state[:-1],
            present=rollout.alive[:-1] if team.agents_can_die else None,
            valid=valid if masked else None,
            first=rollout.first[:-1] if self._recurrent else None,
            critic_first=None if first is None else first[:-1],
        )
        return Targets(batch, critic_states, metrics, ValueState(moments, hidden_state))

    def advantages(self, returns: Tensor, baseline: Tensor) -> Tensor:
        """Returns the advantages of each reward signal [T, B, N, K]; for subclasses to override.

        Advantages are normalized afterward if `normalize_advantage` is set. It is called without gradients.

        Args:
            returns: Result of `returns`.
            baseline: Counterfactual baselines [T, B, N, K].
        """
        return returns - baseline

    def returns(self, rollout: Rollout, values: Tensor, terminated: Tensor, boundary: Tensor) -> Tensor:
        """Returns the targets of values and baselines, lambda-returns; for subclasses to override.

        They are those of the group [T, B, 1, K], or of its members [T, B, N, K] where they differ. Those of a member's
        own signals end before the next life in its slot begins.

        Args:
            rollout: Experience of the team.
            values: V [T + 1, B, 1, K].
            terminated: [T, B, 1, 1] bool, see `team_bootstrap_masks`.
            boundary: [T, B, 1, 1] bool, see `team_bootstrap_masks`.
        """
        config, reward = self.config, group_rewards(rollout)
        ends_alone = config.member_end == "member" and self.team.agents_can_die
        if ends_alone:
            boundary = boundary | (rollout.terminated | rollout.truncated | ~rollout.alive[1:]).unsqueeze(-1)
        flags: dict[str, Tensor] = {"terminated": terminated, "boundary": boundary}
        if self.reward_streams is not None:
            summed = config.signal_returns == "group" and not ends_alone
            if config.signal_returns == "group" and ends_alone:
                streams = {name: x.sum(-1, keepdim=True).expand_as(x) for name, x in rollout.streams.items()}
                rollout = replace(rollout, streams=streams)
            elif config.signal_returns == "member" and self.team.agents_can_die:
                is_own = torch.arange(len(self.reward_streams), device=self.device) > 0
                flags = {name: flag | (replaced_agents(rollout).unsqueeze(-1) & is_own) for name, flag in flags.items()}
            return self.reward_streams.group_returns(
                rollout, reward, values, **flags, td_lambda=config.td_lambda, summed=summed
            )
        agents = boundary.shape[2]
        return lambda_return(
            reward.unsqueeze(-1).expand(-1, -1, agents, -1),
            values[1:].expand(-1, -1, agents, -1),
            **flags,
            gamma=config.gamma,
            td_lambda=config.td_lambda,
        )

    def _values(
        self, obs: dict[str, Tree], rollout: Rollout, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, Tensor, HiddenState, HiddenState]:
        """Evaluates the critic, whose hidden state before the rollout is given.

        Returns:
            Normalized V and baselines [T, B, 1 + N, K], V of the last timestep [1, B, 1, K], and the hidden states
            before each sequence and after the rollout.
        """

        present = present_agents(rollout) if self.team.agents_can_die else None
        state = self._state(rollout.state)

        def evaluate(time: slice, hidden_state: HiddenState, with_actions: bool) -> tuple[Tensor, HiddenState]:
            part, action, left = (tree_map(lambda x: x[time], tree) for tree in (obs, rollout.action, state))
            alive = None if present is None else present[time]
            reset = None if first is None else first[time]
            return self.critic(part, left, action if with_actions else None, alive, reset, hidden_state=hidden_state)

        last = self.rollout_length
        # Without recurrence, one pass per minibatch needs no more memory than training.
        length = self._length or -(-last // self._num_minibatches)
        values, before = [], []
        for start in range(0, last, length):
            before.append(hidden_state)
            value, hidden_state = evaluate(slice(start, min(start + length, last)), hidden_state, True)
            values.append(value)
        group_state = {name: x[:, :1] for name, x in hidden_state.items()}
        last_value, _ = evaluate(slice(last, last + 1), group_state, False)
        return torch.cat(values), last_value, tree_map(lambda *x: torch.cat(x), *before), hidden_state

    def loss_terms(
        self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Batch, *, clip_eps: float | Tensor
    ) -> POCALoss:
        """Returns the terms of the loss on a minibatch; arguments as for `poca_loss`; for subclasses to override.

        The step descends L_policy + c_V (L_value + c_b L_baseline) - c_H H. Another term is added to one of these:
        `terms._replace(policy=terms.policy + extra)`.
        """
        config = self.config
        return poca_loss(
            log_prob,
            entropy,
            value,
            batch,
            clip_eps=clip_eps,
            value_clip_eps=config.value_clip_eps,
            huber_delta=config.huber_delta,
            kernels=self.kernels,
            reduction=self.reduction,
        )

    def start_value_estimation(self, num_envs: int) -> HiddenState:
        return {name: x[:, :1] for name, x in self.critic.initial_hidden_state(num_envs, self.device).items()}

    def estimate_value(self, timestep: Timestep, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        agents = timestep.alive.shape
        timestep = tree_map(lambda x: x.unsqueeze(0), timestep)
        alive = timestep.alive if self.team.agents_can_die else None
        first = timestep_critic_first(timestep, centralized=True)
        value, hidden_state = self.critic(
            self.policy.obs_normalizer(timestep.obs, timestep.alive),
            self._state(timestep.state),
            None,
            alive,
            first,
            hidden_state=hidden_state,
        )
        mean, std = self.value_scale()
        return (value * std + mean)[0, ..., 0].expand(agents), hidden_state


def _mean_of_valid(returns: Tensor, valid: Tensor) -> Tensor:
    """Returns the mean of members' returns [T, B, N, K] over those that acted [T, B, N], [T, B, 1, K]."""
    count = valid.sum(-1).clamp(min=1)[..., None, None]
    return torch.where(valid.unsqueeze(-1), returns, 0.0).sum(2, keepdim=True) / count


def group_rewards(rollout: Rollout) -> Tensor:
    """Returns the reward of the group [T, B, 1]: the sum of its members' own rewards and its group rewards."""
    return (rollout.reward.sum(-1) + rollout.group_reward.sum(-1)).unsqueeze(-1)

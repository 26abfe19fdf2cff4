"""MAGPO: a guider that sees the whole team collects, and agents that act alone learn to decide as it does.

The guider is a policy of the team whose agents decide one after another. It explores in coordination, but what it finds
is of use only if agents can do the same by their own observations. It is therefore held where they can follow: its
policy ratio is clipped around theirs, and decisions that are too far from theirs are pulled back. The learner, a policy
of single agents, imitates the guider and is trained with PPO's loss as well. The learner is what is evaluated, played
and exported.

Source: Li et al. 2026, Multi-Agent Guided Policy Optimization, and its code.
Differences: returns bootstrap at time limits; the guider decides and is trained in the same order, see
`nets.autoregressive`; it is MAT, and Sable for recurrent learners only, whose initial outputs are small; advantages are
normalized over the rollout; a recurrent learner's hidden state is carried along the guider's trajectory, where the code
keeps the initial one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext, Capabilities, CloningOptimizer
from coterie.algos.base_config import Derived, LearnerConfig, NetworkName, RunFacts
from coterie.algos.mat import EncoderConfig
from coterie.algos.ppo import PPO, Batch
from coterie.config.needs import HIDDEN_LAYERS, SEVERAL, Needs
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import HiddenState, Rollout
from coterie.functional.policy_gradient import (
    clipped_policy_loss,
    clipped_value_loss,
    log_prob_and_entropy,
)
from coterie.functional.statistics import Reduction, masked_mean
from coterie.functional.trust_region import Distribution, kl_divergence
from coterie.nets.autoregressive import order_of
from coterie.nets.config import RNNKind
from coterie.nets.mat import SMALL_GAIN, AgentEncoder, AgentValues, MATActor, TokenCritic
from coterie.nets.sable import ENCODER, STEP, RetentionSizes, SableActor, SableCritic, SableEncoder
from coterie.nets.team import join_blocks
from coterie.nets.team_view import view_of
from coterie.policies.autoregressive import AgentOrderKind, AutoregressivePolicy
from coterie.policies.guided import GuidedPolicy
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch
from coterie.policies.stochastic import StochasticPolicy

declare(
    Metric("loss/learner", "", "PPO's loss of the learner on what the guider did", better=None, combine="mean"),
    Metric("learner/divergence", "nat", "KL divergence of the learner from the guider", better="down", combine="mean"),
    Metric("learner/entropy", "nat", "entropy of an agent's action distribution", better=None, combine="mean"),
    Metric("learner/grad_norm", "", "gradient norm of the learner before clipping", better=None, combine="mean"),
    Metric(
        "policy/pulled_back",
        "share",
        "decisions of the guider whose probability differs from the learner's by more than the factor delta",
        better=None,
        combine="mean",
    ),
)


class MAGPOConfig(EncoderConfig):
    """Settings of MAGPO."""

    network: NetworkName | None = None
    """Layers of the learner. null or `mlp`: `hidden_sizes` units with `activation` and `layer_norm`. `attention` over
    the entities that an agent observes. Or your own factory of torch modules package.module:name, called as
    name(input_size, role=, part=). Networks whose agents exchange messages are refused.
    """
    network_edges: Literal["full"] = "full"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Agents that the guider reads: all."""
    network_radius: Annotated[None, HIDDEN_LAYERS] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Distance up to which agents hear each other: none, since the guider reads all of them."""
    rnn: RNNKind = "none"
    """Recurrent layer of the learner. With one, the guider has a memory, too, see `guider`."""
    clip_eps: float = Field(0.2, gt=0, lt=1)
    """Clip range of both policy ratios, of guider and learner to the guider that collected the rollout."""
    delta: float = Field(1.5, gt=1, le=10**6)
    """Factor by which the guider's probability of an action may differ from the learner's before it is pulled back."""
    learner_coef: float = Field(1.0, ge=0, le=10**6)
    """Weight of PPO's loss in the learner's loss, next to its divergence from the guider; 0: it only imitates."""
    guider: Literal["mat", "sable"] | None = None
    """Network of the guider: a transformer over agents (mat), or retention over agents, and over the timesteps of an
    episode if the learner is recurrent (sable). null: mat, or sable if the learner is recurrent, since mat remembers
    nothing.
    """
    obs_agent_id: Annotated[bool | None, SEVERAL] = None
    """Append the agent's one-hot id to the input of the guider and of the learner; null: of the guider, and of learners
    whose agents share parameters, except with network=attention.
    """
    num_heads: int = Field(1, ge=1, le=1024)
    """Heads of attention or retention of the guider; they divide `embedding_size`."""
    agent_order: Annotated[AgentOrderKind, SEVERAL] = "fixed"
    """Order in which agents decide under the guider: that of the team (fixed), or a new one for each rollout (random).
    Agents of a role are ordered among themselves.
    """
    decay_scale: Annotated[float, Needs("guider!=mat"), Needs("rnn!=none")] = Field(0.8, gt=0, le=1)
    """Factor of the decays of the guider's memory per timestep, which are between 1 - 1/32 and 1 - 1/512."""

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.guider is None:
            reason = f"the learner is {'recurrent' if self.recurrent else 'not recurrent'}"
            found["guider"] = Derived("sable" if self.recurrent else "mat", reason)
        return found

    def reads_agent_id(self, team: TeamSpec) -> bool:
        return LearnerConfig.reads_agent_id(self, team)

    def retention_sizes(self) -> RetentionSizes:
        """Returns the size of Sable as the guider. UserError if heads do not divide the features."""
        scale = self.decay_scale if self.recurrent else None
        return RetentionSizes(*astuple(self.sizes()), decay_scale=scale, gain=SMALL_GAIN)


class Decisions(NamedTuple):
    """What guider and learner say of the actions taken, [.., N] each.

    Attributes:
        guider: log mu(a_i | o, a_1, .., a_{i-1}).
        learner: log pi(a_i | o_i).
        entropy: H of mu.
        learner_entropy: H of pi.
        guider_kl: KL(mu || pi) with a gradient of the guider only.
        learner_kl: The same with a gradient of the learner only.
    """

    guider: Tensor
    learner: Tensor
    entropy: Tensor
    learner_entropy: Tensor
    guider_kl: Tensor
    learner_kl: Tensor


class MAGPOLoss(NamedTuple):
    """Terms of the loss and diagnostics, each []."""

    policy: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor
    value: Tensor
    learner: Tensor
    divergence: Tensor
    learner_entropy: Tensor
    pulled_back: Tensor
    constraint: Tensor


def magpo_loss(
    decisions: Decisions,
    value: Tensor,
    batch: Batch,
    *,
    delta: float,
    clip_eps: float,
    value_clip_eps: float | None,
    huber_delta: float | None,
    reduction: Reduction | None = None,
) -> MAGPOLoss:
    """Computes the terms of the loss of MAGPO.

        guider   L_mu = L_policy + L_constraint - c_H H(mu) + c_V L_value
                 rho          = mu / mu_old
                 rho'         = clip(mu / sg(pi), 1 / delta, delta) sg(pi) / mu_old
                 L_policy     = -mean min(rho A, clip(rho', 1 - eps, 1 + eps) A)
                 L_constraint = mean KL(mu || sg(pi)) [|log mu - log pi| > log delta]
        learner  L_pi = alpha L_learner + L_divergence
                 L_learner    = -mean min(pi / mu_old A, clip(pi / mu_old, 1 - eps, 1 + eps) A)
                 L_divergence = mean KL(sg(mu) || pi)

    sg is without gradient, so that the gradient of L_mu + L_pi is that of both losses at the same parameters. The means
    are over valid entries, and L_value is that of PPO.

    Args:
        decisions: log mu, log pi, entropies and divergences [.., N].
        value: V [.., N, K].
        batch: Log-probabilities log mu_old, old values, advantages A and targets.
        delta: Factor by which mu may differ from pi.
        clip_eps: Clip range eps of the ratios.
        value_clip_eps: Clip range of the value; None for no clipping.
        huber_delta: Error above which the value loss is linear; None for the squared error.
        reduction: Processes whose entries the means are over; None for this one's.

    Source: Li et al. 2026, algorithm 1 and its code.
    """
    valid, advantage = batch.valid, batch.advantage

    def of_valid(x: Tensor) -> Tensor:  # other entries may hold anything, and must not reach exp
        return x if valid is None else torch.where(valid, x, 0.0)

    log_limit = math.log(delta)
    learner = decisions.learner.detach()
    log_ratio, apart = of_valid(decisions.guider - batch.log_prob), of_valid(decisions.guider - learner)
    near = of_valid(learner - batch.log_prob) + apart.clamp(-log_limit, log_limit)
    ratio, clipped = log_ratio.exp(), near.exp().clamp(1 - clip_eps, 1 + clip_eps)
    is_far = (apart.detach().abs() > log_limit).to(apart.dtype)
    learner_loss, _, _ = clipped_policy_loss(
        decisions.learner, batch.log_prob, advantage, valid, clip_eps, reduction=reduction
    )
    value_options: dict[str, Any] = {"clip_eps": value_clip_eps, "huber_delta": huber_delta, "reduction": reduction}
    means = {
        "policy": -torch.minimum(ratio * advantage, clipped * advantage),
        "entropy": decisions.entropy,
        "kl": (ratio - 1 - log_ratio).detach(),
        "clip_fraction": ((ratio.detach() - 1).abs() > clip_eps).to(ratio.dtype),
        "divergence": decisions.learner_kl,
        "learner_entropy": decisions.learner_entropy.detach(),
        "pulled_back": is_far,
        "constraint": decisions.guider_kl * is_far,
    }
    return MAGPOLoss(
        value=clipped_value_loss(value, batch.value, batch.target, batch.critic_valid, **value_options),
        learner=learner_loss,
        **{name: masked_mean(x, valid, reduction) for name, x in means.items()},
    )


class MAGPO(PPO):
    """MAGPO, see the module's description.

    Attributes:
        policy: The learner.
        guider: The policy of the team that collects rollouts.
    """

    Config: ClassVar = MAGPOConfig
    base: ClassVar = "magpo"
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, reward_streams=True, cuda_graphs=True)
    reported: ClassVar = (
        *("loss/policy", "policy/entropy", "policy/kl", "policy/clip_fraction", "loss/value"),
        *("loss/learner", "learner/divergence", "learner/entropy", "policy/pulled_back"),
        *("policy/grad_norm", "learner/grad_norm", "value/grad_norm"),
    )
    config: MAGPOConfig
    actor: SableActor | MATActor
    critic: SableCritic | TokenCritic
    guider: AutoregressivePolicy
    notes = (
        "rollouts are collected by a guider that sees the whole team; evaluation, play and exports take the learner, "
        "whose agents act by their own observations",
    )

    def __init__(self, config: MAGPOConfig, context: AlgorithmContext) -> None:
        if type(self).loss_terms is not PPO.loss_terms:
            raise UserError(
                f"{type(self).__name__}.loss_terms: has no effect in a class derived from MAGPO, whose loss is that of "
                "two policies. Override magpo_terms."
            )
        super().__init__(config, context)

    def _build_policy(self, config: MAGPOConfig, weights: torch.Generator) -> StochasticPolicy:
        network = config.network_config(self.team)
        if network.sees_team:
            raise UserError(
                f"algo.network={config.network}: the agents of the learner act by their own observations. Omit it, or "
                "use algo=sable, whose agents read each other's."
            )
        std: dict[str, Any] = {"state_dependent_std": config.state_dependent_std, "init_std": config.init_std}
        inputs = config.encoder_config(self.team)
        if config.guider == "sable":
            self.actor = SableActor(SableEncoder(self.team, inputs, config.retention_sizes(), weights), weights, **std)
        else:
            sizes = config.sizes()
            self.actor = MATActor(AgentEncoder(self.team, inputs, sizes, weights), sizes, weights, **std)
        self.guider = AutoregressivePolicy(self.team, inputs, self.actor, self.device, order=config.agent_order)
        learner = StochasticPolicy(self.team, network, weights, self.device, **std)
        self._behavior_policy = GuidedPolicy(self.guider, learner)
        return learner

    @property
    def behavior_policy(self) -> GuidedPolicy:
        return self._behavior_policy

    def _unrolled_policy(self) -> GuidedPolicy:
        return self._behavior_policy

    def _build_critic(self, signals: int, weights: torch.Generator) -> nn.Module:
        values = AgentValues(self.team, signals, self.config.sizes(), weights, state_size=self._state.size)
        if isinstance(self.actor, SableActor):
            return SableCritic(self.actor.encoder, values)
        return TokenCritic(self.actor.encoder, values)

    def _trained_modules(self) -> dict[str, nn.Module]:
        return {"policy": self.actor, "learner": self.policy.actor, "value": self.critic}

    def _coefficients(self, progress: float) -> dict[str, float]:
        coefficients = super()._coefficients(progress)
        return coefficients | {"learner": coefficients["policy"]}

    def _critic_first(self, rollout: Rollout) -> Tensor:
        return rollout.first  # the encoder is the critic's and the guider's, and is reset where the guider is

    def read_rollout(self, rollout: Rollout) -> dict[str, Tree]:
        return self._behavior_policy.obs_of_rollout(rollout)

    def _step(
        self, batch: Batch, hidden_state: dict[str, HiddenState], coefficients: Mapping[str, float | Tensor]
    ) -> Tensor:
        """Takes a gradient step with both losses and returns its report [reported]."""
        config = self.config
        # Loss
        terms = self.magpo_terms(*self._evaluate_both(batch, hidden_state), batch)
        guider = terms.policy + terms.constraint - coefficients["entropy"] * terms.entropy
        loss = guider + config.value_coef * terms.value + config.learner_coef * terms.learner + terms.divergence
        # Optimizer step
        grad_norms = self.optimizer.step(loss, coefficients)
        return torch.cat([torch.stack(terms[:-1]).detach(), grad_norms])

    def _evaluate_both(self, batch: Batch, hidden_state: dict[str, HiddenState]) -> tuple[Decisions, Tensor]:
        """Returns what guider and learner say of the actions taken, and values [.., N, K]."""
        view = view_of(batch.obs)
        of_guider, of_learner = self._behavior_policy.hidden_states(hidden_state.get("actor", {}))
        if isinstance(self.actor, SableActor):
            features, encoded, _ = self.actor.decode(batch.obs, batch.action, batch.first, of_guider)
        else:
            encoded = self.actor.encoder(batch.obs)
            features = self.actor.decode(encoded, batch.obs, batch.action)
        guider = self.actor.agent_params(features, order_of(view.place))
        learner = self.policy.actor(batch.obs, batch.first, of_learner)
        parts: list[dict[str, Tensor]] = [{} for _ in Decisions._fields]
        for block in self.policy.blocks:
            spec, action, mask = (
                block.action_spec,
                block.join_actions(batch.action),
                block.join_masks(batch.action_mask),
            )
            mu, pi = guider[block.name], learner[block.name]
            (log_mu, entropy), (log_pi, learner_entropy) = (
                log_prob_and_entropy(spec, params, action, log_std=log_std, mask=mask, kernels=self.kernels)
                for params, log_std in (mu, pi)
            )
            kls = (kl_divergence(spec, *both, mask) for both in ((mu, _fixed(pi)), (_fixed(mu), pi)))
            for part, x in zip(parts, (log_mu, log_pi, entropy, learner_entropy, *kls), strict=True):
                part[block.name] = x
        decisions = Decisions(*(join_blocks(part, self.policy.blocks, -1) for part in parts))
        return decisions, self.critic.values(encoded, view.alive, batch.state)

    def magpo_terms(self, decisions: Decisions, value: Tensor, batch: Batch) -> MAGPOLoss:
        """Returns the terms of the loss on a minibatch, see `magpo_loss`; for subclasses to override."""
        config = self.config
        return magpo_loss(
            decisions,
            value,
            batch,
            delta=config.delta,
            clip_eps=config.clip_eps,
            value_clip_eps=config.value_clip_eps,
            huber_delta=config.huber_delta,
            reduction=self.reduction,
        )

    def start_value_estimation(self, num_envs: int) -> HiddenState:
        hidden_state = self.guider.initial_hidden_state(num_envs)
        return {name: hidden_state[name] for name in (ENCODER, STEP) if hidden_state}

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self.optimizer.for_module("learner", "policy"))

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        """Returns the loss of both policies, since the learner follows the guider, and the learner's matches."""
        loss, matches = self.policy.cloning_loss(batch, options)
        return loss + self.guider.cloning_loss(batch, options)[0], matches

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"guider": self.actor.state_dict()}

    def load_critic(self, state: dict[str, Any]) -> None:
        super().load_critic(state)
        self.actor.load_state_dict(state["guider"])  # the critic reads its encoder


def _fixed(distribution: Distribution) -> Distribution:
    """Returns a distribution without gradients."""
    params, log_std = distribution
    return params.detach(), None if log_std is None else log_std.detach()

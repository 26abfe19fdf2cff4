"""HAPPO and HAA2C: the agents of a team improve one after the other, each with the ratios of those before it.

Simultaneous updates can make a team worse although each of them alone would make it better. Here agents have networks
of their own and are updated in a new random order. The advantages of each are multiplied by the product of the
probability ratios of the agents before it, so that they are those of its teammates' new policies. HAA2C is the case of
one gradient step per short rollout, in which the agent's own ratio is 1 and is not clipped.

Sources: Kuba et al. 2022 (HAPPO), Zhong et al. 2024 (HAA2C).
Differences: all agents and the critic pass over the same minibatches; the critic has one output per agent, as in MAPPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext, Capabilities
from coterie.algos.clipped_learner import Samples
from coterie.algos.ppo import PPO, Batch, PPOConfig
from coterie.algos.sequences import split_into_sequences
from coterie.algos.sequential import (
    Agent,
    create_agents,
    in_random_order,
    load_optimizer_states,
    optimizer_states,
    require_own_body,
    require_own_networks,
)
from coterie.config.needs import SEVERAL
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator, restore
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, register_pytree
from coterie.core.types import Action, HiddenState, Rollout
from coterie.functional.policy_gradient import clipped_policy_loss, clipped_value_loss
from coterie.functional.returns import terminate_at_limit, valid_mask
from coterie.functional.statistics import Reduction, masked_mean, masked_moments, standardize
from coterie.nets.config import BodyKind, ModuleFactory, NetworkConfig, ShareParams
from coterie.nets.single_agent import SingleAgentActor
from coterie.nets.stochastic_actor import StochasticActor

declare(
    Metric(
        "policy/effective_samples",
        "share",
        "effective sample size of the factors of the last agent's advantages; 1: the other agents did not change",
        better=None,
        combine="mean",
    ),
)


class HAPPOConfig(PPOConfig):
    """Settings of HAPPO and HAA2C."""

    critic: Literal["joint", "state", "joint_state", "global"] = "joint"
    """Input of the critic: the joint observation of the team, the environment's state, both (joint_state), or the
    observations of all teams (global).
    """
    share_params: Annotated[ShareParams, SEVERAL] = "none"
    """Agents have networks of their own (none), since the update of one must leave the others' policies unchanged."""
    common_reward: Annotated[bool, SEVERAL] = True
    """Agents learn from the mean reward of the team, for which improvement is guaranteed; false: from their own."""

    # Networks of one agent, and a critic that evaluates all agents together, read no ids.
    obs_agent_id: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    critic_agent_id: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]

    def network_config(self, team: TeamSpec) -> NetworkConfig:
        """Raises UserError if agents are to share parameters."""
        require_own_networks(self.share_params, instead="mappo")
        return super().network_config(team)

    def critic_network_config(self, team: TeamSpec, *, per_agent: bool = True) -> NetworkConfig:
        network = super().critic_network_config(team, per_agent=per_agent)
        return replace(network, share_params="role") if network.reads_view else network

    def _body(self, name: str | None, setting: str) -> ModuleFactory | BodyKind | None:
        body = super(HAPPOConfig, self.model_copy(update={"share_params": "role"}))._body(name, setting)
        if setting == "algo.network":
            require_own_body(body, name, instead="mappo")
        return body


@register_pytree
@dataclass(frozen=True)
class AgentBatch:
    """Training data of one agent: timesteps [M, 1, ..], or sequences [L, M, 1, ..]."""

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    action: dict[str, Action]
    log_prob: Tensor
    """Log-probabilities under the policy that collected the rollout [.., 1]."""
    advantage: Tensor
    factor: Tensor
    """Product of the ratios of the agents that were updated before [.., 1]."""
    valid: Tensor | None
    """[.., 1] bool, entries that the agent learns from; None: all."""
    first: Tensor | None


class HAPPOLoss(NamedTuple):
    """Terms of an agent's loss and diagnostics, each []."""

    policy: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor


def happo_loss(
    log_prob: Tensor,
    entropy: Tensor,
    batch: AgentBatch,
    *,
    clip_eps: float,
    kernels: bool = False,
    reduction: Reduction | None = None,
) -> HAPPOLoss:
    """Computes the terms of an agent's loss, L = L_policy - c_H H.

        rho      = pi(a | o) / pi_old(a | o)
        L_policy = -mean M min(rho A, clip(rho, 1 - eps, 1 + eps) A)

    The means are over valid entries. M is the product of the ratios of the agents before this one, which is not below
    0, so that it can multiply A. With rho = 1 the gradient is that of HAA2C, -mean M A grad log pi.

    Args:
        log_prob: log pi(a | o) [.., 1].
        entropy: H, entropy of pi(. | o) [.., 1].
        batch: Old log-probabilities, advantages A and factors M.
        clip_eps: Clip range of the ratio.
        kernels: Compute terms by fused kernels where there are some.
        reduction: Processes whose entries the means are over; None for this one's.

    Sources: Kuba et al. 2022, eq. 11; Zhong et al. 2024, section 4.
    """
    policy, kl, clip_fraction = clipped_policy_loss(
        log_prob,
        batch.log_prob,
        batch.factor * batch.advantage,
        batch.valid,
        clip_eps=clip_eps,
        kernels=kernels,
        reduction=reduction,
    )
    return HAPPOLoss(policy, masked_mean(entropy, batch.valid, reduction), kl, clip_fraction)


def joint_ratio(factor: Tensor, log_prob: Tensor, old_log_prob: Tensor, valid: Tensor) -> Tensor:
    """Returns the factor of the next agent, M pi(a | o) / pi_old(a | o) [.., 1]; the ratio is 1 where not valid.

    Args:
        factor: M, product of the ratios of the agents before [.., 1].
        log_prob: Log-probabilities after the agent's update [.., 1].
        old_log_prob: Log-probabilities before its update [.., 1].
        valid: [.., 1] bool, True where the agent acted.

    Source: Kuba et al. 2022, algorithm 4.
    """
    return factor * torch.where(valid, log_prob - old_log_prob, 0.0).exp()


class HAPPO(PPO):
    """HAPPO and HAA2C, see the module's description. The loop over agents is sequential by nature."""

    Config: ClassVar = HAPPOConfig
    base: ClassVar = "happo"
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, reward_streams=True)
    reported: ClassVar = ("loss/policy", "policy/entropy", "policy/kl", "policy/clip_fraction", "policy/grad_norm")

    def __init__(self, config: HAPPOConfig, context: AlgorithmContext) -> None:
        if type(self).loss_terms is not PPO.loss_terms:
            raise UserError(
                f"{type(self).__name__}.loss_terms: has no effect in a class derived from HAPPO, whose agents have "
                "losses of their own. Override agent_terms."
            )
        super().__init__(config, context)
        self._order = generator(context.seed, "agents")
        options: dict[str, Any] = {"weight_decay": config.weight_decay, "ranks": self.ranks}
        self._critic_optimizer = self.optimizer.for_module("value", **options)
        actors = [(block, SingleAgentActor(self.policy.actor, self.team, block)) for block in self.policy.blocks]
        self._agents: list[Agent] = create_agents(actors, config, ranks=self.ranks)
        self._critic_step_function = self._traced(
            self._critic_step, optimizers=(self._critic_optimizer,), modules=(self.critic,)
        )
        self._agent_steps = [
            self._traced(partial(self._agent_step, agent), optimizers=(agent.optimizer,), modules=(agent.actor.module,))
            for agent in self._agents
        ]

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        coefficients = self._coefficients(progress)
        # Targets
        samples, extra = self._samples(rollout, progress)
        acted = valid_mask(rollout)
        acted = acted.flatten(0, 1) if self._length is None else split_into_sequences(acted, self._length)
        # Agents in a new order
        draws = self._shuffle.get_state()  # of minibatches, which are the same for all agents and the critic
        factor, reports, passes = torch.ones_like(samples.batch.advantage[..., :1]), [], []
        *others, last = self._agents_in_order(acted)
        for agent in (*others, last):
            self._shuffle.set_state(draws)
            batch, hidden_state = self._samples_of(agent, samples, factor)
            with agent.actor.of(agent.inside) as actor:
                before = None if agent is last else self._log_prob(actor, batch, hidden_state)
                found, count = self._improve(agent, batch, hidden_state, samples.candidates, coefficients)
                reports, passes = [*reports, *found], [*passes, count]
                if before is not None:
                    after, own = self._log_prob(actor, batch, hidden_state), slice(agent.index, agent.index + 1)
                    factor = joint_ratio(factor, after, before, acted[..., own])
        # Critic
        self._shuffle.set_state(draws)
        critic_reports, _ = self._train(
            lambda: self._minibatches(samples.batch, samples.hidden_states, samples.candidates),
            lambda minibatch: self._critic_step_function(minibatch, coefficients),
        )
        # Metrics
        self._observe(rollout)
        self._updates += 1
        extra = extra | {
            "policy/effective_samples": effective_samples(factor, acted.any(-1, keepdim=True), self.reduction)
        }
        metrics = self._mean_metrics(reports, self.reported, extra)
        metrics |= self._mean_metrics(critic_reports, ("loss/value", "value/grad_norm"))
        return metrics | self._settings_in_use(coefficients, sum(passes) / len(passes))

    def normalized(self, advantage: Tensor, valid: Tensor) -> Tensor:
        """Returns advantages [T, B, N] with mean 0 and variance 1 over the valid entries of each agent."""
        agents = zip(advantage.split(1, -1), valid.split(1, -1), strict=True)
        return torch.cat([standardize(own, own_valid, self.reduction) for own, own_valid in agents], -1)

    def agent_terms(self, log_prob: Tensor, entropy: Tensor, batch: AgentBatch) -> HAPPOLoss:
        """Returns the terms of an agent's loss on a minibatch, see `happo_loss`; for subclasses to override.

        The step descends L_policy - c_H H.

        Args:
            log_prob: log pi(a | o) [.., 1].
            entropy: Entropy of pi(. | o) [.., 1].
            batch: Old log-probabilities, advantages, factors, and the valid entries that means are over.
        """
        config = self.config
        return happo_loss(
            log_prob,
            entropy,
            batch,
            clip_eps=config.clip_eps,
            kernels=self.kernels,
            reduction=self.reduction,
        )

    def _settings_in_use(self, coefficients: Mapping[str, float], epochs: float) -> dict[str, float]:
        """Returns metrics of the settings that this update used, `epochs` passes per agent among them."""
        lr, entropy_coef = coefficients["policy"], coefficients["entropy"]
        return {"policy/lr": lr, "policy/entropy_coef": entropy_coef, "policy/epochs": epochs}

    def _agents_in_order(self, acted: Tensor) -> list[Agent]:
        """Returns the agents in a new random order, without those that never acted in the rollout.

        Args:
            acted: [.., N] bool.
        """
        order = in_random_order(self._agents, self._order)
        if not self.team.agents_can_die:
            return order
        ever = (self.ranks.mean(acted.flatten(0, -2).any(0).float()) > 0).tolist()
        return [agent for agent in order if ever[agent.index]] or order

    def _samples_of(self, agent: Agent, samples: Samples, factor: Tensor) -> tuple[AgentBatch, dict[str, HiddenState]]:
        """Returns the training data of an agent, and its hidden states as `actor`; {} for timesteps."""
        batch, axis = samples.batch, samples.batch.log_prob.ndim - 1
        own = AgentBatch(
            obs=agent.of_role(batch.obs, axis),
            action_mask=agent.of_role(batch.action_mask, axis),
            action=agent.of_role(batch.action, axis),
            log_prob=agent.of_team(batch.log_prob, axis),
            advantage=agent.of_team(batch.advantage, axis),
            factor=factor,
            valid=agent.of_team(batch.valid, axis),
            first=agent.of_team(batch.first, axis),
        )
        hidden_state = agent.of_team(samples.hidden_states.get("actor", {}), 1)
        return own, {"actor": hidden_state} if hidden_state else {}

    def _improve(
        self,
        agent: Agent,
        batch: AgentBatch,
        hidden_state: dict[str, HiddenState],
        candidates: Tensor,
        coefficients: Mapping[str, float],
    ) -> tuple[list[Tensor], int]:
        """Improves the policy of an agent, whose turn it is.

        Args:
            agent: The agent.
            batch: Its samples.
            hidden_state: Its hidden states before sequences as `actor`; {} for timesteps.
            candidates: Indices of the samples to draw from.
            coefficients: See `_coefficients`.

        Returns:
            Reports of steps [reported], and the number of passes over the samples.
        """
        return self._train(
            lambda: self._minibatches(batch, hidden_state, candidates),
            lambda minibatch: self._agent_steps[agent.index](minibatch, coefficients),
            self.config.target_kl,
        )

    def _agent_step(
        self,
        agent: Agent,
        minibatch: tuple[AgentBatch, dict[str, HiddenState]],
        coefficients: Mapping[str, float | Tensor],
    ) -> Tensor:
        """Takes a gradient step of an agent and returns its report [5]."""
        batch, hidden_state = minibatch
        # Loss
        log_prob, entropy = agent.actor.module.evaluate(
            batch.obs, batch.action_mask, batch.action, first=batch.first, hidden_state=hidden_state.get("actor", {})
        )
        terms = self.agent_terms(log_prob, entropy, batch)
        # Optimizer step
        grad_norm = agent.optimizer.step(terms.policy - coefficients["entropy"] * terms.entropy, coefficients)
        return torch.cat([torch.stack(terms).detach(), grad_norm])

    def _critic_step(
        self, minibatch: tuple[Batch, dict[str, HiddenState]], coefficients: Mapping[str, float | Tensor]
    ) -> Tensor:
        """Takes a gradient step of the critic and returns its report [2]."""
        config, (batch, hidden_state) = self.config, minibatch
        # Loss
        value, _ = self.critic(batch.obs, batch.state, batch.critic_first, hidden_state.get("critic", {}))
        loss = clipped_value_loss(
            value,
            batch.value,
            batch.target,
            batch.critic_valid,
            clip_eps=config.value_clip_eps,
            huber_delta=config.huber_delta,
            kernels=self.kernels,
            reduction=self.reduction,
        )
        # Optimizer step
        grad_norm = self._critic_optimizer.step(config.value_coef * loss, coefficients)
        return torch.cat([loss.detach().unsqueeze(0), grad_norm])

    @torch.no_grad()
    def _log_prob(self, actor: StochasticActor, batch: AgentBatch, hidden_state: dict[str, HiddenState]) -> Tensor:
        """Returns log-probabilities of an agent's actions in all samples [.., 1]."""
        inputs = (batch.obs, batch.action_mask, batch.action)
        return actor.evaluate(*inputs, first=batch.first, hidden_state=hidden_state.get("actor", {}))[0]

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._critic_optimizer.state_dict() | {"agents": optimizer_states(self._agents, self.team)}
        return super().state_dict() | {"optimizer": optimizer, "order": self._order.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state | {"optimizer": {"policy": {}, "value": {}}})
        self._critic_optimizer.load_state_dict(state["optimizer"])
        load_optimizer_states(self._agents, self.team, state["optimizer"]["agents"])
        restore(self._order, state["order"])


def effective_samples(weight: Tensor, valid: Tensor, reduction: Reduction | None = None) -> Tensor:
    """Returns the effective sample size of weighted samples as a share of their number [], (mean w)^2 / mean w^2.

    Args:
        weight: w, any shape.
        valid: The same shape, bool.
        reduction: Processes whose entries the means are over; None for this one's.

    Source: Kish 1965, section 11.7.
    """
    mean, variance = masked_moments(weight, valid, reduction)
    square = mean.square()
    return square / (square + variance).clamp(min=1e-30)

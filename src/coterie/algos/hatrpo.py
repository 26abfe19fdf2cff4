"""HATRPO: trust regions for one agent after the other.

An agent's step is the one that raises the surrogate most within a KL divergence from its old policy, as far as the
second-order model of this divergence goes. It is shortened until the divergence itself is small enough and the
surrogate rises. The order of agents and the factors of their advantages are those of HAPPO.

Sources: Kuba et al. 2022 (HATRPO), Schulman et al. 2015 (TRPO).
Differences: the KL divergence is the exact one of the distributions. The Fisher information is multiplied by
derivatives in forward mode and a gradient, which works for all networks. The critic is trained as in HAPPO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.happo import HAPPO, AgentBatch, HAPPOConfig
from coterie.algos.sequential import Agent
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.types import HiddenState
from coterie.functional.policy_gradient import log_prob_and_entropy
from coterie.functional.statistics import Reduction, masked_mean
from coterie.functional.trust_region import Distribution, conjugate_gradient, fisher_product, kl_divergence
from coterie.nets.single_agent import tangent

declare(
    Metric("policy/improvement", "", "rise of the surrogate by an agent's step", better="up", combine="mean"),
    Metric(
        "policy/step_fraction",
        "share",
        "fraction of the largest step that the line search accepted; 0 if it accepted none",
        better=None,
        combine="mean",
    ),
)


class HATRPOConfig(HAPPOConfig):
    """Settings of HATRPO."""

    max_kl: float = Field(0.02, gt=0, le=10**6)
    """Largest mean KL divergence in nats of an agent's policy from the one before its step."""
    entropy_coef: float = Field(0.0, ge=0, le=10**6)
    cg_iterations: int = Field(10, ge=1, le=10_000)
    """Iterations of conjugate gradients, each a product with the Fisher information."""
    cg_damping: float = Field(0.1, ge=0, le=10**6)
    """Added to the diagonal of the Fisher information."""
    line_search_steps: int = Field(10, ge=1, le=1000)
    """Step sizes that the line search tries before it keeps the old policy."""
    line_search_decay: float = Field(0.8, gt=0, lt=1)
    """Each step size that is tried as a fraction of the one before."""
    accept_ratio: float = Field(0.5, ge=0, lt=1)
    """Smallest rise of the surrogate that is accepted, as a fraction of what its gradient predicts."""
    lr: float = Field(1e-3, gt=0, lt=1)
    """Learning rate of the critic. The size of the agents' steps follows from `max_kl`."""
    # There is one learning rate, and neither clipping nor passes that could end early.
    critic_lr: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    target_kl: ClassVar[None] = None  # pyright: ignore[reportIncompatibleVariableOverride]
    clip_eps: ClassVar[float] = 0.2  # pyright: ignore[reportIncompatibleVariableOverride]
    epochs: int = Field(5, ge=1, le=1000)
    """Passes of the critic over each rollout. Agents take one step on all of it."""
    num_minibatches: int | None = Field(None, ge=1, le=10_000)
    """Minibatches per pass of the critic; null: 4, or one per sequence if a rollout has fewer."""


class Surrogate(NamedTuple):
    """An agent's objective, its parts and the KL divergence, each []."""

    objective: Tensor
    surrogate: Tensor
    entropy: Tensor
    kl: Tensor


def hatrpo_objective(
    log_prob: Tensor,
    entropy: Tensor,
    divergence: Tensor,
    batch: AgentBatch,
    entropy_coef: float,
    reduction: Reduction | None = None,
) -> Surrogate:
    """Computes what an agent maximizes, J + c H, and the divergence that bounds its step.

        J = mean M pi(a | o) / pi_old(a | o) A

    The means are over valid entries. M is the product of the ratios of the agents that were updated before.

    Args:
        log_prob: log pi(a | o) [.., 1].
        entropy: H, entropy of pi(. | o) [.., 1].
        divergence: KL divergence from the policy before the step [.., 1].
        batch: Old log-probabilities, advantages A and factors M.
        entropy_coef: c, weight of the entropy.
        reduction: Processes whose entries the means are over; None for this one's.

    Source: Kuba et al. 2022, eq. 9.
    """
    log_ratio = log_prob - batch.log_prob
    if batch.valid is not None:
        log_ratio = torch.where(batch.valid, log_ratio, 0.0)
    gains = log_ratio.exp() * (batch.factor * batch.advantage)
    surrogate, mean_entropy, kl = (masked_mean(x, batch.valid, reduction) for x in (gains, entropy, divergence))
    return Surrogate(surrogate + entropy_coef * mean_entropy, surrogate, mean_entropy, kl)


class HATRPO(HAPPO):
    """HATRPO, see the module's description."""

    Config: ClassVar = HATRPOConfig
    base: ClassVar = "hatrpo"
    reported: ClassVar = (
        *("loss/policy", "policy/entropy", "policy/kl", "policy/grad_norm"),
        *("policy/improvement", "policy/step_fraction"),
    )
    config: HATRPOConfig

    def __init__(self, config: HATRPOConfig, context: AlgorithmContext) -> None:
        if type(self).agent_terms is not HAPPO.agent_terms:
            raise UserError(
                f"{type(self).__name__}.agent_terms: has no effect in a class derived from HATRPO, which has no "
                "clipped loss. Derive it from coterie.algos.happo.HAPPO."
            )
        super().__init__(config, context)

    def _improve(
        self,
        agent: Agent,
        batch: AgentBatch,
        hidden_state: dict[str, HiddenState],
        candidates: Tensor,
        coefficients: Mapping[str, float],
    ) -> tuple[list[Tensor], int]:
        whole = self._minibatches(batch, hidden_state, candidates, 1)
        return [self._trust_region_step(agent, *part, coefficients["entropy"]) for part in whole], 1

    def _settings_in_use(self, coefficients: Mapping[str, float], epochs: float) -> dict[str, float]:
        return {"policy/entropy_coef": coefficients["entropy"]}

    def _trust_region_step(
        self, agent: Agent, batch: AgentBatch, hidden_state: dict[str, HiddenState], entropy_coef: float
    ) -> Tensor:
        """Takes the step of an agent on all its samples and returns its report [6]."""
        config, weights = self.config, agent.optimizer.flat["policy"]
        problem = AgentProblem(
            agent,
            batch,
            hidden_state.get("actor", {}),
            entropy_coef=entropy_coef,
            damping=config.cg_damping,
            reduction=self.reduction,
            average=self.ranks.mean,
        )
        # Direction, and the size at which the model of the KL divergence is the target
        slope = problem.gradient(problem.start.objective)
        direction = conjugate_gradient(problem.fisher, slope, config.cg_iterations)
        curvature = direction.dot(problem.fisher(direction)).clamp(min=1e-12)
        step = (2 * config.max_kl / curvature).sqrt() * direction
        predicted, before = slope.dot(step), problem.averaged(problem.start)
        # Line search, which reads on the host if a step is accepted
        old, fraction, after = weights.clone(), 1.0, before
        for _ in range(config.line_search_steps):
            weights.copy_(old + fraction * step)
            after = problem.evaluate()
            rise = after.objective - before.objective
            enough = rise >= config.accept_ratio * fraction * predicted
            if bool((after.kl <= config.max_kl) & (rise > 0) & enough):
                break
            fraction *= config.line_search_decay
        else:
            weights.copy_(old)
            fraction, after = 0.0, before
        rise = after.objective - before.objective
        report = (-after.surrogate, after.entropy, after.kl, slope.norm(), rise, weights.new_full((), fraction))
        return torch.stack(report)


class AgentProblem:
    """The objective of an agent on its samples, and its derivatives at the policy before the step.

    Args:
        agent: The agent, whose turn it is.
        batch: Its samples.
        hidden_state: Its hidden state before sequences; {} for timesteps.
        entropy_coef: Weight of the entropy.
        damping: Added to the diagonal of the Fisher information.
        reduction: Processes whose samples the means are over; None for this one's.
        average: Averages a tensor over these processes.

    Attributes:
        start: The objective before the step, with gradients, this process's part of it.
    """

    def __init__(
        self,
        agent: Agent,
        batch: AgentBatch,
        hidden_state: HiddenState,
        *,
        entropy_coef: float,
        damping: float,
        reduction: Reduction | None,
        average: Callable[[Tensor], Tensor],
    ):
        self._actor, self._spec, self._role = agent.actor.module, agent.block.action_spec, agent.block.name
        self._batch, self._entropy_coef, self._damping = batch, entropy_coef, damping
        self._reduction, self._average = reduction, average
        self._inputs = (batch.obs, batch.first, hidden_state)
        self._mask = batch.action_mask.get(self._role)
        self._parameters = dict(self._actor.named_parameters())
        params, log_std = self._actor(*self._inputs)[self._role]
        self._distribution: Distribution = params, log_std
        self._old: Distribution = params.detach().clone(), None if log_std is None else log_std.detach().clone()
        self.start = self._objective(self._distribution)

    @torch.no_grad()
    def evaluate(self) -> Surrogate:
        """Returns the objective with the present parameters, over the samples of all processes."""
        return self.averaged(self._objective(self._actor(*self._inputs)[self._role]))

    def averaged(self, part: Surrogate) -> Surrogate:
        """Returns the objective over the samples of all processes, from this one's part of it, without gradients."""
        return Surrogate(*self._average(torch.stack(part).detach()))

    def gradient(self, of: Tensor) -> Tensor:
        """Returns the gradient of a number [] by all parameters [P], averaged over processes."""
        parts = torch.autograd.grad(of, [*self._parameters.values()], retain_graph=True, materialize_grads=True)
        return self._average(torch.cat([x.reshape(-1) for x in parts]))

    def fisher(self, v: Tensor) -> Tensor:
        """Returns (F + damping) v [P] of v [P], with the Fisher information F of the policy before the step.

            F = mean J^T H J

        J are the derivatives of a distribution's parameters by those of the network, H its Fisher information.
        """
        sizes = [p.numel() for p in self._parameters.values()]
        parts = zip(self._parameters.items(), v.split(sizes), strict=True)
        change = tangent(self._actor, self._inputs, {name: part.view_as(p) for (name, p), part in parts})[self._role]
        product = fisher_product(self._spec, self._old, change, self._mask)
        (params, log_std), (of_params, of_log_std) = self._distribution, product
        inner = (params * of_params).sum(-1)
        if log_std is not None and of_log_std is not None:
            inner = inner + (log_std * of_log_std).sum(-1)
        return self.gradient(masked_mean(inner, self._batch.valid, self._reduction)) + self._damping * v

    def _objective(self, distribution: Distribution) -> Surrogate:
        params, log_std = distribution
        action, batch = self._batch.action[self._role], self._batch
        log_prob, entropy = log_prob_and_entropy(self._spec, params, action, log_std=log_std, mask=self._mask)
        divergence = kl_divergence(self._spec, self._old, distribution, self._mask)
        return hatrpo_objective(log_prob, entropy, divergence, batch, self._entropy_coef, reduction=self._reduction)

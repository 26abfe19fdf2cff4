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
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from coterie.algos.algorithm import AlgorithmContext, Capabilities, CloningOptimizer
from coterie.algos.base_config import LAYERS, Derived, OffPolicyConfig, RunFacts, Units
from coterie.algos.graphed import StepResult
from coterie.algos.off_policy import OffPolicyLearner
from coterie.algos.optimizer import Optimizer, TargetNetwork, scheduled
from coterie.algos.recurrent_q import Inputs, RecurrentReader
from coterie.algos.replay.buffer import ReplaySample, timesteps_of, with_one_successor
from coterie.algos.replay.prioritized import sequence_error
from coterie.algos.team_q import Discount, TeamQConfig, TeamQLearner, build_policy
from coterie.algos.weighted_qmix import CentralQ, weighted_td_loss
from coterie.config.needs import Needs
from coterie.core.errors import UserError
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.tree import tree_map
from coterie.core.types import Rollout, Timestep
from coterie.functional.returns import (
    bootstrap_step,
    lambda_return,
    n_step_return,
    present_successors,
    team_bootstrap_masks,
    terminate_at_limit,
)
from coterie.functional.statistics import Reduction, masked_mean, masked_sum, valid_count
from coterie.nets.config import CentralInputs, LayerNormKind
from coterie.nets.joint_actions import JointAction
from coterie.nets.mixers import Choices, TeamQNetwork, UnrestrictedMixer, taken_actions
from coterie.nets.team import CentralEncoder
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy


class QLearningConfig(OffPolicyConfig, TeamQConfig):
    """Settings of DDQN, IQL, VDN, QMIX, QPLEX and weighted QMIX."""

    lr: float = Field(1e-3, gt=0, lt=1)
    gamma: Discount = None
    hidden_sizes: Annotated[tuple[Units, ...], Needs(LAYERS[0])] = Field((128, 128), min_length=1)
    layer_norm: LayerNormKind | None = None
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to hidden
    layers, before their activation (hidden). null: hidden without a recurrent layer where the step limit is 50 or more,
    or unknown; else false.
    """
    weighting: Literal["none", "optimistic", "central"] = "none"
    """Weighted QMIX: reduces the loss of joint actions that are not underestimated to `weighting_alpha`, by the
    optimistic (OW) or the centrally weighted (CW) rule.
    """
    weighting_alpha: Annotated[float, Needs("weighting!=none")] = Field(0.5, gt=0, le=1)
    """Weight of those joint actions."""
    double_q: bool = True
    """Select the next action by the online network and evaluate it by the target network."""
    td_lambda: float | None = Field(None, ge=0, le=1)
    """Lambda of TD(lambda) targets along a sequence, which has `n_step` steps without recurrent layer; null: n-step
    targets.
    """

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.layer_norm is None and self.network in (None, "mlp"):
            is_long, reason = self._long_episodes(run)
            found["layer_norm"] = Derived("hidden" if is_long else False, reason)
        return found


def require_q_learning(config: QLearningConfig) -> None:
    """Raises UserError if settings of Q-learning with replay contradict each other."""
    if config.td_lambda is not None and not config.recurrent and config.n_step == 1:
        raise UserError(
            f"algo.td_lambda={config.td_lambda}: has no effect on sequences of one step. Set algo.n_step=5, for "
            f"example, or omit it."
        )
    if config.weighting != "none" and config.mixer != "qmix" and ":" not in config.mixer:
        raise UserError(f"algo.weighting={config.weighting}: requires QMIX. Set algo.mixer=qmix.")


def build_central(
    config: QLearningConfig, team: TeamSpec, inputs: CentralInputs, draw: torch.Generator, device: torch.device
) -> TeamQNetwork:
    """Returns Q* of weighted QMIX: agent networks of its own and an unrestricted mixer; arguments as above."""
    encoder = CentralEncoder(team, inputs, draw)
    mixer = UnrestrictedMixer(team.n, encoder.features, 4 * config.hypernet_embed_dim, draw)
    return TeamQNetwork(build_policy(config, team, draw, device).net, mixer, encoder, JointAction(team, device))


METRICS = ("loss/td", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")
"""Metrics of a gradient step."""


Q = dict[str, Tensor]
"""Q-values of all choices by block [T, S, n, A]."""


def td_loss(
    q: Tensor, target: Tensor, valid: Tensor, weight: Tensor, huber_delta: float | None, *,
    reduction: Reduction | None = None,
) -> Tensor:  # fmt: skip
    """Temporal-difference loss of Q-learning.

        L = sum valid w l(Q - y) / sum valid,    l(e) = e^2 / 2, linear beyond |e| = huber_delta

    With a mixer, Q and y are those of the team. Source: Mnih et al. 2015; Rashid et al. 2018, eq. 6, for QMIX.

    Args:
        q: Q of the actions taken [T, S] or [T, S, N].
        target: y, the same shape, without gradient.
        valid: bool, the same shape, the entries that are learned from.
        weight: w, importance weights of the sequences [S].
        huber_delta: Error beyond which the loss is linear; None for the squared error.
        reduction: Processes whose entries the mean is over; None for this one's.

    Returns:
        The loss [].
    """
    if huber_delta is None:
        error = 0.5 * (q - target).square()
    else:
        error = functional.huber_loss(q, target, reduction="none", delta=huber_delta)
    return masked_mean(error * weight.view(1, -1, *[1] * (error.ndim - 2)), valid, reduction)


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

    Args:
        policy: The policy, which normalizes observations.
        bootstraps_once: True if a target bootstraps from one timestep only, which is the same for all agents.
    """

    def __init__(self, policy: EpsilonGreedyPolicy, bootstraps_once: bool):
        self._policy, self._bootstraps_once = policy, bootstraps_once

    def start(self, rollout: Rollout) -> tuple[Rollout, dict[str, Inputs], dict[str, Inputs]]:
        """Returns the timesteps that are read, and the inputs of online and target networks, by name.

        If targets bootstrap once, these are the first timestep and the one that its target bootstraps from.
        """
        if self._bootstraps_once:
            _, boundary = team_bootstrap_masks(rollout, self._policy.team.agents_can_die)
            rollout = with_one_successor(rollout, bootstrap_step(boundary))
        obs = self._policy.obs_normalizer.of_rollout(rollout)
        inputs: dict[str, Inputs] = dict.fromkeys(("value", "central"), (obs, None, {}, None))
        return rollout, inputs, inputs

    def online(self, value: TeamQNetwork, inputs: Inputs) -> tuple[Q, Q]:
        """Returns Q of the timesteps to learn from, and of all successors without gradient."""
        with torch.no_grad():
            next_q = self.successors(value, inputs)
        return self.learned(value, inputs), next_q

    def learned(self, value: TeamQNetwork, inputs: Inputs) -> Q:
        """Returns Q of the timesteps to learn from."""
        return value.net(tree_map(lambda x: x[:1], inputs[0]), None, {}, None)[0]

    def successors(self, value: TeamQNetwork, inputs: Inputs) -> Q:
        """Returns Q of all timesteps but the first."""
        return value.net(tree_map(lambda x: x[1:], inputs[0]), None, {}, None)[0]


class QLearning(OffPolicyLearner, TeamQLearner):
    """Q-learning with one of several mixers, see the module."""

    Config: ClassVar = QLearningConfig
    base: ClassVar = "qmix"
    capabilities: ClassVar = Capabilities(
        actions=frozenset({"discrete", "multi_discrete"}),
        images=True,
        off_policy=True,
        cuda_graphs=True,
        eval_mode="greedy",
    )

    def __init__(self, config: QLearningConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        super().__init__(config, context)
        self.config, team, device = config, context.team, context.device
        require_q_learning(config)
        draw = generator(context.seed, "weights")
        inputs = self._create_value(config, context, draw)
        parts = {"value": self.value}
        if config.weighting != "none":
            parts["central"] = build_central(config, team, inputs, draw, device=device)
        self.module = nn.ModuleDict(parts).to(device)
        self._optimizer = Optimizer({"value": self.module}, *config.adam_settings, ranks=self.ranks)
        self.target = TargetNetwork(self.module, config.tau, config.target_update_interval)
        targets: dict[str, TeamQNetwork] = dict(self.target.module.items())  # pyright: ignore[reportCallIssue]
        self.target_value = targets["value"]
        assert config.n_step is not None  # derived
        assert config.gamma is not None
        self._gamma = config.gamma
        of_whole_sequence = config.n_step > 1 and config.td_lambda is None and not config.recurrent
        is_own = type(self).targets is QLearning.targets
        # Returns of independent learners end one by one, at deaths or at the next life.
        self._bootstraps_once = of_whole_sequence and is_own and (self._mixes or not team.agents_can_die)
        self.reader = (
            RecurrentReader(self.policy, config.burn_in, parts, targets)
            if config.recurrent
            else FeedForwardReader(self.policy, self._bootstraps_once)
        )
        self._central = None
        if "central" in parts:
            rule, alpha = config.weighting, config.weighting_alpha
            self._central = CentralQ(
                parts["central"], targets["central"], self.reader, evaluate=self.evaluate, greedy=self._greedy,
                rule=rule, alpha=alpha,
            )  # fmt: skip
        self._create_buffer(config, context, config.n_step, self._state.names)
        self._create_step(self._step, (self._optimizer,), (self.module, *self._state.networks), (self.target,))

    # --------------------------------------------------------------------------------------------------- the update

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        self._add(rollout)
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        metrics, reports = {"policy/epsilon": self.policy.epsilon, "policy/lr": lr}, []
        for sample in self._samples(progress):
            reports += self._learn(sample, {"value": lr})
        if reports:
            metrics |= self._mean_metrics(reports, METRICS, self._scale_metrics())
        return metrics | self._replay_metrics()

    def _add(self, rollout: Rollout) -> None:
        """Adds a rollout to the replay buffer; updates epsilon and statistics."""
        self._steps += self.buffer.add(rollout)
        self._decay_epsilon(self._steps)
        self._observe(rollout)
        self._add_rewards(*self._rewards(rollout))

    def _step(self, sample: ReplaySample, lr: Mapping[str, float | Tensor]) -> StepResult:
        """Takes a gradient step; `lr` is the learning rate by module."""
        batch = self.evaluate_batch(sample.rollout)
        loss = self.loss(batch, sample.weight)
        grad_norm = self._optimizer.step(loss, lr)
        self.target.update()
        return self._report(batch, loss, grad_norm)

    def evaluate_batch(self, rollout: Rollout) -> QBatch:
        """Returns the Q-values of the actions taken and their targets, from sequences [T + 1, S, ..]."""
        read, inputs, target_inputs = self.reader.start(rollout)
        rollout = rollout if self._bootstraps_once else read
        q, next_q = self.reader.online(self.value, inputs["value"])
        timesteps, (reward, valid) = timesteps_of(read), self._rewards(rollout)
        with torch.no_grad():
            next_value = self._next_value(read, timesteps, next_q=next_q, inputs=target_inputs)
            target = self.targets(rollout, reward, next_value.expand(len(reward), *next_value.shape[1:]))
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

    def _next_value(self, rollout: Rollout, timesteps: Timestep, *, next_q: Q, inputs: dict[str, Inputs]) -> Tensor:
        """Returns the value of the next greedy actions by the target networks, [T, S, N] or [T, S]."""
        config = self.config
        next_timesteps = replace(tree_map(lambda x: x[1:], timesteps), alive=present_successors(rollout))
        next_target_q = self.reader.successors(self.target_value, inputs["value"])
        actions = self._greedy(next_q if config.double_q else next_target_q, next_timesteps)
        if self._central is None:
            return self.evaluate(self.target_value, next_target_q, actions, next_timesteps)
        return self._central.next_value(inputs["central"], actions, next_timesteps)

    def targets(self, rollout: Rollout, reward: Tensor, next_value: Tensor) -> Tensor:
        """Returns the targets of all steps, n-step or lambda-returns; for subclasses to override.

        With a mixer, rewards, values and targets are those of the team [T, S], else of each agent [T, S, N]. It is
        called without gradients.

        Args:
            rollout: Sequences of T steps.
            reward: Rewards before scaling.
            next_value: Value of the next greedy actions by the target networks.
        """
        config, reward = self.config, self._scaled(reward)
        terminated, boundary = self._bootstrap_masks(rollout)
        if config.td_lambda is not None:
            return lambda_return(
                reward,
                next_value,
                terminated=terminated,
                boundary=boundary,
                gamma=self._gamma,
                td_lambda=config.td_lambda,
            )
        assert config.n_step is not None  # derived
        return n_step_return(
            reward, next_value, terminated=terminated, boundary=boundary, gamma=self._gamma, n=config.n_step
        )

    def evaluate(self, value: TeamQNetwork, q: Q, actions: Choices, timesteps: Timestep) -> Tensor:
        """Returns Q of `actions` for each agent [.., N], or with a mixer for the team [..]."""
        obs = self.policy.obs_normalizer(timesteps.obs, timesteps.alive) if self._reads_obs else {}
        state = self._state(timesteps.state)
        masks, alive = self._masks(timesteps), timesteps.alive
        actions = self._of_living(actions, alive)
        return value.evaluate(q, actions, masks=masks, alive=alive, obs=obs, state=state)

    def loss(self, batch: QBatch, weight: Tensor) -> Tensor:
        """Returns the loss of a minibatch [], see `td_loss` and `weighted_td_loss`; for subclasses to override.

        Args:
            batch: Q-values of the actions taken, their targets, and the valid entries.
            weight: Importance weights of the sequences [S].
        """
        delta = self.config.huber_delta
        if batch.central_q is None or batch.weight is None:
            return td_loss(batch.q, batch.target, batch.valid, weight, huber_delta=delta, reduction=self.reduction)
        return weighted_td_loss(
            batch.q, batch.central_q, batch.target, valid=batch.valid, weight=batch.weight, importance=weight,
            huber_delta=delta, reduction=self.reduction,
        )  # fmt: skip

    @torch.no_grad()
    def _report(self, batch: QBatch, loss: Tensor, grad_norm: Tensor) -> StepResult:
        """Returns the values of `METRICS` [5], and the errors of the sequences if they have priorities."""
        error = (batch.q - batch.target).abs()
        sums = [masked_sum(x, batch.valid)[0] for x in (error, batch.q, batch.target)]
        count = valid_count(batch.valid, reduction=self.reduction)
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
            "state": self._state,
        }

"""SAC and MASAC: off-policy actor-critics that maximize return and entropy.

In SAC, agents learn from their own observations. In MASAC, each agent has a critic that reads the observations and
actions of the whole team, or of all teams (`critic`). Continuous actions are sampled from Gaussians squashed by tanh.
Discrete actions are not sampled: the critic has an output per choice, so that their expectation is exact.

Sources: Haarnoja et al. 2018 (SAC, and its second paper for the learned temperature), Christodoulou 2019 (discrete
actions), Lowe et al. 2017 (centralized critics).
Differences: one formula covers discrete, continuous and hybrid actions (`nets/squashed_actions.py`); Q of several
discrete components is the sum over components; the standard deviation is bounded smoothly; the target entropy depends
on the number of available choices; the other agents' next actions in targets are sampled from their current policies,
their actions in the actor's loss are those of the replay buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos.algorithm import (
    ALL_ACTIONS,
    AlgorithmContext,
    Capabilities,
    CloningOptimizer,
    central_inputs,
    central_state_name,
    require_equal_spaces,
    returns_outlive_agents,
)
from coterie.algos.base_config import CriticConfig, OffPolicyConfig
from coterie.algos.graphed import StepResult
from coterie.algos.learner import CentralState
from coterie.algos.off_policy import OffPolicyLearner
from coterie.algos.optimizer import Optimizer, TargetNetwork, scheduled
from coterie.algos.other_teams import GlobalCriticLearner, OtherTeamsReader
from coterie.algos.replay.buffer import ReplaySample, timesteps_of
from coterie.algos.replay.prioritized import sequence_error
from coterie.config.needs import CONTINUOUS, DISCRETE, Needs
from coterie.config.schema import Count
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, Rollout
from coterie.functional.returns import (
    agent_rewards,
    bootstrap_masks,
    n_step_return,
    present_agents,
    terminate_at_limit,
    valid_mask,
)
from coterie.functional.statistics import Reduction, masked_mean
from coterie.nets.choice_critics import TwinCritic
from coterie.nets.recurrent import unroll_with_burn_in
from coterie.nets.squashed_actions import PolicySample, draw_block_noise, sample_actions
from coterie.nets.team import Block, TeamNetwork
from coterie.policies.squashed import SquashedPolicy
from coterie.ranks.ranks import ONE, Ranks


class SACConfig(OffPolicyConfig, CriticConfig):
    """Settings of SAC and MASAC."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "own"
    """Input of the critics besides the agent's own observation and action: nothing (own), or the other agents' actions
    and the joint observation (joint), the environment's state (state), or both (joint_state), or observations and
    actions of all teams (global).
    """
    lr: float = Field(1e-3, gt=0, lt=1)
    n_step: int = Field(1, ge=1, le=1000)
    """Rewards per target before it bootstraps. Sequences of feed-forward networks have this length; their later
    timesteps have shorter targets.
    """
    critic_lr: float | None = Field(None, gt=0, lt=1)
    """Learning rate of the critics; null: that of the actor."""
    other_actions: Annotated[Literal["replay", "current"], Needs("critic!=own")] = "replay"
    """Actions of the other agents in an actor's loss: those in the replay buffer, or those of their current policies.
    Actions of other teams are always those in the replay buffer.
    """
    temperature: float = Field(0.2, gt=0, le=10**6)
    """Initial coefficient of the entropy, in reward per nat."""
    learn_temperature: bool = True
    """Adjust the temperature so that the entropy of the policy reaches its target, separately for each role."""
    temperature_lr: Annotated[float | None, Needs("learn_temperature=true")] = Field(None, gt=0, lt=1)
    """Learning rate of the temperature; null: that of the actor."""
    target_entropy: Annotated[float, Needs("learn_temperature=true"), CONTINUOUS] = Field(-1.0, ge=-(10**6), le=0.69)
    """Target entropy per continuous action in [-1, 1], in nats; that of the uniform distribution is 0.69."""
    target_entropy_scale: Annotated[float, Needs("learn_temperature=true"), DISCRETE] = Field(0.3, ge=0, le=1)
    """Target entropy of discrete actions, as a fraction of that of the uniform distribution over available choices."""
    random_steps: Count = Field(0, ge=0, le=10**15)
    """Environment steps at the start, including reset steps, with uniformly random actions."""

    @property
    def needs_state(self) -> bool:
        """True if the critics read an environment state."""
        return "state" in self.critic

    def temperature_sizes(self, blocks: tuple[Block, ...]) -> list[int]:
        """Returns how many consecutive agents share each temperature: those of a block."""
        return [block.n for block in blocks]


class SACNetworks:
    """Policy, critics and temperature of a team, with an optimizer each.

    Args:
        config: Settings of the learner.
        team: The team.
        state_size: Features of the state that the critics read; 0 for none.
        generator: Source of the initial weights.
        device: Where the networks are stored.
        ranks: Ranks that train the team together.

    Attributes:
        policy: The policy.
        critics: The two critics.
        temperature: Entropy temperatures.
        target: Target network of the critics.
        critic_optimizer, policy_optimizer, temperature_optimizer: Their optimizers.
    """

    def __init__(
        self,
        config: SACConfig,
        team: TeamSpec,
        state_size: int,
        generator: torch.Generator,
        *,
        device: torch.device,
        ranks: Ranks = ONE,
    ):
        self.policy: SquashedPolicy = SquashedPolicy(team, config.network_config(team), generator, device)
        network = replace(config.critic_network_config(team), joint=config.critic != "own")
        self.critics = TwinCritic(
            team,
            network,
            generator,
            device,
            inputs=central_inputs(config.critic, team, state_size),
            centralized=config.critic != "own",
            burn_in=config.burn_in if config.recurrent else 0,
        )
        self.temperature = Temperature(config.temperature_sizes(self.policy.blocks), config.temperature, device)
        settings = config.adam_settings
        self.critic_optimizer = Optimizer({"critic": self.critics}, *settings, ranks=ranks)
        self.policy_optimizer = Optimizer({"policy": self.policy.net}, *settings, ranks=ranks)
        self.temperature_optimizer = Optimizer(
            {"temperature": self.temperature}, config.adam_eps, 0.0, None, ranks=ranks
        )
        self.target = TargetNetwork(self.critics, config.tau, config.target_update_interval)

    def parts(self) -> dict[str, Any]:
        """Returns what has a state, by its name in checkpoints."""
        return {
            "policy": self.policy,
            "critic": self.critics,
            "target": self.target,
            "temperature": self.temperature,
            "critic_optimizer": self.critic_optimizer,
            "policy_optimizer": self.policy_optimizer,
            "temperature_optimizer": self.temperature_optimizer,
        }


class Temperature(nn.Module):
    """Entropy temperatures, positive numbers that are stored as their logarithms.

    Args:
        sizes: Number of consecutive agents that share each temperature.
        initial: Initial temperature.
        device: Where the temperatures are stored.

    Attributes:
        log: Their logarithms, one per entry of `sizes`.
        index_of: Index of each agent's temperature [N].
    """

    def __init__(self, sizes: list[int], initial: float, device: torch.device):
        super().__init__()
        self.log = nn.Parameter(torch.full((len(sizes),), math.log(initial), device=device))
        self.index_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(device)


METRICS = (
    *("loss/critic", "value/q_taken_mean", "value/td_error_abs", "value/grad_norm"),
    *("loss/policy", "loss/temperature", "policy/entropy", "policy/temperature", "policy/grad_norm"),
)
"""Metrics of a gradient step."""


def critic_loss(
    q: Tensor, target: Tensor, valid: Tensor, weight: Tensor, *, reduction: Reduction | None = None
) -> Tensor:
    """Temporal-difference loss of both critics.

        L = sum valid w sum_k (Q_k - y)^2 / 2 / sum valid

    Source: Haarnoja et al. 2018, eq. 5.

    Args:
        q: Q of the actions taken by both critics [2, L, S, N].
        target: y [L, S, N], without gradient.
        valid: [L, S, N] bool, entries that are learned from.
        weight: w, importance weights of the sequences [S].
        reduction: Processes whose entries the mean is over; None for this one's.

    Returns:
        The loss [].
    """
    return masked_mean(0.5 * weight[:, None] * (q - target).square().sum(0), valid, reduction)


def actor_loss(
    q: Tensor, prob: Tensor, policy_entropy: Tensor, temperature: Tensor, valid: Tensor, *,
    reduction: Reduction | None = None,
) -> Tensor:  # fmt: skip
    """Negative soft value of the policy.

        L = -sum valid (sum_a pi(a) Q(a) + alpha H(pi)) / sum valid

    Source: Haarnoja et al. 2018, eq. 7; Christodoulou 2019, eq. 12 for discrete actions.

    Args:
        q: The smaller Q of the two critics for each choice [L, S, N, A].
        prob: pi, probability of each choice, the same shape.
        policy_entropy: H, entropy of the policy [L, S, N].
        temperature: alpha [N].
        valid: [L, S, N] bool, entries that are learned from.
        reduction: Processes whose entries the mean is over; None for this one's.

    Returns:
        The loss [].
    """
    return -masked_mean(expected_q(prob, q) + temperature * policy_entropy, valid, reduction)


def temperature_loss(
    log_temperature: Tensor, policy_entropy: Tensor, target_entropy: Tensor, valid: Tensor, *,
    reduction: Reduction | None = None,
) -> Tensor:  # fmt: skip
    """Loss of the temperature.

        L = sum valid log(alpha) (H(pi) - H_target) / sum valid

    Source: Haarnoja et al. 2018 (second paper), eq. 18, with the logarithm in place of alpha.

    Args:
        log_temperature: log(alpha) [N].
        policy_entropy: H(pi) [L, S, N], without gradient.
        target_entropy: H_target [L, S, N].
        valid: [L, S, N] bool, entries that are learned from.
        reduction: Processes whose entries the mean is over; None for this one's.

    Returns:
        The loss [].
    """
    return masked_mean(log_temperature * (policy_entropy - target_entropy), valid, reduction)


def expected_q(prob: Tensor, q: Tensor) -> Tensor:
    """Expected Q under a policy: sum_k sum_a pi_k(a) Q_k(a); [.., A] -> [..]."""
    return (prob * q).sum(-1)


class SAC(OffPolicyLearner, GlobalCriticLearner):
    """SAC and MASAC, see the module."""

    Config: ClassVar = SACConfig
    base: ClassVar = "masac"
    capabilities: ClassVar = Capabilities(
        actions=ALL_ACTIONS, images=True, off_policy=True, cuda_graphs=True, eval_mode="greedy"
    )

    def __init__(self, config: SACConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        super().__init__(config, context)
        self.config, team, device = config, context.team, context.device
        self._outlives = returns_outlive_agents(config, team, config.critic != "own")
        state_name = central_state_name(team, config.critic) if config.needs_state else None
        self._state = CentralState(config, team, state_name, device)
        require_equal_spaces(team, config.share_params)
        weights = generator(context.seed, "weights")
        self.nets = SACNetworks(config, team, self._state.size, weights, device=device, ranks=self.ranks)
        self.policy: SquashedPolicy = self.nets.policy
        self.others: OtherTeamsReader = OtherTeamsReader(
            config.critic, team, device, normalize_obs=config.normalize_obs, seed=context.seed, ranks=self.ranks
        )
        self._create_buffer(config, context, config.n_step, self._state.names, others=self.others)
        self.generator: torch.Generator = generator(context.seed, "update", device=device)
        num_continuous = [role.action.continuous for role in team.roles for _ in role.agents]
        self._num_continuous = torch.tensor(num_continuous, dtype=torch.float32, device=device)  # [N]
        self._recurrent, self._burn_in = config.recurrent, config.burn_in if config.recurrent else 0
        self.policy.uniform = config.random_steps > 0
        optimizers = [self.nets.critic_optimizer, self.nets.policy_optimizer]
        if config.learn_temperature:
            optimizers.append(self.nets.temperature_optimizer)
        modules = (self.policy.net, self.nets.critics, self.nets.temperature, *self._state.networks)
        self._create_step(self._step, optimizers, modules, (self.nets.target,), others=self.others)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        self._add(rollout)
        lr_fraction = scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        lr = {"critic": config.critic_lr or config.lr, "policy": config.lr}
        lr["temperature"] = config.temperature_lr or config.lr
        lr = {name: lr_fraction * value for name, value in lr.items()}
        metrics, reports = {"policy/lr": lr["policy"]}, []
        for sample in self._samples(progress):
            reports += self._learn(sample, lr)
        if reports:
            metrics |= self._mean_metrics(reports, METRICS, self._scale_metrics())
        self._observe(rollout)
        return metrics | self._replay_metrics()

    def _add(self, rollout: Rollout) -> None:
        """Adds a rollout to the replay buffer; updates exploration and reward statistics."""
        config = self.config
        self.buffer.add(rollout)
        self._steps += rollout.acted[:-1].numel() * self.ranks.size
        self.policy.uniform = self._steps < config.random_steps
        reward = agent_rewards(rollout, self._membership, self.team.has_group_reward, self._common_reward)
        self._add_rewards(reward, valid_mask(rollout))

    def _step(self, sample: ReplaySample, lr: Mapping[str, float | Tensor]) -> StepResult:
        """Takes a gradient step of critics, policy and temperature; `lr` is the learning rate by module."""
        batch = sample.rollout
        batch = replace(batch, obs=self.policy.obs_normalizer.of_rollout(batch))
        temperature = self.log_temperature().detach().exp()
        draw = self.sample_actions(batch)
        target = self.targets(batch, draw, temperature)
        critic_report, error = self._update_critics(batch, target, sample.weight, lr)
        actor_report = self._update_actor(batch, draw, temperature, lr)
        self.nets.target.update()
        return StepResult((torch.cat([critic_report, actor_report]),), error)

    def log_temperature(self) -> Tensor:
        """Returns the logarithm of every agent's temperature [N]."""
        return self.nets.temperature.log[self.nets.temperature.index_of]

    def sample_actions(self, rollout: Rollout) -> PolicySample:
        """Returns the policy at all timesteps [L + 1, S, ..] with one sampled action each.

        If returns outlive agents, dead ones have no entropy. Else an agent that was truncated alone still has some.
        """
        length, own = rollout.acted.shape
        noise = self.ranks.draw(
            lambda count: draw_block_noise(self.policy.blocks, (length, count), self.generator, self.device),
            own=own,
            axis=1,
        )
        draw = self.sample_with_noise(self.policy.net, rollout, noise)
        if self.team.agents_can_die and self._outlives:
            draw = replace(draw, entropy=torch.where(present_agents(rollout), draw.entropy, 0.0))
        return draw

    def sample_with_noise(self, net: TeamNetwork, rollout: Rollout, noise: dict[str, Tensor]) -> PolicySample:
        """Returns what a network acts like at all timesteps of its agents, with the actions that the noise selects."""
        if self._recurrent:
            start = rollout.hidden_state or net.initial_hidden_state(rollout.acted.shape[1], self.device)
            outputs = unroll_with_burn_in(net, rollout.obs, rollout.first, start, burn_in=self._burn_in)
        else:
            outputs, _ = net(rollout.obs, None, {})
        return sample_actions(net.blocks, outputs, rollout.action_mask, noise)

    @torch.no_grad()
    def targets(self, rollout: Rollout, draw: PolicySample, temperature: Tensor) -> Tensor:
        """Returns the targets of the critics, soft n-step returns [L, S, N]; for subclasses to override.

            y_t = r_t + gamma (b_{t+1} + ...),    b = alpha H(pi), the last term being min_k E_pi[Q_k]

        Observations of `rollout` are normalized; `draw` is the policy at all timesteps, `temperature` is alpha [N].
        """
        config, length = self.config, len(rollout.reward)
        timesteps = slice(0 if self._recurrent else 1, None)  # a recurrent network reads all timesteps before
        others = tree_map(lambda x: x[timesteps], rollout.others)
        next_action = tree_map(lambda x: x[timesteps], draw.action) | self.others.next_actions(others)
        q = self.evaluate(self.nets.target.module, rollout, timesteps, next_action, own_action=None).amin(0)
        next_value = expected_q(draw.prob[1:], q[-length:])
        reward = agent_rewards(rollout, self._membership, self.team.has_group_reward, self._common_reward)
        reward = self._scaled(reward)
        terminated, boundary = bootstrap_masks(rollout, self._outlives, self.team.agents_can_die)
        reward = reward + config.gamma * self.entropy_bonus(draw.entropy[1:], temperature).masked_fill(terminated, 0)
        return n_step_return(
            reward, next_value, terminated=terminated, boundary=boundary, gamma=config.gamma, n=config.n_step
        )

    def entropy_bonus(self, policy_entropy: Tensor, temperature: Tensor) -> Tensor:
        """Returns the part of each agent's return that is due to entropy [L, S, N]; for subclasses to override.

        Args:
            policy_entropy: H(pi) [L, S, N].
            temperature: alpha [N].
        """
        return temperature * policy_entropy

    def _update_critics(
        self, rollout: Rollout, target: Tensor, weight: Tensor, lr: Mapping[str, float | Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Gradient step of the critics.

        Returns:
            Loss, mean Q, mean error and gradient norm [4], and the errors of the sequences [S] if they have priorities.
        """
        action = rollout.action | self._others_taken(rollout)
        q = self.evaluate(self.nets.critics, rollout, slice(0, -1), action, own_action=None)
        q = expected_q(self.nets.critics.taken(rollout.action), q)  # [2, L, S, N]
        valid = self.valid_mask(rollout, of_critic=True)
        loss = self.value_loss(q, target, valid, weight)
        grad_norm = self.nets.critic_optimizer.step(loss, lr)[0]
        with torch.no_grad():
            error = torch.where(valid, (q - target).abs().mean(0), 0.0)
            mean_q, mean_error = (masked_mean(x, valid, self.reduction) for x in (q.mean(0), error))
            report = torch.stack([loss, mean_q, mean_error, grad_norm])
            return report, sequence_error(error, valid) if self.config.priority_alpha else None

    def value_loss(self, q: Tensor, target: Tensor, valid: Tensor, weight: Tensor) -> Tensor:
        """Returns the loss of the critics []; arguments as for `critic_loss`; for subclasses to override."""
        return critic_loss(q, target, valid, weight, reduction=self.reduction)

    def _update_actor(
        self, rollout: Rollout, draw: PolicySample, temperature: Tensor, lr: Mapping[str, float | Tensor]
    ) -> Tensor:
        """Gradient steps of policy and temperature; returns both losses, entropy, temperature and gradient norm [5]."""
        self.nets.critics.requires_grad_(False)
        loss, loss_t, mean_entropy = self.actor_losses(rollout, draw, temperature)
        grad_norm = self.nets.policy_optimizer.step(loss, lr)[0]
        self.nets.critics.requires_grad_(True)
        if self.config.learn_temperature:
            self.nets.temperature_optimizer.step(loss_t, lr)
        return torch.stack([loss, loss_t, mean_entropy, temperature.mean(), grad_norm]).detach()

    def actor_losses(self, rollout: Rollout, draw: PolicySample, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the losses of policy and temperature, and the mean entropy, each []; for subclasses to override.

        Arguments are as for `targets`.
        """
        config = self.config
        valid, policy_entropy = self.valid_mask(rollout, of_critic=False), draw.entropy[:-1]
        others_taken = self._others_taken(rollout)
        own_action = tree_map(lambda x: x[:-1], draw.action) | others_taken
        action = rollout.action if config.other_actions == "replay" else tree_map(torch.Tensor.detach, own_action)
        action = action | others_taken
        q = self.evaluate(self.nets.critics, rollout, slice(0, -1), action, own_action=own_action).amin(0)
        loss = actor_loss(q, draw.prob[:-1], policy_entropy, temperature, valid=valid, reduction=self.reduction)
        return loss, *self.temperature_terms(draw, valid)

    def temperature_terms(self, draw: PolicySample, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss of the temperature, and the mean entropy, each []; `valid` are entries [L, S, N] bool."""
        config, policy_entropy, reduction = self.config, draw.entropy[:-1].detach(), self.reduction
        target_entropy = config.target_entropy * self._num_continuous
        target_entropy = target_entropy + config.target_entropy_scale * draw.max_entropy[:-1]
        loss_t = temperature_loss(self.log_temperature(), policy_entropy, target_entropy, valid, reduction=reduction)
        return loss_t, masked_mean(policy_entropy, valid, reduction)

    def evaluate(
        self,
        critics: Any,
        rollout: Rollout,
        timesteps: slice,
        action: dict[str, Action],
        own_action: dict[str, Action] | None,
    ) -> Tensor:
        """Returns Q of each choice at some timesteps by both critics [2, T, S, N, A].

        `critics` are the critics or their target networks. `action` are the team's actions at these timesteps, with
        those of other teams that the critics read, in which `own_action` replaces an agent's own, unless it is None.
        """
        obs, state, first, alive = self.critic_inputs(rollout, timesteps)
        return critics(obs, state, action, own_action, first=first, alive=alive)

    def critic_inputs(
        self, rollout: Rollout, timesteps: slice
    ) -> tuple[dict[str, Tree], Tensor | None, Tensor | None, Tensor | None]:
        """Returns what critics read besides actions: `obs`, `state`, `first` and `alive` of `TwinCritic.forward`."""
        part = tree_map(lambda x: x[timesteps], timesteps_of(rollout))
        state = self._state(part.state)
        first = part.first if self._recurrent else None
        alive = None
        if self.team.agents_can_die:
            alive = self.others.with_alive(present_agents(rollout)[timesteps], part.others)
        return part.obs | self.others.obs(part.others), state, first, alive

    def _others_taken(self, rollout: Rollout) -> dict[str, Action]:
        """Returns the actions that other teams took, by role [L, S, n, ..]; {} if the critics do not read them."""
        return tree_map(lambda x: x[:-1], self.others.actions(rollout.others))

    def valid_mask(self, rollout: Rollout, of_critic: bool) -> Tensor:
        """Returns [L, S, N] bool, entries that are learned from.

        Critics also learn returns after an agent's death, if these go on. The burn-in is not learned from.
        """
        valid = valid_mask(rollout, of_team=of_critic and self._outlives)
        return valid & (torch.arange(len(valid), device=self.device) >= self._burn_in)[:, None, None]

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self.nets.policy_optimizer.for_module("policy"))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | self.others.state_dict() | self._state.state_dict()

    def _parts(self) -> dict[str, Any]:
        return self.nets.parts()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.others.load_state_dict(state)
        self._state.load_state_dict(state)
        self.policy.uniform = self._steps < self.config.random_steps

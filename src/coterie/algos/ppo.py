"""PPO, IPPO and MAPPO: clipped policy gradients with a learned value function. IA2C and MAA2C are special cases.

PPO trains one agent. IPPO trains each agent of a team with a critic on its own observation. MAPPO is IPPO with a critic
on the observations of the whole team. They differ in one setting, `critic`. IA2C and MAA2C are IPPO and MAPPO with one
gradient step per short rollout, so that the ratio of the policies is 1.

Sources: Schulman et al. 2017 (PPO), de Witt et al. 2020 (IPPO), Yu et al. 2022 (MAPPO), Papoudakis et al. 2021 (IA2C,
MAA2C), Huang et al. 2022 (actor-critic as a special case of PPO).
Differences: a centralized critic is evaluated once per environment and has one output per agent; advantages are
normalized over the rollout, not over minibatches; gradients of actor and critic are clipped separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos.algorithm import (
    ALL_ACTIONS,
    AlgorithmContext,
    Capabilities,
    central_inputs,
    central_state_name,
    group_membership,
    learns_common_reward,
    returns_outlive_agents,
)
from coterie.algos.base_config import LAYERS, ClippedConfig, Units, joint_network
from coterie.algos.clipped_learner import ClippedBatch, ClippedLearner, Targets, ValueState, joint_mask
from coterie.algos.learner import CentralState
from coterie.algos.optimizer import Schedule, scheduled
from coterie.algos.other_teams import GlobalCriticLearner, OtherTeamsReader
from coterie.algos.sequences import critic_first, critic_values, timestep_critic_first
from coterie.config.needs import SEVERAL, Needs
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, register_pytree, tree_map
from coterie.core.types import HiddenState, Rollout, Timestep
from coterie.functional.policy_gradient import (
    clipped_policy_loss,
    clipped_value_loss,
    combined,
    gae,
    update_value_moments,
)
from coterie.functional.returns import agent_rewards, bootstrap_masks, terminate_at_limit, valid_mask
from coterie.functional.statistics import Reduction, explained_variance, masked_mean, standardize
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.team import AgentNetwork, CentralEncoder, TeamNetwork, join_blocks, team_blocks


class PPOConfig(ClippedConfig):
    """Settings of PPO, IPPO and MAPPO."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "own"
    """Input of the critic: the agent's own observation, the joint observation of the team, the environment's state,
    joint observation and state, or the observations of all teams (global).
    """
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Lambda of generalized advantage estimation."""
    entropy_decay: Annotated[float | None, Needs("entropy_coef!=0")] = Field(None, gt=0, lt=1)
    """Factor of the entropy bonus per update, down to `entropy_end` times its initial weight; replaces the schedule."""
    entropy_schedule: Annotated[Schedule, Needs("entropy_coef!=0"), Needs("entropy_decay=null")] = "constant"
    entropy_end: Annotated[
        float, Needs("entropy_coef!=0"), Needs("entropy_schedule!=constant", "entropy_decay!=null")
    ] = Field(0.1, gt=0, le=1)
    hidden_sizes: Annotated[tuple[Units, ...], Needs(*LAYERS)] = Field((64, 64), min_length=1)
    target_kl: float | None = Field(None, gt=0, le=10**6)
    """Estimated KL divergence from the old policy at which an update stops; null: never."""
    rnn_size: int = Field(128, ge=1, le=100_000)
    common_reward: Annotated[bool, SEVERAL] = False
    """Give every agent the mean reward of the team."""

    @property
    def centralized(self) -> bool:
        """True if one critic evaluates the whole team."""
        return self.critic != "own"

    @property
    def needs_state(self) -> bool:
        """True if the critic reads the environment's state."""
        return "state" in self.critic


class DecentralizedCritic(nn.Module):
    """Values V(o_i) of each agent's own observation, [.., N, K] for K reward signals.

    They may also read `state_size` features of a state, the same for all agents, such as the time left. With a body
    that sees the team, V_i is of the observations of all agents, and parameters do not depend on their number. Values
    of the team's return are also those of dead agents, since rewards after an agent's death belong to its actions.
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        state_size: int = 0,
    ):
        super().__init__()
        outputs = {block.name: num_signals for block in team_blocks(team, config.share_params)}
        sizes = dict.fromkeys(outputs, state_size) if state_size else None
        dead = config.joint and team.agents_can_die
        self.network = TeamNetwork(team, outputs, config, generator, extra_sizes=sizes, reads_dead=dead)

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns values and the next hidden state; arguments as in `TeamNetwork`. `state` is [.., S] or None. `first`
        may also be [T, M, 1], the same for all agents.
        """
        if first is not None:
            first = first.expand(*first.shape[:-1], self.network.num_agents)
        extra = None
        if state is not None:
            rows = state.unsqueeze(-2)
            extra = {block.name: rows.expand(*state.shape[:-1], block.n, -1) for block in self.network.blocks}
        values, hidden_state = self.network(obs, first, hidden_state, extra)
        return join_blocks(values, self.network.blocks, -2), hidden_state


class CentralizedCritic(nn.Module):
    """Values V_i(s) of the joint observation, the environment state, or both: [.., N, K] for K reward signals.

    A global critic also reads the observations of other teams.

    The input is the same for all agents, so the network runs once per environment and has an output per agent. With a
    recurrent layer, `first` is [T, M, 1] and the hidden state [M, 1, H].
    """

    def __init__(
        self,
        team: TeamSpec,
        num_signals: int,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        inputs: CentralInputs,
    ):
        super().__init__()
        self.encoder = CentralEncoder(team, inputs, generator)
        self.network = AgentNetwork(self.encoder.features, team.n * num_signals, config, generator)
        self.num_agents = team.n

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns values and the next hidden state.

        Args:
            obs: By role [.., n, ..], with those of other teams in a global critic.
            state: [.., S], None if the critic does not read it.
            first: [T, M, 1] bool, needed by recurrent critics.
            hidden_state: By name [M, 1, H]; {} for feed-forward critics.
        """
        values, hidden_state = self.network(self.encoder(obs, state).unsqueeze(-2), first, hidden_state)
        return values.squeeze(-2).unflatten(-1, (self.num_agents, -1)), hidden_state


def build_critic(
    config: PPOConfig, team: TeamSpec, state_size: int, signals: int, weights: torch.Generator
) -> DecentralizedCritic | CentralizedCritic:
    """Returns the critic with an output per reward signal; `weights` draws its initial parameters."""
    network = config.critic_network_config(team, per_agent=not config.centralized)
    network = joint_network(network, config.critic)
    if not config.centralized or network.joint:
        return DecentralizedCritic(team, signals, network, weights, state_size=state_size)
    inputs = central_inputs(config.critic, team, state_size)
    return CentralizedCritic(team, signals, network, weights, inputs=inputs)


@register_pytree
@dataclass(frozen=True)
class Batch(ClippedBatch):
    """Training data of PPO."""

    state: Tensor | None
    critic_valid: Tensor | None
    """[.., N] bool, entries that the critic learns from; None: all."""

    def masked(self, mask: Tensor) -> Batch:
        masks = {"valid": joint_mask(self.valid, mask), "critic_valid": joint_mask(self.critic_valid, mask)}
        return replace(self, **masks)


class PPOLoss(NamedTuple):
    """Terms of the loss and diagnostics, each []."""

    policy: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor
    value: Tensor


def ppo_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    batch: Batch,
    *,
    clip_eps: float,
    value_clip_eps: float | None,
    huber_delta: float | None,
    kernels: bool = False,
    reduction: Reduction | None = None,
) -> PPOLoss:
    """Computes the terms of PPO's loss, L = L_policy - c_H H + c_V L_value.

        rho      = pi(a | o) / pi_old(a | o)
        L_policy = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A)
        L_value  = mean max(l(V, G), l(V_old + clip(V - V_old, -eps_V, eps_V), G))

    The means are over valid entries, l is half the squared error or the Huber loss.

    Args:
        log_prob: log pi(a | o) [.., N].
        entropy: H, entropy of pi(. | o) [.., N].
        value: V [.., N, K].
        batch: Old log-probabilities and values, advantages A and targets G.
        clip_eps: Clip range of the ratio.
        value_clip_eps: Clip range of the value; None for no clipping.
        huber_delta: Error above which l is linear; None for the squared error.
        kernels: Compute terms by fused kernels where there are some.
        reduction: Processes whose entries the means are over; None for this one's.

    Sources: Schulman et al. 2017, eq. 7; Yu et al. 2022, section 4.
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
    value_loss = clipped_value_loss(
        value,
        batch.value,
        batch.target,
        batch.critic_valid,
        clip_eps=value_clip_eps,
        huber_delta=huber_delta,
        kernels=kernels,
        reduction=reduction,
    )
    return PPOLoss(
        policy=policy,
        entropy=masked_mean(entropy, batch.valid, reduction),
        kl=kl,
        clip_fraction=clip_fraction,
        value=value_loss,
    )


class PPO(ClippedLearner, GlobalCriticLearner):
    """PPO, IPPO and MAPPO, see the module's description."""

    Config: ClassVar = PPOConfig
    base: ClassVar = "mappo"
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, reward_streams=True, cuda_graphs=True)
    reported: ClassVar = (
        *("loss/policy", "policy/entropy", "policy/kl", "policy/clip_fraction", "loss/value"),
        *("policy/grad_norm", "value/grad_norm"),
    )

    def __init__(self, config: PPOConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        self.config, team, device = config, context.team, context.device
        self._centralized = config.centralized
        self._state = CentralState(config, team, self.state_name(config, team), device)
        weights, signals = generator(context.seed, "weights"), context.reward_streams
        super().__init__(config, context, signals, weights)
        self.critic = self._build_critic(max(1, len(signals)), weights).to(device)
        self._critic_state = self.start_value_estimation(context.num_envs)
        self._membership = group_membership(team).to(device)
        self._common_reward = learns_common_reward(config, team)
        self._outlives = returns_outlive_agents(config, team, self._centralized)
        self.others: OtherTeamsReader = OtherTeamsReader(
            config.critic, team, device, normalize_obs=config.normalize_obs, seed=context.seed, ranks=self.ranks
        )
        self._create_optimizer(config, *self.others.networks, *self._state.networks)
        self._updates = 0

    def state_name(self, config: Any, team: TeamSpec) -> str | None:
        """Returns the name of the environment's state that the critic reads; None for none."""
        return central_state_name(team, config.critic) if config.needs_state else None

    def _build_critic(self, signals: int, weights: torch.Generator) -> nn.Module:
        """Returns the critic with an output per reward signal; `weights` draws its initial parameters."""
        return build_critic(self.config, self.team, self._state.size, signals, weights)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        coefficients = self._coefficients(progress)
        # Targets
        samples, extra = self._samples(rollout, progress)
        # Minibatches, each of which is a step
        reports, epochs = self._train_on(samples, coefficients, config.target_kl)
        # Metrics
        self._observe(rollout)
        self._updates += 1
        metrics = self._mean_metrics(reports, self.reported, extra)
        lr, entropy_coef = coefficients["policy"], coefficients["entropy"]
        return metrics | {"policy/lr": lr, "policy/entropy_coef": entropy_coef, "policy/epochs": epochs}

    def _coefficients(self, progress: float) -> dict[str, float]:
        """Returns the learning rates `policy` and `value`, and the weight of the `entropy`."""
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        critic_lr = lr * (config.critic_lr or config.lr) / config.lr
        return {"policy": lr, "value": critic_lr, "entropy": entropy_weight(config, self._updates, progress)}

    def _step(
        self, batch: Batch, hidden_state: dict[str, HiddenState], coefficients: Mapping[str, float | Tensor]
    ) -> Tensor:
        """Takes a gradient step and returns its report [7]. `coefficients` include the weight of the `entropy`."""
        # Loss
        log_prob, entropy, value = self._evaluate(batch, hidden_state)
        terms = self.loss_terms(log_prob, entropy, value, batch)
        loss = terms.policy - coefficients["entropy"] * terms.entropy + self.config.value_coef * terms.value
        # Optimizer step
        grad_norms = self.optimizer.step(loss, coefficients)
        return torch.cat([torch.stack(terms).detach(), grad_norms])

    def _evaluate(self, batch: Batch, hidden_state: dict[str, HiddenState]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns log-probabilities of actions [.., N], entropies [.., N], and values [.., N, K]."""
        log_prob, entropy = self.policy.actor.evaluate(
            batch.obs, batch.action_mask, batch.action, first=batch.first, hidden_state=hidden_state.get("actor", {})
        )
        value, _ = self.critic(batch.obs, batch.state, batch.critic_first, hidden_state.get("critic", {}))
        return log_prob, entropy, value

    def _critic_first(self, rollout: Rollout) -> Tensor:
        """Returns where the critic's hidden state is reset, [T + 1, B, N] bool, or [T + 1, B, 1] for the whole team."""
        return critic_first(rollout, self._centralized)

    def _timestep_critic_first(self, timestep: Timestep) -> Tensor:
        """The same as `_critic_first` for a single timestep with a leading axis of one."""
        return timestep_critic_first(timestep, self._centralized)

    def targets(
        self, rollout: Rollout, before: ValueState, stream_weights: Tensor | None, *, as_sequences: bool
    ) -> Targets:
        config, team, reduction = self.config, self.team, self.reduction
        obs = self.read_rollout(rollout)
        if self.others.roles:  # the critic reads other teams
            obs = obs | self.others.obs(rollout.others)
        state = self._state(rollout.state)
        first = self._critic_first(rollout) if self._recurrent else None
        if first is None:
            old_value, critic_states, hidden_state = self.critic(obs, state, None, {})[0], {}, {}
        else:
            assert self._length is not None
            old_value, critic_states, hidden_state = critic_values(
                self.critic, (obs, state), first, before.hidden_state, self._length
            )
        mean, std = self.value_scale(before.moments)
        value = old_value * std + mean
        valid = valid_mask(rollout)
        critic_valid = self._critic_valid(rollout)
        advantage, target = self.advantages(rollout, value, valid)
        policy_advantage = combined(advantage, stream_weights)
        residual = (target - value[:-1])[..., 0]  # subclasses may compute advantages from other values
        metrics = {
            "value/explained_variance": explained_variance(target[..., 0], residual, critic_valid, reduction),
            "value/estimate": masked_mean(value[:-1, ..., 0], critic_valid, reduction),
            "policy/advantage": masked_mean(policy_advantage, valid, reduction),  # before normalization
        }
        moments = before.moments
        if config.normalize_value:
            moments = update_value_moments(moments, target, critic_valid, config.value_norm_decay, reduction)
            mean, std = self.value_scale(moments)
        if config.normalize_advantage:
            policy_advantage = self.normalized(policy_advantage, valid)
        masked = team.agents_can_die or as_sequences
        batch = Batch(
            obs=tree_map(lambda x: x[:-1], obs),
            action_mask={name: x[:-1] for name, x in rollout.action_mask.items()},
            state=None if state is None else state[:-1],
            action=rollout.action,
            log_prob=rollout.extras["log_prob"],
            advantage=policy_advantage,
            target=(target - mean) / std,
            value=old_value[:-1],
            valid=valid if masked else None,
            critic_valid=critic_valid if masked else None,
            first=rollout.first[:-1] if self._recurrent else None,
            critic_first=None if first is None else first[:-1],
        )
        return Targets(batch, critic_states, metrics, ValueState(moments, hidden_state))

    def _ends(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Returns where returns end and where they are cut off, both [T, B, N] bool, see `bootstrap_masks`."""
        return bootstrap_masks(rollout, self._outlives, self.team.agents_can_die)

    def _critic_valid(self, rollout: Rollout) -> Tensor:
        """Returns the entries that the critic learns from, [T, B, N] bool."""
        return valid_mask(rollout, of_team=self._outlives)

    def read_rollout(self, rollout: Rollout) -> dict[str, Tree]:
        """Returns the observations of a rollout [T + 1, B, n, ..] as actor and critic read them."""
        return self.policy.obs_of_rollout(rollout)

    def read_timestep(self, timestep: Timestep) -> dict[str, Tree]:
        """Returns the observations of timesteps [T, B, n, ..] as the critic reads them."""
        return self.policy.obs_normalizer(timestep.obs, timestep.alive)

    def advantages(self, rollout: Rollout, value: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Returns advantages and the critic's targets, by default lambda-returns; for subclasses to override.

        Advantages are normalized afterward if `normalize_advantage` is set. It is called without gradients.

        Args:
            rollout: Experience of the team.
            value: Values in the unit of returns [T + 1, B, N, K].
            valid: [T, B, N] bool, entries that the policy learns from.

        Returns:
            Advantages and targets of each reward signal, both [T, B, N, K].
        """
        config, team = self.config, self.team
        reward = agent_rewards(rollout, self._membership, team.has_group_reward, self._common_reward)
        terminated, boundary = self._ends(rollout)
        if self.reward_streams is None:
            advantage = gae(
                reward=reward.unsqueeze(-1),
                value=value[:-1],
                next_value=value[1:],
                terminated=terminated.unsqueeze(-1),
                boundary=boundary.unsqueeze(-1),
                gamma=config.gamma,
                gae_lambda=config.gae_lambda,
            )
            return advantage, advantage + value[:-1]
        rewards = self.reward_streams.rewards(rollout, reward)
        return self.reward_streams.advantages(
            rewards, value, terminated, boundary, valid=valid, gae_lambda=config.gae_lambda
        )

    def normalized(self, advantage: Tensor, valid: Tensor) -> Tensor:
        """Returns advantages [T, B, N] with mean 0 and variance 1 over valid entries; for subclasses to override."""
        return standardize(advantage, valid, self.reduction)

    def loss_terms(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Batch) -> PPOLoss:
        """Returns the terms of the loss on a minibatch, see `ppo_loss`; for subclasses to override.

        The step descends L_policy - c_H H + c_V L_value. Another term is added to one of these:
        `terms._replace(policy=terms.policy + extra)`.

        Args:
            log_prob: log pi(a | o) [.., N].
            entropy: Entropy of pi(. | o) [.., N].
            value: Values of the critic on the normalized scale [.., N, K].
            batch: Old log-probabilities and values, advantages, targets, and the valid entries that means are over.
        """
        config = self.config
        return ppo_loss(
            log_prob,
            entropy,
            value,
            batch,
            clip_eps=config.clip_eps,
            value_clip_eps=config.value_clip_eps,
            huber_delta=config.huber_delta,
            kernels=self.kernels,
            reduction=self.reduction,
        )

    def start_value_estimation(self, num_envs: int) -> HiddenState:
        hidden_state = self.policy.initial_hidden_state(num_envs)
        if not self._centralized or isinstance(self.critic, DecentralizedCritic):
            return hidden_state
        return {name: x[:, :1] for name, x in hidden_state.items()}

    def estimate_value(self, timestep: Timestep, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        timestep = tree_map(lambda x: x.unsqueeze(0), timestep)
        state = self._state(timestep.state)
        first = self._timestep_critic_first(timestep)
        obs = self.read_timestep(timestep) | self.others.obs(timestep.others)
        value, hidden_state = self.critic(obs, state, first, hidden_state)
        mean, std = self.value_scale()
        return (value * std + mean)[0, ..., 0], hidden_state

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"updates": self._updates} | self.others.state_dict() | self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.others.load_state_dict(state)
        self._state.load_state_dict(state)
        self._updates = state["updates"]


def entropy_weight(config: PPOConfig, updates: int, progress: float) -> float:
    """Returns the weight of the entropy bonus after `updates` updates, at `progress` of the run."""
    if config.entropy_decay is not None:
        return config.entropy_coef * max(config.entropy_decay**updates, config.entropy_end)
    return config.entropy_coef * scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)

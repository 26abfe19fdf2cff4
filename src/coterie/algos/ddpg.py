"""DDPG, MADDPG, TD3 and MATD3: deterministic actors that ascend the gradient of a learned Q.

The critic of DDPG reads an agent's own observation and action, that of MADDPG those of the whole team, or of all teams
(`critic`). TD3 and MATD3 add twin critics, a delayed actor and smoothed target actions. Gradients pass through
discrete actions by the straight-through Gumbel-softmax.

Sources: Lillicrap et al. 2016 (DDPG), Lowe et al. 2017 (MADDPG), Fujimoto et al. 2018 (TD3), Ackermann et al. 2019
(MATD3), Jang et al. 2017 (Gumbel-softmax).
Differences: with shared parameters, the centralized critic is one network with an output per agent, evaluated once per
environment; behavior and target actions are hard samples, as in EPyMARL's discrete MADDPG, not relaxed ones; the hidden
state of a recurrent critic depends on observations only, so that it can evaluate any action; dead agents act with
zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
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
    learns_common_reward,
    require_equal_spaces,
    returns_outlive_agents,
)
from coterie.algos.base_config import CriticConfig, OffPolicyConfig, joint_network
from coterie.algos.graphed import StepResult
from coterie.algos.learner import CentralState
from coterie.algos.off_policy import OffPolicyLearner
from coterie.algos.optimizer import Optimizer, Schedule, TargetNetwork, scheduled
from coterie.algos.other_teams import GlobalCriticLearner, OtherTeamsReader, TargetPolicyLearner
from coterie.algos.replay.buffer import ReplaySample, timesteps_of
from coterie.algos.replay.prioritized import sequence_error
from coterie.algos.sequences import critic_first
from coterie.config.needs import CONTINUOUS, DISCRETE, Needs
from coterie.config.schema import Count
from coterie.core.seeds import generator
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import HiddenState, Rollout, Timestep
from coterie.functional.returns import (
    agent_rewards,
    bootstrap_masks,
    n_step_return,
    present_agents,
    terminate_at_limit,
    valid_mask,
)
from coterie.functional.statistics import Reduction, valid_count
from coterie.nets.action_critics import CentralizedActionCritic, DecentralizedActionCritic, select_action_gradient
from coterie.nets.joint_actions import JointAction, mask_by_role
from coterie.nets.relaxed_actions import draw_block_noise, relaxed_actions
from coterie.policies.deterministic import DeterministicPolicy, NoiseKind


class DDPGConfig(OffPolicyConfig, CriticConfig):
    """Settings of DDPG, MADDPG, TD3 and MATD3."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "own"
    """Input of the critic: the agent's own observation and action (own), or the actions of the whole team with its
    joint observation (joint), with the environment's state (state), or with both (joint_state), or observations and
    actions of all teams (global).
    """
    share_critic: Annotated[bool | None, Needs("critic!=own")] = None
    """Use one network for a centralized critic, with an output per agent, or a single one if `common_reward` is set.
    False: a network per agent; null: true unless `share_params` is none.
    """
    twin_critics: bool = False
    """Use two critics; targets take the smaller of their values."""
    policy_delay: int = Field(1, ge=1, le=1000)
    """Gradient steps of the critic per gradient step of the actor and soft update of the target networks. Hard updates
    are counted in gradient steps of the critic.
    """
    target_noise: Annotated[float, CONTINUOUS] = Field(0.0, ge=0, le=2)
    """Standard deviation of the noise on continuous target actions."""
    target_noise_clip: Annotated[float, CONTINUOUS, Needs("target_noise!=0")] = Field(0.5, gt=0, le=2)
    """Maximum absolute value of that noise."""
    other_actions: Annotated[Literal["replay", "current"], Needs("critic!=own")] = "replay"
    """Actions of the other agents in an actor's loss: those in the replay buffer, or those of their current actors.
    Actions of other teams are always those in the replay buffer.
    """
    next_action_policy: Literal["target", "online"] = "target"
    """Networks that choose the next actions of targets: the target actors or the online actors."""
    gumbel_temperature: Annotated[float, DISCRETE] = Field(1.0, gt=0, le=100)
    """Temperature of the Gumbel-softmax for the gradient of discrete actions."""
    logit_penalty: float = Field(1e-3, ge=0, le=10**6)
    """Coefficient of the mean squared logit in the actor's loss."""
    noise: Annotated[NoiseKind, CONTINUOUS] = "gaussian"
    """Exploration noise on continuous actions: independent per timestep, or an Ornstein-Uhlenbeck process."""
    noise_std: Annotated[float, CONTINUOUS] = Field(0.1, ge=0, le=2)
    """Initial standard deviation of Gaussian noise, or of the increments of Ornstein-Uhlenbeck noise; actions range
    from -1 to 1.
    """
    noise_schedule: Annotated[Schedule, CONTINUOUS] = "constant"
    """Schedule of the noise, from its initial standard deviation to `noise_end` times it over the run."""
    noise_end: Annotated[float, CONTINUOUS, Needs("noise_schedule!=constant")] = Field(0.1, gt=0, le=1)
    """Final noise as a fraction of the initial one."""
    noise_theta: Annotated[float, CONTINUOUS, Needs("noise=ornstein_uhlenbeck")] = Field(0.15, gt=0, le=1)
    """Mean reversion of Ornstein-Uhlenbeck noise per step."""
    random_steps: Count = Field(0, ge=0, le=10**15)
    """Environment steps at the start with uniformly random actions."""
    critic_lr: float | None = Field(1e-3, gt=0, lt=1)
    """Learning rate of the critic; null: that of the actor."""

    @property
    def needs_state(self) -> bool:
        """True if the critic reads an environment state."""
        return "state" in self.critic


@dataclass(frozen=True)
class Batch:
    """S sequences of L steps, of which R timesteps are learned from.

    Attributes:
        timesteps: [L + 1, S, ..], observations normalized.
        critic_first: [L + 1, S, N or 1] bool, where the hidden state of a critic is reset; None without one.
        taken: Actions taken, vectors by role [L, S, n, P], with those of other teams that the critics read.
        reward: [L, S, N].
        terminated: [L, S, N] bool, where the successor's value is dropped.
        boundary: [L, S, N] bool, where the trace of a return ends.
        hidden_state: Hidden state of the policy before the first timestep, by name [S, N, H].
        valid: [R, S, N] bool, entries that actors learn from.
        critic_valid: [R, S, N] bool, entries that critics learn from.
        weight: [S], importance weights.
        learned: The R timesteps that are learned from; those before only warm up hidden states.
    """

    timesteps: Timestep
    critic_first: Tensor | None
    taken: dict[str, Tensor]
    reward: Tensor
    terminated: Tensor
    boundary: Tensor
    hidden_state: HiddenState
    valid: Tensor
    critic_valid: Tensor
    weight: Tensor
    learned: slice


def at(time: slice, tree: Tree) -> Tree:
    """Returns the part of tensors [T, ..] at some timesteps."""
    return tree_map(lambda x: x[time], tree)


def build_critics(config: DDPGConfig, team: TeamSpec, state_size: int, generator: torch.Generator) -> nn.ModuleList:
    """Creates the critic, or the twin critics.

    Args:
        config: Settings of the learner.
        team: The team.
        state_size: Features of the state that the critics read; 0 for none.
        generator: Source of the initial weights.
    """
    network = config.critic_network_config(team, per_agent=config.critic == "own")
    network = joint_network(network, config.critic)
    share_critic = config.share_params != "none" if config.share_critic is None else config.share_critic
    inputs = central_inputs(config.critic, team, state_size)
    critics = nn.ModuleList()
    for _ in range(2 if config.twin_critics else 1):
        if config.critic == "own":
            critics.append(DecentralizedActionCritic(team, 1, network, generator, state_size=state_size))
            continue
        critic = CentralizedActionCritic(
            team,
            1,
            network,
            generator,
            inputs=inputs,
            per_agent_network=not share_critic,
            shared_output=learns_common_reward(config, team),
        )
        critics.append(critic)
    return critics


CRITIC_METRICS = ("loss/critic", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")
ACTOR_METRICS = ("loss/policy", "policy/grad_norm")


def critic_loss(
    q: Sequence[Tensor], target: Tensor, valid: Tensor, weight: Tensor, *, reduction: Reduction | None = None
) -> Tensor:
    """Temporal-difference loss of one critic or of twin critics.

        L = sum_k (sum valid w (Q_k - y)^2 / sum valid)

    Source: Lillicrap et al. 2016, eq. 4; Fujimoto et al. 2018 for twin critics.

    Args:
        q: Q of the actions taken by each critic k [T, S, N].
        target: y [T, S, N], without gradient.
        valid: [T, S, N] bool, entries that are learned from.
        weight: w, importance weights of the sequences [S].
        reduction: Processes whose entries are counted; None for this one's.

    Returns:
        The loss [].
    """
    errors = [torch.where(valid, q_k - target, 0.0) for q_k in q]
    count = valid_count(valid, reduction=reduction)
    return torch.stack([(error.square() * weight[:, None]).sum() / count for error in errors]).sum()


def actor_loss(
    gradient: Tensor, action: Tensor, valid: Tensor, *, logits: Sequence[Tensor], available: Sequence[Tensor],
    logit_penalty: float, reduction: Reduction | None = None,
) -> Tensor:  # fmt: skip
    """Loss whose gradient is the deterministic policy gradient, plus a penalty on the logits of discrete actions.

        L = -sum_i g_i . a_i / M + c mean(logit^2),    g_i = dQ_i / da_i,    M = sum valid

    Source: Lillicrap et al. 2016, eq. 6; Lowe et al. 2017, eq. 5.

    Args:
        gradient: g, the gradient of each agent's Q in its own action, joint [T, S, J], without gradient itself.
        action: a, the joint action of the actors [T, S, J].
        valid: [T, S, N] bool, entries that are learned from.
        logits: Logits of discrete actions [T, S, n, A] by block.
        available: bool, the same shapes, choices of valid agents that are not masked.
        logit_penalty: c.
        reduction: Processes whose entries are counted; None for this one's.

    Returns:
        The loss [].
    """
    loss = -(gradient * action).sum() / valid_count(valid, reduction=reduction)
    if not logit_penalty or not logits:
        return loss
    total = loss.new_zeros(())
    for block_logits, block_available in zip(logits, available, strict=True):
        total = total + torch.where(block_available, block_logits, 0.0).square().sum()
    return loss + logit_penalty * (total / valid_count(*available, reduction=reduction))


class DDPG(OffPolicyLearner, GlobalCriticLearner, TargetPolicyLearner):
    """DDPG and its multi-agent and twin-critic variants, see the module."""

    Config: ClassVar = DDPGConfig
    base: ClassVar = "maddpg"
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, off_policy=True, cuda_graphs=True)

    def __init__(self, config: DDPGConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        super().__init__(config, context)
        self.config, team, device = config, context.team, context.device
        assert config.n_step is not None  # derived
        self._n_step = config.n_step
        self._centralized = config.critic != "own"
        self._outlives = returns_outlive_agents(config, team, self._centralized)
        state_name = central_state_name(team, config.critic) if config.needs_state else None
        self._state = CentralState(config, team, state_name, device)
        require_equal_spaces(team, config.share_params)
        draw = generator(context.seed, "weights")
        self.policy: DeterministicPolicy = DeterministicPolicy(
            team, config.network_config(team), draw, device, noise=config.noise, theta=config.noise_theta
        )
        self.critics = build_critics(config, team, self._state.size, draw).to(device)
        settings = config.adam_settings
        self._policy_optimizer = Optimizer({"policy": self.policy.net}, *settings, ranks=self.ranks)
        self._critic_optimizer = Optimizer({"critic": self.critics}, *settings, ranks=self.ranks)
        self.target_policy = TargetNetwork(self.policy.net, config.tau, config.target_update_interval)
        self.target_critics = TargetNetwork(self.critics, config.tau, config.target_update_interval)
        self.others: OtherTeamsReader = OtherTeamsReader(
            config.critic,
            team,
            device,
            normalize_obs=config.normalize_obs,
            seed=context.seed,
            target_policies=config.next_action_policy == "target",
            ranks=self.ranks,
        )
        self._create_buffer(config, context, self._n_step, self._state.names, others=self.others)
        self.generator: torch.Generator = generator(context.seed, "updates", device=device)
        self._joint = JointAction(team, device, self.others.roles)
        self._recurrent, self._burn_in = config.recurrent, config.burn_in if config.recurrent else 0
        action_gradient = select_action_gradient(self._centralized, config.other_actions)
        self._action_gradient = partial(action_gradient, self.critics[0], joint=self._joint)
        self._set_exploration(0.0)
        optimizers = (self._critic_optimizer, self._policy_optimizer)
        modules = (self.policy.net, self.critics, *self._state.networks)
        targets = (self.target_policy, self.target_critics)
        self._create_step(self._step, optimizers, modules, targets, others=self.others)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        self._add(rollout)
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        critic_reports, actor_reports = [], []
        rates = {"policy": lr, "critic": lr * (config.critic_lr or config.lr) / config.lr}
        for sample in self._samples(progress):
            trains_actor = (self._updates + 1) % config.policy_delay == 0
            critic_report, *actor_report = self._learn(sample, rates, trains_actor)
            critic_reports.append(critic_report)
            actor_reports += actor_report
        self._set_exploration(progress)
        metrics = self._metrics(critic_reports, actor_reports) | self._replay_metrics()
        return metrics | {"policy/lr": lr, "policy/noise_std": self.policy.noise_std}

    def _add(self, rollout: Rollout) -> None:
        """Adds a rollout to the replay buffer; updates statistics."""
        self._steps += self.buffer.add(rollout)
        reward = agent_rewards(rollout, self._membership, self.team.has_group_reward, self._common_reward)
        self._add_rewards(reward, valid_mask(rollout))
        self._observe(rollout)

    def _step(self, sample: ReplaySample, lr: Mapping[str, float | Tensor], trains_actor: bool) -> StepResult:
        """Takes a gradient step of the critics, and of the actors if they are trained; `lr` is by module."""
        batch = self.make_batch(sample)
        critic_report, error = self._update_critics(batch, self.targets(batch), lr)
        reports = (critic_report, self._update_actor(batch, lr)) if trains_actor else (critic_report,)
        # Soft updates wait for the actor, as published; hard updates have an interval of their own.
        if trains_actor or self.config.target_update_interval is not None:
            self.target_policy.update()
            self.target_critics.update()
        return StepResult(reports, error)

    def make_batch(self, sample: ReplaySample) -> Batch:
        """Returns what losses read of sampled sequences, with zeros where entries are masked."""
        rollout, team = sample.rollout, self.team
        # A feed-forward network learns from the first timestep of a sequence.
        learned = slice(self._burn_in, len(rollout.reward) if self._recurrent else 1)
        valid = valid_mask(rollout)
        critic_valid = valid_mask(rollout, of_team=self._outlives)
        terminated, boundary = bootstrap_masks(rollout, self._outlives, team.agents_can_die)
        reward = agent_rewards(rollout, self._membership, team.has_group_reward, self._common_reward)
        obs = self.policy.obs_normalizer.of_rollout(rollout)
        others_taken = self.others.encode(self.others.actions(rollout.others), rollout.others)
        hidden_state = {}
        if self._recurrent:
            hidden_state = self.policy.network_state(
                rollout.hidden_state or self.policy.initial_hidden_state(sample.index.shape[0])
            )
        return Batch(
            timesteps=replace(timesteps_of(rollout), obs=obs, alive=present_agents(rollout)),
            critic_first=critic_first(rollout, self._centralized) if self._recurrent else None,
            taken=mask_by_role(self._joint.encode(rollout.action), team.roles, valid) | at(slice(-1), others_taken),
            reward=torch.where(critic_valid, self._scaled(reward), 0.0),
            terminated=terminated,
            boundary=boundary,
            hidden_state=hidden_state,
            valid=valid[learned],
            critic_valid=critic_valid[learned],
            weight=sample.weight,
            learned=learned,
        )

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Returns the targets of the critics [R, S, N], n-step returns that bootstrap from the target critics' value of
        the next actions; for subclasses to override.
        """
        config = self.config
        successors = slice(self._burn_in + 1, len(batch.reward) + 1)
        actor = self.target_policy.module if config.next_action_policy == "target" else self.policy.net
        outputs = self._actor_outputs(actor, batch, successors)
        smoothing = (config.target_noise, config.target_noise_clip) if config.target_noise else None
        others = at(successors, batch.timesteps.others)
        actions = self._actions(outputs, batch, successors, smoothing=smoothing)
        actions |= self.others.encode(self.others.next_actions(others), others)
        critics = self.target_critics.module.children()
        values = [self.evaluate(critic, self.critic_features(critic, batch, successors), actions) for critic in critics]
        q = reduce(torch.minimum, values)
        reward, terminated, boundary = (x[self._burn_in :] for x in (batch.reward, batch.terminated, batch.boundary))
        target = n_step_return(reward, q, terminated=terminated, boundary=boundary, gamma=config.gamma, n=self._n_step)
        return target[: len(batch.valid)]

    def _update_critics(
        self, batch: Batch, target: Tensor, lr: Mapping[str, float | Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Gradient step of the critics.

        Returns:
            The values of `CRITIC_METRICS` [5], and the errors of the sequences [S] if they have priorities.
        """
        valid = batch.critic_valid
        q = self.q_taken(batch)
        loss = self.value_loss(q, target, batch)
        grad_norm = self._critic_optimizer.step(loss, lr)[0]
        with torch.no_grad():
            error = torch.where(valid, q[0] - target, 0.0).abs()
            count = valid_count(valid, reduction=self.reduction)
            means = [torch.where(valid, x, 0.0).sum() / count for x in (error, q[0], target)]
            report = torch.stack([loss.detach(), *means, grad_norm])
            return report, sequence_error(error, valid) if self.config.priority_alpha > 0 else None

    def value_loss(self, q: list[Tensor], target: Tensor, batch: Batch) -> Tensor:
        """Returns the loss of the critics [], see `critic_loss`; for subclasses to override.

        Args:
            q: Q of the actions taken by each critic [R, S, N].
            target: Result of `targets`.
            batch: The minibatch, with the valid entries and the importance weights of the sequences.
        """
        return critic_loss(q, target, batch.critic_valid, batch.weight, reduction=self.reduction)

    def q_taken(self, batch: Batch) -> list[Tensor]:
        """Returns Q of the actions taken [R, S, N] by each critic."""
        taken, critics = at(batch.learned, batch.taken), self.critics.children()
        return [self.evaluate(critic, self.critic_features(critic, batch, batch.learned), taken) for critic in critics]

    def _update_actor(self, batch: Batch, lr: Mapping[str, float | Tensor]) -> Tensor:
        """Gradient step of the actors; returns the values of `ACTOR_METRICS` [2]."""
        loss, value = self.policy_loss(batch)
        return torch.stack([value, self._policy_optimizer.step(loss, lr)[0]])

    def policy_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the actors' loss [], and the mean of -Q [] that it descends; for subclasses to override."""
        outputs, action = self.sample_joint_action(batch)
        with torch.no_grad():
            features = self.critic_features(self.critics[0], batch, batch.learned)
        taken = self._joint.join(at(batch.learned, batch.taken))
        gradient, q = self._action_gradient(features, action.detach(), taken, batch.valid)
        logits, available = self._logits(outputs, batch)
        loss = actor_loss(
            gradient, action, batch.valid, logits=logits, available=available, logit_penalty=self.config.logit_penalty,
            reduction=self.reduction,
        )  # fmt: skip
        return loss, -q / valid_count(batch.valid, reduction=self.reduction)

    def sample_joint_action(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the actors' outputs by block and their joint action [R, S, J]; other teams act as they did."""
        outputs = self._actor_outputs(self.policy.net, batch, batch.learned)
        actions = at(batch.learned, batch.taken) | self._actions(outputs, batch, batch.learned, smoothing=None)
        return outputs, self._joint.join(actions)

    def _metrics(self, critic_reports: list[Tensor], actor_reports: list[Tensor]) -> dict[str, float]:
        """Means of the gradient steps' metrics."""
        metrics = {}
        for reports, names in ((critic_reports, CRITIC_METRICS), (actor_reports, ACTOR_METRICS)):
            if reports:
                metrics |= self._mean_metrics(reports, names, self._scale_metrics())
        return metrics

    def _actor_outputs(self, actor: nn.Module, batch: Batch, time: slice) -> dict[str, Tensor]:
        """Outputs of actors at some timesteps, by block [.., n, P]."""

        def call(part: Batch, hidden_state: HiddenState) -> tuple[dict[str, Tensor], HiddenState]:
            return actor(part.timesteps.obs, part.timesteps.first, hidden_state)

        return self._unroll(call, batch, time, batch.hidden_state)

    def critic_features(self, critic: Any, batch: Batch, time: slice) -> Tree:
        """Returns a critic's features of some timesteps, which do not depend on actions."""
        hidden_state = batch.hidden_state
        if self._centralized and not critic.per_agent_network:
            hidden_state = {name: value[:, :1] for name, value in hidden_state.items()}

        def call(part: Batch, hidden_state: HiddenState) -> tuple[Tree, HiddenState]:
            timesteps = part.timesteps
            obs = timesteps.obs | self.others.obs(timesteps.others)
            first = part.critic_first if self._centralized else timesteps.first
            return critic.encode(obs, self._state(timesteps.state), first, hidden_state)

        return self._unroll(call, batch, time, tree_map(torch.zeros_like, hidden_state))

    def evaluate(self, critic: Any, features: Tree, action: dict[str, Tensor]) -> Tensor:
        """Returns a critic's Q [.., N] of actions, vectors by role [.., n, P]."""
        return critic.q_values(features, self._joint.join(action) if self._centralized else action)[..., 0]

    def _unroll(self, call: Callable, batch: Batch, time: slice, hidden_state: HiddenState) -> Tree:
        """Outputs of a network at some timesteps; those before only warm up its hidden state."""

        def part(time: slice) -> Batch:
            return replace(batch, timesteps=at(time, batch.timesteps), critic_first=at(time, batch.critic_first))

        if self._recurrent and time.start:
            with torch.no_grad():
                hidden_state = call(part(slice(0, time.start)), hidden_state)[1]
        return call(part(time), hidden_state)[0]

    def _actions(
        self, outputs: dict[str, Tensor], batch: Batch, time: slice, smoothing: tuple[float, float] | None
    ) -> dict[str, Tensor]:
        """Actions at some timesteps as vectors by role, from an actor's outputs.

        If returns outlive agents, dead agents act with zeros. Else an agent that was truncated alone still acts.
        """
        alive, masks = batch.timesteps.alive[time], at(time, batch.timesteps.action_mask)
        length, own = alive.shape[:2]
        noise = self.ranks.draw(
            lambda count: draw_block_noise(self.policy.blocks, (length, count), self.generator, self.device),
            own=own,
            axis=1,
        )
        vectors = relaxed_actions(
            self.policy.blocks, outputs, masks, noise, temperature=self.config.gumbel_temperature, smoothing=smoothing
        )
        masked = self.team.agents_can_die and self._outlives
        return mask_by_role(vectors, self.team.roles, alive) if masked else vectors

    def _logits(self, outputs: dict[str, Tensor], batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Logits of discrete actions [R, S, n, A] by block, and where valid agents can choose them."""
        logits, available, masks = [], [], at(batch.learned, batch.timesteps.action_mask)
        for block in self.policy.blocks:
            if size := block.action_spec.mask_size:
                logits.append(outputs[block.name][..., :size])
                valid = batch.valid[..., block.start : block.stop, None].expand_as(logits[-1])
                mask = block.join_masks(masks)
                available.append(valid if mask is None else valid & mask)
        return logits, available

    def _set_exploration(self, progress: float) -> None:
        """Sets the exploration of the policy until the next update."""
        config = self.config
        self.policy.noise_std = config.noise_std * scheduled(config.noise_schedule, 1.0, config.noise_end, progress)
        self.policy.uniform = self._steps < config.random_steps

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self._policy_optimizer.for_module("policy"), (self.target_policy,))

    def policy_of_targets(self, *, target: bool) -> DeterministicPolicy:
        return self.policy.with_network(self.target_policy.module if target else self.policy.net)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | self.others.state_dict() | self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.others.load_state_dict(state)
        self._state.load_state_dict(state)

    def _parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "critic": self.critics,
            "target_policy": self.target_policy,
            "target_critic": self.target_critics,
            "policy_optimizer": self._policy_optimizer,
            "critic_optimizer": self._critic_optimizer,
        }

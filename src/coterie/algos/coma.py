"""COMA: policy gradients of a team with a counterfactual baseline for each agent.

A centralized critic estimates, for each agent, the value of each of its choices given the actions of the others. The
advantage of an action is its value minus the policy's average over the agent's choices, so that an agent is credited
with its own contribution to the team's return.

Sources: Foerster et al. 2018; the target network and the schedules follow PyMARL.
Differences: truncated episodes are bootstrapped; the actions of the last timestep are not known, so its value is the
average over the agent's choices with the others' actions drawn from the present policy; with several discrete
components, each has a value and a baseline of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import (
    AlgorithmContext,
    Capabilities,
    CloningOptimizer,
    central_inputs,
    central_state_name,
    component_matrix,
    group_membership,
    learns_common_reward,
    require_equal_spaces,
)
from coterie.algos.base_config import Derived, OnPolicyConfig, RunFacts, Units
from coterie.algos.learner import CentralState
from coterie.algos.on_policy import OnPolicyLearner, require_samples
from coterie.algos.optimizer import Optimizer, Schedule, TargetNetwork, scheduled
from coterie.algos.other_teams import GlobalCriticLearner, OtherTeamsReader
from coterie.algos.sequences import as_sequences, backward_in_time, sequence_length, sequence_minibatches
from coterie.config.needs import SEVERAL, Needs
from coterie.config.schema import Count
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator, restore
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, register_pytree, tree_map
from coterie.core.types import Rollout
from coterie.functional.counterfactual import COMALoss, coma_loss, component_mean, critic_loss, sum_by_component
from coterie.functional.returns import (
    agent_rewards,
    bootstrap_masks,
    lambda_return,
    present_agents,
    terminate_at_limit,
    valid_mask,
)
from coterie.functional.statistics import explained_variance
from coterie.nets.choice_critics import CounterfactualCritic
from coterie.nets.config import Activation, RNNKind
from coterie.nets.joint_actions import JointAction, last_actions, mask_by_role, pad_by_agent, unpad_by_role
from coterie.policies.epsilon_soft import EpsilonSoftPolicy

declare(
    Metric("policy/pi_max", "", "mean probability of the most likely choice", better=None, combine="mean"),
    Metric("value/lr", "", "learning rate of the critic", better=None, combine="last"),
)


class COMAConfig(OnPolicyConfig):
    """Settings of COMA."""

    critic: Literal["own", "joint", "state", "joint_state", "global"] = "joint"
    """Input of the critic besides the agent's own observation and the actions of the others: nothing (own), the joint
    observation of the team, the environment's state, both of these, or observations and actions of all teams (global).
    """
    critic_last_action: bool = False
    """The critic reads the previous actions of all agents of the team."""
    obs_last_action: bool = False
    """The actor reads the previous action of its agent."""
    rollout_length: int = Field(32, ge=1, le=10**6)
    lr: float = Field(1e-3, gt=0, lt=1)
    sequence_length: int | None = Field(None, ge=1, le=100_000)
    """Timesteps per sequence: traces of returns and recurrent networks do not extend over its ends; null: the rollout
    length.
    """
    epochs: int = Field(1, ge=1, le=1000)
    batch_size: int | None = Field(None, ge=1, le=1_000_000)
    """Sequences per minibatch, drawn without replacement for each; null: each pass partitions the rollout's."""
    critic_time_chunks: int = Field(8, ge=1, le=100_000)
    """Chunks of time per minibatch, from the last to the first, each one gradient step of the critic. Advantages use
    the values before the step, see `updated_advantages`. Surplus timesteps go to the latest chunks; at most one chunk
    per timestep.
    """
    critic_loss_mask: Literal["team", "agent"] = "team"
    """Timesteps of an agent that the critic's loss includes: those in which anybody of the team acts (team, as PyMARL),
    or those in which the agent itself acts (agent, as XuanCe's feed-forward learner). They differ where agents die:
    returns of an agent continue with its team (team), or end at its own death (agent).
    """
    updated_advantages: bool = False
    """Compute advantages with the critic after its steps on the minibatch, as XuanCe with MindSpore; false: with its
    values before, as XuanCe with PyTorch.
    """
    lr_schedule: Schedule = "constant"
    """Schedule of the actor's learning rate, from `lr` to `lr_end` times `lr` over the run."""
    lr_end: Annotated[float, Needs("lr_schedule!=constant")] = Field(0.01, gt=0, le=1)
    """Final learning rate of the actor as a fraction of the initial one."""
    critic_lr_schedule: Schedule = "constant"
    """Schedule of the critic's learning rate, down to `critic_lr_end` times its value over the run."""
    critic_lr_end: Annotated[float, Needs("critic_lr_schedule!=constant")] = Field(0.01, gt=0, le=1)
    """Final learning rate of the critic as a fraction of the initial one."""
    td_lambda: float = Field(0.8, ge=0, le=1)
    """Lambda of the critic's TD(lambda) targets."""
    tau: Annotated[float, Needs("target_update_interval=null")] = Field(0.01, gt=0, le=1)
    """Fraction of the soft update of the target critic."""
    target_update_interval: int | None = Field(None, ge=1, le=10**12)
    """Gradient steps of the critic between hard updates of its target; null: a soft update after each step."""
    epsilon_start: float = Field(0.1, ge=0, le=1)
    """Initial fraction of uniform exploration that is mixed into the policy."""
    epsilon_end: Annotated[float, Needs("epsilon_schedule!=constant")] = Field(0.01, ge=0, le=1)
    """Final fraction of uniform exploration."""
    epsilon_schedule: Schedule = "linear"
    """Schedule of the fraction from `epsilon_start` to `epsilon_end`."""
    epsilon_decay_steps: Annotated[Count | None, Needs("epsilon_schedule!=constant")] = Field(None, ge=1, le=10**15)
    """Environment steps from `epsilon_start` to `epsilon_end`; null: the whole run."""
    normalize_advantage: bool = True
    """Normalize advantages over the valid entries of a minibatch."""
    critic_hidden_sizes: tuple[Units, ...] | None = Field((128, 128), min_length=1)
    activation: Activation = "relu"
    rnn: RNNKind = "none"
    """Recurrent layer of the actor; the critic has none."""
    common_reward: Annotated[bool, SEVERAL] = True
    """Give every agent the mean reward of the team; false: its own plus that of its group."""

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.epsilon_decay_steps is None and self.epsilon_schedule != "constant" and run.steps is not None:
            found["epsilon_decay_steps"] = Derived(run.steps, "the whole run")
        return found

    @property
    def learns_from_sequences(self) -> bool:
        return True

    @property
    def needs_state(self) -> bool:
        """True if the critic reads the environment's state."""
        return "state" in self.critic

    def check(self, sequences_per_env: int, num_envs: int) -> None:
        """Raises UserError if minibatches want more sequences than a rollout has, or epsilon cannot reach its end."""
        if self.batch_size is None:
            assert self.num_minibatches is not None  # derived
            require_samples("num_minibatches", self.num_minibatches, sequences_per_env, num_envs)
        else:
            require_samples("batch_size", self.batch_size, sequences_per_env, num_envs)
        if self.epsilon_schedule == "exponential":
            for name, epsilon in (("epsilon_end", self.epsilon_end), ("epsilon_start", self.epsilon_start)):
                if epsilon == 0:
                    raise UserError(
                        f"algo.{name}: must be above 0 for an exponential schedule. Use algo.epsilon_schedule=linear."
                    )


def build_policy(
    config: COMAConfig, team: TeamSpec, weights: torch.Generator, device: torch.device
) -> EpsilonSoftPolicy:
    """Returns the policy with its initial epsilon; `weights` draws its initial parameters."""
    network = replace(config.network_config(team), obs_last_action=config.obs_last_action)
    policy = EpsilonSoftPolicy(team, network, weights, device, stores_last_action=config.critic_last_action)
    policy.epsilon = config.epsilon_start
    return policy


def build_critic(
    config: COMAConfig, team: TeamSpec, state_size: int, weights: torch.Generator, *, device: torch.device
) -> CounterfactualCritic:
    """Returns the critic; `weights` draws its initial parameters."""
    network = replace(config.critic_network_config(team), rnn="none", joint=config.critic != "own")
    inputs = central_inputs(config.critic, team, state_size)
    critic = CounterfactualCritic(
        team, network, weights, device, inputs=inputs, reads_last_action=config.critic_last_action
    )
    return critic.to(device)


@register_pytree
@dataclass(frozen=True)
class Batch:
    """Inputs and targets of the critic for sequences, [T, B, ..]."""

    obs: dict[str, Tree]
    state: Tensor | None
    joint_action: Tensor
    last_joint_action: Tensor | None
    taken: Tensor
    """[T, B, N, A], 1 at the choice taken in each component, else 0."""
    target: Tensor
    """TD(lambda) returns [T, B, N]."""
    valid: Tensor
    """[T, B, N] bool, True where somebody acted."""


class COMA(OnPolicyLearner, GlobalCriticLearner):
    """COMA, see the module's description."""

    Config: ClassVar = COMAConfig
    base: ClassVar = "coma"
    capabilities: ClassVar = Capabilities(
        actions=frozenset({"discrete", "multi_discrete"}), images=True, cuda_graphs=True
    )
    reported: ClassVar = (
        *("loss/policy", "policy/entropy", "policy/advantage", "policy/pi_max", "policy/grad_norm"),
        *("loss/value", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm"),
        "value/explained_variance",
    )

    def __init__(self, config: COMAConfig, context: AlgorithmContext) -> None:
        config = context.with_derived(config)
        super().__init__(config, context)
        self.config, team, device = config, context.team, context.device
        self._recurrent = config.recurrent
        self._length = sequence_length(config.sequence_length, self.rollout_length)
        self._num_chunks = min(config.critic_time_chunks, self._length)
        config.check(self.rollout_length // self._length, context.total_envs)
        require_equal_spaces(team, config.share_params)
        state_name = central_state_name(team, config.critic) if config.needs_state else None
        self._state = CentralState(config, team, state_name, device)
        weights = generator(context.seed, "weights")
        self.policy: EpsilonSoftPolicy = build_policy(config, team, weights, device)
        self.critic = build_critic(config, team, self._state.size, weights, device=device)
        adam = config.adam_settings
        self._actor_optimizer = Optimizer({"policy": self.policy.actor}, *adam, ranks=self.ranks)
        self._critic_optimizer = Optimizer({"value": self.critic}, *adam, ranks=self.ranks)
        self.target = TargetNetwork(self.critic, config.tau, config.target_update_interval)
        self._joint = JointAction(team, device)
        self.others: OtherTeamsReader = OtherTeamsReader(
            config.critic, team, device, normalize_obs=config.normalize_obs, seed=context.seed, ranks=self.ranks
        )
        self._critic_joint = JointAction(team, device, self.others.roles)
        self._membership = group_membership(team).to(device)
        self._common_reward = learns_common_reward(config, team)
        self._component = component_matrix(team, device)
        if config.critic_loss_mask == "agent" and not team.agents_can_die:
            self.notes = (
                f"algo.critic_loss_mask=agent has no effect on team {team.name}, whose agents live as long as the "
                "episode.",
            )
        self.next_actions = generator(context.seed, "look ahead", device=device)
        """Draws the others' actions at the last timestep of a rollout."""
        self._steps, self._run_steps = 0, context.steps
        self._step_function = self._captured(
            self._step,
            optimizers=(self._actor_optimizer, self._critic_optimizer),
            modules=(*self.policy.networks, self.critic, *self.others.networks, *self._state.networks),
            targets=(self.target,),
            generators=(self.next_actions,),
            constants=self._constants,
        )

    def _constants(self) -> Hashable:
        return self.policy.constants

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        rollout = rollout if config.bootstrap_at_limit else terminate_at_limit(rollout)
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        critic_lr = config.critic_lr or config.lr
        critic_lr *= scheduled(config.critic_lr_schedule, 1.0, config.critic_lr_end, progress)
        entropy_coef = config.entropy_coef * scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)
        coefficients = {"policy": lr, "value": critic_lr, "entropy": entropy_coef}
        sequences = self.as_sequences(rollout)
        # Minibatches; for each of them targets, steps of the critic, and a step of the actor
        reports, _ = self._train(
            lambda: sequence_minibatches(
                sequences,
                self._num_minibatches,
                config.batch_size,
                self._shuffle,
                num_envs=rollout.num_envs,
                ranks=self.ranks,
            ),
            lambda minibatch: self._step_function(minibatch, coefficients),
        )
        # Metrics
        self._observe(rollout)
        metrics = self._mean_metrics(reports, self.reported)
        metrics |= {"policy/lr": lr, "value/lr": critic_lr, "policy/entropy_coef": entropy_coef}
        metrics["policy/epsilon"] = self.policy.epsilon
        # Exploration of the next rollout
        self._steps += int(self.ranks.total(int(rollout.acted[:-1].sum()))[0])
        is_whole = config.epsilon_decay_steps in (None, self._run_steps)
        passed = progress if is_whole else self._steps / (config.epsilon_decay_steps or 1)
        self.policy.epsilon = scheduled(config.epsilon_schedule, config.epsilon_start, config.epsilon_end, passed)
        return metrics

    def _step(self, minibatch: Rollout, coefficients: Mapping[str, float | Tensor]) -> Tensor:
        """Takes the steps of the critic and one of the actor on a minibatch, and returns the report [reported].

        Args:
            minibatch: Sequences.
            coefficients: Learning rates `policy` and `value`, and the weight of the `entropy`.
        """
        # Targets, from the present policy
        batch, log_pi = self.targets(minibatch)
        # Critic: loss and optimizer steps. Advantages use the values before the steps, unless configured otherwise.
        q, critic_report = self._train_critic(batch, coefficients)
        if self.config.updated_advantages:
            with torch.no_grad():
                q = self.critic(batch.obs, batch.state, batch.joint_action, batch.last_joint_action)
        # Actor: loss and optimizer step
        terms = self.loss_terms(log_pi, q, batch.taken, valid_mask(minibatch))
        loss = terms.policy - coefficients["entropy"] * terms.entropy
        grad_norm = self._actor_optimizer.step(loss, {"policy": coefficients["policy"]})
        explained = self._explained_variance(q, batch)
        return torch.cat([torch.stack(terms).detach(), grad_norm, critic_report, explained])

    def loss_terms(self, log_pi: Tensor, q: Tensor, taken: Tensor, valid: Tensor) -> COMALoss:
        """Returns the terms of the actor's loss on a minibatch, see `coma_loss`; for subclasses to override.

        The step descends L_policy - c_H H. Another term is added to one of these:
        `terms._replace(policy=terms.policy + extra)`.

        Args:
            log_pi: log pi of each choice [T, B, N, A].
            q: Values of each choice, without gradient [T, B, N, A].
            taken: 1 at the choice taken in each component, else 0 [T, B, N, A].
            valid: [T, B, N] bool, entries that are learned from.
        """
        return coma_loss(
            log_pi,
            q,
            taken,
            valid,
            component=self._component,
            normalize_advantage=self.config.normalize_advantage,
            reduction=self.reduction,
        )

    def targets(self, rollout: Rollout) -> tuple[Batch, Tensor]:
        """Computes TD(lambda) targets with the target critic; for subclasses to override.

        They end where the values that they bootstrap from are not learned: with the team, or, with
        `critic_loss_mask=agent`, at the agent's own death.

        Returns:
            The batch [T, B, ..], and log-probabilities of all choices with gradients [T, B, N, A].
        """
        config, team = self.config, self.team
        obs = self.policy.obs_normalizer.of_rollout(rollout)
        state = self._state(rollout.state)
        actions = self._joint.encode(rollout.action)
        last = self._last_actions(actions, rollout)
        log_pi = self.policy.log_probs(
            obs,
            rollout.action_mask,
            first=rollout.first if self._recurrent else None,
            hidden_state=rollout.hidden_state,
            last=last,
        )  # [T + 1, B, N, A]
        with torch.no_grad():
            taken, last_pi = pad_by_agent(actions), log_pi[-1].exp()
            joint_action = self._joint_actions(actions, last_pi, rollout)
            last_joint_action = self._joint.join(last) if last is not None and config.critic_last_action else None
            obs = obs | self.others.obs(rollout.others)
            q = self.target.module(obs, state, joint_action, last_joint_action)
            # The actions of the last timestep are not known: average over the agent's choices.
            weight = torch.cat([taken[1:], last_pi.unsqueeze(0)])
            of_team = config.critic_loss_mask == "team"
            terminated, boundary = bootstrap_masks(rollout, of_team, team.agents_can_die)
            target = lambda_return(
                reward=agent_rewards(rollout, self._membership, team.has_group_reward, self._common_reward),
                next_value=component_mean(sum_by_component(q[1:] * weight, self._component), self._component),
                terminated=terminated,
                boundary=boundary,
                gamma=config.gamma,
                td_lambda=config.td_lambda,
            )
        batch = Batch(
            obs=tree_map(lambda x: x[:-1], obs),
            state=None if state is None else state[:-1],
            joint_action=joint_action[:-1],
            last_joint_action=None if last_joint_action is None else last_joint_action[:-1],
            taken=taken,
            target=target,
            valid=valid_mask(rollout, of_team),
        )
        return batch, log_pi[:-1]

    def _train_critic(self, batch: Batch, coefficients: Mapping[str, float | Tensor]) -> tuple[Tensor, Tensor]:
        """Trains the critic backward in time; returns the values before the steps [T, B, N, A] and the mean report."""

        def step(time: slice) -> tuple[Tensor, Tensor]:
            chunk = tree_map(lambda x: x[time], batch)
            q = self.critic(chunk.obs, chunk.state, chunk.joint_action, chunk.last_joint_action)
            terms = critic_loss(
                q, chunk.taken, chunk.target, chunk.valid, component=self._component, reduction=self.reduction
            )
            grad_norm = self._critic_optimizer.step(terms.loss, {"value": coefficients["value"]})
            self.target.update()
            return q.detach(), torch.cat([torch.stack(terms).detach(), grad_norm])

        return backward_in_time(self._length, self._num_chunks, step)

    def _explained_variance(self, q: Tensor, batch: Batch) -> Tensor:
        """Returns the share of the variance of the targets that the values q [T, B, N, A] explain [1]."""
        q_taken = component_mean(sum_by_component(q * batch.taken, self._component), self._component)
        explained = explained_variance(batch.target, batch.target - q_taken, batch.valid, self.reduction)
        return explained.reshape(1).to(q.dtype)

    def _joint_actions(self, actions: dict[str, Tensor], last_pi: Tensor, rollout: Rollout) -> Tensor:
        """Returns the joint action of each timestep [T + 1, B, J], the last one drawn from `last_pi` [B, N, A].

        A global critic's includes the other teams, whose actions of the last timestep the collector drew.
        """
        by_timestep = {}
        for role, pi in zip(self.team.roles, last_pi.split([r.n for r in self.team.roles], -2), strict=True):
            drawn = []
            for component in pi[..., : role.action.mask_size].split(role.action.choices, -1):
                choice = (component / self._waiting_times(component)).argmax(-1)  # the first to end
                drawn.append(torch.zeros_like(component).scatter_(-1, choice.unsqueeze(-1), 1.0))
            by_timestep[role.name] = torch.cat([actions[role.name], torch.cat(drawn, -1).unsqueeze(0)])
        if self.team.agents_can_die:
            by_timestep = mask_by_role(by_timestep, self.team.roles, present_agents(rollout))
        by_timestep |= self.others.encode(self.others.actions(rollout.others), rollout.others)
        return self._critic_joint.join(by_timestep)

    def _waiting_times(self, probs: Tensor) -> Tensor:
        """Draws an exponential number per choice, of the shape of the probabilities of a component [B, n, A_k]."""

        def draw(num_envs: int) -> Tensor:
            return probs.new_empty(num_envs, *probs.shape[1:]).exponential_(generator=self.next_actions)

        return self.ranks.draw(draw, own=len(probs), axis=0)

    def _last_actions(self, actions: dict[str, Tensor], rollout: Rollout) -> dict[str, Tensor] | None:
        """Returns the previous actions by role [T + 1, B, n, P]; None if no network reads them."""
        if not self.policy.stores_last_action:
            return None
        done = actions
        if self.team.agents_can_die:
            done = mask_by_role(actions, self.team.roles, valid_mask(rollout))
        return last_actions(done, rollout.first, unpad_by_role(self.team, rollout.hidden_state["last"]))

    @torch.no_grad()
    def as_sequences(self, rollout: Rollout) -> Rollout:
        """Splits the rollout into sequences, with the policy's hidden state before each."""
        length = self._length
        if length == self.rollout_length:
            return rollout
        hidden_state, before = rollout.hidden_state, []
        obs = self.policy.obs_normalizer.of_rollout(rollout)
        actions, valid = self._joint.encode(rollout.action), valid_mask(rollout)
        last = self._last_actions(actions, rollout)
        for start in range(0, self.rollout_length, length):
            before.append(hidden_state)
            time = slice(start, start + length)
            part, part_last = tree_map(lambda x, time=time: x[time], (obs, last))
            if self._recurrent:
                hidden_state = hidden_state | self.policy.unroll(
                    part, rollout.first[time], hidden_state, last=part_last
                )
            if self.policy.stores_last_action:
                done = {role: action[time][-1] for role, action in actions.items()}
                done = mask_by_role(done, self.team.roles, valid[time][-1])
                hidden_state = hidden_state | {"last": pad_by_agent(done)}
        return as_sequences(rollout, length, tree_map(lambda *x: torch.cat(x), *before))

    def cloning_optimizer(self) -> CloningOptimizer:
        return CloningOptimizer(self._actor_optimizer.for_module("policy"))

    def state_dict(self) -> dict[str, Any]:
        return (
            {
                "policy": self.policy.state_dict(),
                "critic": self.critic.state_dict(),
                "target": self.target.state_dict(),
                "actor_optimizer": self._actor_optimizer.state_dict(),
                "critic_optimizer": self._critic_optimizer.state_dict(),
                "shuffle": self._shuffle.get_state(),
                "next_actions": self.next_actions.get_state(),
                "epsilon": self.policy.epsilon,
                "steps": self._steps,
            }
            | self.others.state_dict()
            | self._state.state_dict()
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        restore(self._shuffle, state["shuffle"])
        restore(self.next_actions, state["next_actions"])
        self.policy.epsilon = state["epsilon"]
        self._steps = state["steps"]
        self.others.load_state_dict(state)
        self._state.load_state_dict(state)

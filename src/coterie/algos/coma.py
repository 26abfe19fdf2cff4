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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.algos.algorithm import (
    Algorithm,
    AlgorithmContext,
    Capabilities,
    central_state_name,
    component_matrix,
    group_membership,
    learns_common_reward,
    require_equal_spaces,
)
from coterie.algos.behavior_cloning import CloningLearner, CloningOptimizer
from coterie.algos.coma_config import COMAConfig, build_critic, build_policy
from coterie.algos.graphed_steps import GraphedStep, Step, StepResult
from coterie.algos.minibatches import backward_in_time, minibatch_indices, select_envs
from coterie.algos.on_policy import sequence_length
from coterie.algos.optimizer import Optimizer, TargetNetwork, mean_metrics, scheduled
from coterie.algos.other_teams import GlobalCriticLearner, OtherTeamsReader
from coterie.algos.sequences import as_sequences
from coterie.core import cuda_graphs
from coterie.core.ranks import current
from coterie.core.seeds import generator, restore
from coterie.core.tree import Tree, register_pytree, tree_map
from coterie.core.types import Rollout
from coterie.math.counterfactual import coma_loss, component_mean, critic_loss, sum_by_component
from coterie.math.returns import agent_rewards, bootstrap_masks, lambda_return, present_agents, valid_mask
from coterie.math.statistics import explained_variance
from coterie.nets.joint_actions import JointAction, mask_by_role, pad_by_agent
from coterie.nets.last_actions import last_actions, unpad_by_role
from coterie.policies.epsilon_soft import EpsilonSoftPolicy

_REPORTED = ("loss/policy", "policy/entropy", "policy/advantage", "policy/pi_max", "policy/grad_norm")
_REPORTED += ("loss/value", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")
_REPORTED += ("value/explained_variance",)


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


class COMA(Algorithm, CloningLearner, GlobalCriticLearner):
    """COMA, see the module's description."""

    Config: ClassVar = COMAConfig
    capabilities: ClassVar = Capabilities(
        actions=frozenset({"discrete", "multi_discrete"}), images=True, cuda_graphs=True
    )

    def __init__(self, config: COMAConfig, context: AlgorithmContext) -> None:
        team, device = context.team, context.device
        self.team, self.config, self.device = team, config, device
        self.rollout_length = context.rollout_length or config.rollout_length
        self._recurrent = config.recurrent
        self._length = sequence_length(config.sequence_length, self.rollout_length)
        self._num_chunks = min(config.critic_time_chunks, self._length)
        config.check(self.rollout_length // self._length, context.total_envs)
        require_equal_spaces(team, config.share_params)
        self._state_name = central_state_name(team, config.critic) if config.needs_state else None
        weights = generator(context.seed, "weights")
        self.policy: EpsilonSoftPolicy = build_policy(config, team, weights, device)
        self.critic = build_critic(config, team, self._state_name, weights, device=device)
        adam = config.adam_settings
        self._actor_optimizer = Optimizer({"policy": self.policy.actor}, *adam)
        self._critic_optimizer = Optimizer({"value": self.critic}, *adam)
        self.target = TargetNetwork(self.critic, config.tau, config.target_update_interval)
        self._joint = JointAction(team, device)
        self.others: OtherTeamsReader = OtherTeamsReader(
            config.critic, team, device, normalize_obs=config.normalize_obs, seed=context.seed
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
        self._shuffle = generator(context.seed, "minibatches", device=context.device)
        self.next_actions = generator(context.seed, "look ahead", device=device)
        """Draws the others' actions at the last timestep of a rollout."""
        self._steps = 0
        self._step_function: Step | GraphedStep[StepResult] = self._step
        if cuda_graphs.enabled:
            self._step_function = GraphedStep(
                self._step,
                optimizers=(self._actor_optimizer, self._critic_optimizer),
                modules=(*self.policy.networks, self.critic, *self.others.networks),
                targets=(self.target.module,),
                generators=(self.next_actions,),
                constants=lambda: self.policy.constants,
                what=f"the update of team {team.name}",
            )

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        critic_lr = config.critic_lr or config.lr
        critic_lr *= scheduled(config.critic_lr_schedule, 1.0, config.critic_lr_end, progress)
        entropy_coef = config.entropy_coef * scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)
        coefficients = {"policy": lr, "value": critic_lr, "entropy": entropy_coef}
        sequences = self.as_sequences(rollout)
        reports = []
        for _ in range(config.epochs):
            # Minibatches
            num_sequences = sequences.reward.shape[1]
            for indices in minibatch_indices(
                num_sequences,
                config.num_minibatches,
                config.batch_size,
                self._shuffle,
                num_envs=rollout.num_envs,
            ):
                minibatch = sequences if indices is None else select_envs(sequences, indices)
                hard_updates = self.target.count_steps(self._num_chunks)
                due = {f"hard_update_{k}": hard_update for k, hard_update in enumerate(hard_updates)}
                # Targets, steps of the critic, step of the actor
                reports += self._step_function(minibatch, coefficients | due).reports
        # Metrics
        if self.policy.obs_normalizer is not None:
            self.policy.obs_normalizer.update(tree_map(lambda x: x[:-1], rollout.obs), valid_mask(rollout))
        self.others.update(rollout.others, rollout.acted)
        metrics = mean_metrics(torch.stack(reports), _REPORTED, self.team.name)
        metrics |= {"policy/lr": lr, "value/lr": critic_lr, "policy/entropy_coef": entropy_coef}
        metrics["policy/epsilon"] = self.policy.epsilon
        # Exploration of the next rollout
        self._steps += int(current().total(int(rollout.acted[:-1].sum()))[0])
        passed = progress if config.epsilon_decay_steps is None else self._steps / config.epsilon_decay_steps
        self.policy.epsilon = scheduled(config.epsilon_schedule, config.epsilon_start, config.epsilon_end, passed)
        return metrics

    def _step(self, minibatch: Rollout, coefficients: Mapping[str, float | Tensor]) -> StepResult:
        """Takes the steps of the critic and one of the actor on a minibatch.

        Args:
            minibatch: Sequences.
            coefficients: Learning rates `policy` and `value`, the weight of the `entropy`, and for each step of the
                critic 1 if its target is set equal to it after the step, else 0.
        """
        # Targets, from the present policy
        batch, log_pi = self.targets(minibatch)
        # Critic: loss and optimizer steps. Advantages use the values before the steps, unless configured otherwise.
        q, critic_report = self._train_critic(batch, coefficients)
        if self.config.updated_advantages:
            with torch.no_grad():
                q = self.critic(batch.obs, batch.state, batch.joint_action, batch.last_joint_action)
        # Actor: loss and optimizer step
        terms = coma_loss(
            log_pi,
            q,
            batch.taken,
            valid_mask(minibatch),
            component=self._component,
            normalize_advantage=self.config.normalize_advantage,
        )
        loss = terms.policy - coefficients["entropy"] * terms.entropy
        grad_norm = self._actor_optimizer.step(loss, {"policy": coefficients["policy"]})
        explained = self._explained_variance(q, batch)
        return StepResult((torch.cat([torch.stack(terms).detach(), grad_norm, critic_report, explained]),), None)

    def targets(self, rollout: Rollout) -> tuple[Batch, Tensor]:
        """Computes TD(lambda) targets with the target critic.

        Returns:
            The batch [T, B, ..], and log-probabilities of all choices with gradients [T, B, N, A].
        """
        config, team = self.config, self.team
        obs = self._normalized_obs(rollout)
        state = None if self._state_name is None else rollout.state[self._state_name]
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
            terminated, boundary = bootstrap_masks(rollout, centralized=True, agents_can_die=team.agents_can_die)
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
            valid=valid_mask(rollout, of_team=config.critic_loss_mask == "team"),
        )
        return batch, log_pi[:-1]

    def _train_critic(self, batch: Batch, coefficients: Mapping[str, float | Tensor]) -> tuple[Tensor, Tensor]:
        """Trains the critic backward in time; returns the values before the steps [T, B, N, A] and the mean report."""
        hard_updates = iter([coefficients[f"hard_update_{k}"] for k in range(self._num_chunks)])

        def step(time: slice) -> tuple[Tensor, Tensor]:
            chunk = tree_map(lambda x: x[time], batch)
            q = self.critic(chunk.obs, chunk.state, chunk.joint_action, chunk.last_joint_action)
            terms = critic_loss(q, chunk.taken, chunk.target, chunk.valid, component=self._component)
            grad_norm = self._critic_optimizer.step(terms.loss, {"value": coefficients["value"]})
            self.target.soft_update()
            self.target.hard_update_if(next(hard_updates))
            return q.detach(), torch.cat([torch.stack(terms).detach(), grad_norm])

        return backward_in_time(self._length, self._num_chunks, step)

    def _explained_variance(self, q: Tensor, batch: Batch) -> Tensor:
        """Returns the share of the variance of the targets that the values q [T, B, N, A] explain [1]."""
        q_taken = component_mean(sum_by_component(q * batch.taken, self._component), self._component)
        return explained_variance(batch.target, batch.target - q_taken, batch.valid).reshape(1).to(q.dtype)

    def _normalized_obs(self, rollout: Rollout) -> dict[str, Tree]:
        normalizer = self.policy.obs_normalizer
        return rollout.obs if normalizer is None else normalizer(rollout.obs)

    def _joint_actions(self, actions: dict[str, Tensor], last_pi: Tensor, rollout: Rollout) -> Tensor:
        """Returns the joint action of each timestep [T + 1, B, J], the last one drawn from `last_pi` [B, N, A].

        A global critic's includes the other teams, whose actions of the last timestep the collector drew.
        """
        by_timestep = {}
        for role, pi in zip(self.team.roles, last_pi.split([r.n for r in self.team.roles], -2), strict=True):
            drawn = []
            for component in pi[..., : role.action.mask_size].split(role.action.choices, -1):
                noise = current().draw(
                    lambda count, component=component: component.new_empty(count, *component.shape[1:]).exponential_(
                        generator=self.next_actions
                    ),
                    own=len(component),
                    axis=0,
                )
                choice = (component / noise).argmax(-1)  # the first of exponential waiting times
                drawn.append(one_hot(choice, component.shape[-1]).to(pi.dtype))
            by_timestep[role.name] = torch.cat([actions[role.name], torch.cat(drawn, -1).unsqueeze(0)])
        if self.team.agents_can_die:
            by_timestep = mask_by_role(by_timestep, self.team.roles, present_agents(rollout))
        by_timestep |= self.others.encode(self.others.actions(rollout.others), rollout.others)
        return self._critic_joint.join(by_timestep)

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
        obs = self._normalized_obs(rollout)
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
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "next_actions": self.next_actions.get_state(),
            "epsilon": self.policy.epsilon,
            "steps": self._steps,
        } | self.others.state_dict()

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

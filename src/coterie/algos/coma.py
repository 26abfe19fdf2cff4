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

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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
    require_equal_spaces,
)
from coterie.algos.behavior_cloning import CloningLearner, CloningOptimizer
from coterie.algos.coma_config import COMAConfig, build_critic, build_policy
from coterie.algos.minibatches import backward_in_time, minibatch_indices, select_envs
from coterie.algos.on_policy import sequence_length
from coterie.algos.optimizer import Optimizer, TargetNetwork, mean_metrics, scheduled
from coterie.algos.sequences import as_sequences
from coterie.core.seeds import generator
from coterie.core.tree import Tree, register_pytree, tree_map
from coterie.core.types import Rollout
from coterie.math.returns import agent_rewards, bootstrap_masks, lambda_return, present_agents, valid_mask
from coterie.math.statistics import masked_mean, standardize
from coterie.nets.joint_actions import JointAction, pad_by_agent
from coterie.nets.last_actions import last_actions, unpad_by_role
from coterie.policies.epsilon_soft import EpsilonSoftPolicy

_REPORTED = ("loss/policy", "policy/entropy", "policy/advantage", "policy/pi_max", "policy/grad_norm")
_REPORTED += ("loss/value", "value/td_error_abs", "value/q_taken_mean", "value/target_mean", "value/grad_norm")


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


def sum_by_component(x: Tensor, component: Tensor | None) -> Tensor:
    """Sums numbers per choice over the choices of each discrete component.

    Args:
        x: [.., N, A].
        component: [N, A, K], 1 where a choice belongs to a component; None if all choices belong to one.

    Returns:
        [.., N, K].
    """
    return x.sum(-1, keepdim=True) if component is None else torch.einsum("...na,nak->...nk", x, component)


def counterfactual_advantage(q: Tensor, pi: Tensor, taken: Tensor, component: Tensor | None = None) -> Tensor:
    """Advantage of each agent's choice over the policy's average, with the actions of the others fixed.

        A_i = Q_i(s, u) - sum_a pi_i(a) Q_i(s, (u_-i, a))

    Its mean over pi_i is 0 for each joint action of the others.

    Args:
        q: Value of each choice given the actions of the others [.., N, A].
        pi: Probability of each choice, 0 for unavailable ones [.., N, A].
        taken: 1 at the choice taken, else 0 [.., N, A].
        component: See `sum_by_component`.

    Returns:
        [.., N, K].

    Source: Foerster et al. 2018, eq. 4.
    """
    return sum_by_component(q * (taken - pi), component)


class COMALoss(NamedTuple):
    """Terms of the actor's loss and diagnostics, each []."""

    policy: Tensor
    entropy: Tensor
    advantage: Tensor
    pi_max: Tensor


def coma_loss(
    log_pi: Tensor,
    q: Tensor,
    taken: Tensor,
    valid: Tensor,
    component: Tensor | None = None,
    *,
    normalize_advantage: bool = False,
) -> COMALoss:
    """Computes the terms of the actor's loss, L = L_policy - c_H H.

        A_i      = Q_i(s, u) - sum_a pi_i(a) Q_i(s, (u_-i, a))
        L_policy = -mean A_i log pi_i(u_i)

    The mean is over valid entries. With several discrete components, A_i log pi_i is summed over them.

    Args:
        log_pi: Log-probability of each choice, very negative for unavailable ones [.., N, A].
        q: Value of each choice given the actions of the others [.., N, A].
        taken: 1 at the choice taken in each component, else 0 [.., N, A].
        valid: True where the agent acted [.., N].
        component: [N, A, K], 1 where a choice belongs to a component; None if all choices belong to one.
        normalize_advantage: Normalize advantages over valid entries.

    Source: Foerster et al. 2018, eq. 4 and 8.
    """
    pi = log_pi.detach().exp()
    advantage = counterfactual_advantage(q, pi, taken, component)
    advantage = torch.where(valid.unsqueeze(-1), advantage, 0.0)  # masked entries may hold anything
    if normalize_advantage:
        exists = valid.unsqueeze(-1) if component is None else valid.unsqueeze(-1) & component.amax(1).bool()
        advantage = standardize(advantage, exists.expand_as(advantage))
    log_prob = sum_by_component(torch.where(taken > 0, log_pi, 0.0), component)
    return COMALoss(
        policy=masked_mean(-(advantage * log_prob).sum(-1), valid),
        entropy=masked_mean(-(log_pi.exp() * log_pi).sum(-1), valid),
        advantage=masked_mean(component_mean(advantage, component), valid),
        pi_max=masked_mean(pi.amax(-1), valid),
    )


class CriticLoss(NamedTuple):
    """Loss of the critic and diagnostics, each []."""

    loss: Tensor
    td_error_abs: Tensor
    q_taken: Tensor
    target: Tensor


def critic_loss(q: Tensor, taken: Tensor, target: Tensor, valid: Tensor, component: Tensor | None = None) -> CriticLoss:
    """Computes the critic's loss, L = mean (Q_i(s, u) - G)^2 over valid entries and components.

    Arguments as in `coma_loss`; `target` is the TD(lambda) return G [.., N].
    """
    q_taken = sum_by_component(q * taken, component)
    error = q_taken - target.unsqueeze(-1)
    return CriticLoss(
        loss=masked_mean(component_mean(error.square(), component), valid),
        td_error_abs=masked_mean(component_mean(error.abs(), component), valid),
        q_taken=masked_mean(component_mean(q_taken, component), valid),
        target=masked_mean(target, valid),
    )


def component_mean(x: Tensor, component: Tensor | None) -> Tensor:
    """Returns the mean of x [.., N, K] over the components that each agent has [.., N]."""
    if component is None:
        return x.squeeze(-1)
    exists = component.amax(1)  # [N, K]
    return (x * exists).sum(-1) / exists.sum(-1)


class COMA(Algorithm, CloningLearner):
    """COMA, see the module's description."""

    Config: ClassVar = COMAConfig
    capabilities: ClassVar = Capabilities(actions=frozenset({"discrete", "multi_discrete"}), images=True)

    def __init__(self, config: COMAConfig, context: AlgorithmContext) -> None:
        team, device = context.team, context.device
        self.team, self.config, self.device = team, config, device
        self.rollout_length = context.rollout_length or config.rollout_length
        self._recurrent = config.recurrent
        self._length = sequence_length(config.sequence_length, self.rollout_length)
        config.check(self.rollout_length // self._length, context.num_envs)
        require_equal_spaces(team, config.share_params)
        self._state_name = central_state_name(team, config.critic) if config.needs_state else None
        weights = generator(context.seed, "weights")
        self.policy: EpsilonSoftPolicy = build_policy(config, team, weights, device)
        self.critic = build_critic(config, team, self._state_name, weights, device=device)
        adam = (config.adam_eps, config.weight_decay, config.max_grad_norm)
        self._actor_optimizer = Optimizer({"policy": self.policy.actor}, *adam)
        self._critic_optimizer = Optimizer({"value": self.critic}, *adam)
        self.target = TargetNetwork(self.critic, config.tau, config.target_update_interval)
        self._joint = JointAction(team, device)
        self._membership = group_membership(team).to(device)
        self._component = component_matrix(team, device)
        self._shuffle = generator(context.seed, "minibatches", device=context.device)
        self.next_actions = generator(context.seed, "look ahead", device=device)
        """Draws the others' actions at the last timestep of a rollout."""
        self._steps = 0

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        config = self.config
        lr = config.lr * scheduled(config.lr_schedule, 1.0, config.lr_end, progress)
        critic_lr = config.critic_lr or config.lr
        critic_lr *= scheduled(config.critic_lr_schedule, 1.0, config.critic_lr_end, progress)
        entropy_coef = config.entropy_coef * scheduled(config.entropy_schedule, 1.0, config.entropy_end, progress)
        sequences = self.as_sequences(rollout)
        reports = []
        for _ in range(config.epochs):
            # Minibatches
            num_sequences = sequences.reward.shape[1]
            for indices in minibatch_indices(num_sequences, config.num_minibatches, config.batch_size, self._shuffle):
                minibatch = sequences if indices is None else select_envs(sequences, indices)
                # Targets, from the present policy
                batch, log_pi = self.targets(minibatch)
                # Critic: loss and optimizer steps. Advantages use the values before the steps.
                q, critic_report = self._train_critic(batch, critic_lr)
                # Actor: loss and optimizer step
                terms = coma_loss(
                    log_pi,
                    q,
                    batch.taken,
                    valid_mask(minibatch),
                    component=self._component,
                    normalize_advantage=config.normalize_advantage,
                )
                loss = terms.policy - entropy_coef * terms.entropy
                grad_norm = self._actor_optimizer.step(loss, {"policy": lr})
                reports.append(torch.cat([torch.stack(terms).detach(), grad_norm, critic_report]))
        # Metrics
        if self.policy.obs_normalizer is not None:
            self.policy.obs_normalizer.update(tree_map(lambda x: x[:-1], rollout.obs), valid_mask(rollout))
        metrics = mean_metrics(torch.stack(reports), _REPORTED, self.team.name)
        metrics |= {"policy/lr": lr, "value/lr": critic_lr, "policy/entropy_coef": entropy_coef}
        metrics["policy/epsilon"] = self.policy.epsilon
        # Exploration of the next rollout
        self._steps += int(rollout.acted[:-1].sum())
        passed = progress if config.epsilon_decay_steps is None else self._steps / config.epsilon_decay_steps
        self.policy.epsilon = scheduled(config.epsilon_schedule, config.epsilon_start, config.epsilon_end, passed)
        return metrics

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
            q = self.target.module(obs, state, joint_action, last_joint_action)
            # The actions of the last timestep are not known: average over the agent's choices.
            weight = torch.cat([taken[1:], last_pi.unsqueeze(0)])
            terminated, boundary = bootstrap_masks(rollout, centralized=True, agents_can_die=team.agents_can_die)
            target = lambda_return(
                reward=agent_rewards(rollout, self._membership, team.has_group_reward, config.common_reward),
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
            valid=valid_mask(rollout, of_team=True),
        )
        return batch, log_pi[:-1]

    def _train_critic(self, batch: Batch, lr: float) -> tuple[Tensor, Tensor]:
        """Trains the critic backward in time; returns the values before the steps [T, B, N, A] and the mean report."""

        def step(time: slice) -> tuple[Tensor, Tensor]:
            chunk = tree_map(lambda x: x[time], batch)
            q = self.critic(chunk.obs, chunk.state, chunk.joint_action, chunk.last_joint_action)
            terms = critic_loss(q, chunk.taken, chunk.target, chunk.valid, component=self._component)
            grad_norm = self._critic_optimizer.step(terms.loss, {"value": lr})
            self.target.update()
            return q.detach(), torch.cat([torch.stack(terms).detach(), grad_norm])

        return backward_in_time(self._length, self.config.critic_time_chunks, step)

    def _normalized_obs(self, rollout: Rollout) -> dict[str, Tree]:
        normalizer = self.policy.obs_normalizer
        return rollout.obs if normalizer is None else normalizer(rollout.obs)

    def _joint_actions(self, actions: dict[str, Tensor], last_pi: Tensor, rollout: Rollout) -> Tensor:
        """Returns the joint action of each timestep [T + 1, B, J], the last one drawn from `last_pi` [B, N, A]."""
        by_timestep = {}
        for role, pi in zip(self.team.roles, last_pi.split([r.n for r in self.team.roles], -2), strict=True):
            drawn = []
            for component in pi[..., : role.action.mask_size].split(role.action.choices, -1):
                noise = torch.empty_like(component).exponential_(generator=self.next_actions)
                choice = (component / noise).argmax(-1)  # the first of exponential waiting times
                drawn.append(one_hot(choice, component.shape[-1]).to(pi.dtype))
            by_timestep[role.name] = torch.cat([actions[role.name], torch.cat(drawn, -1).unsqueeze(0)])
        if self.team.agents_can_die:
            by_timestep = self._masked(by_timestep, present_agents(rollout))
        return self._joint.join(by_timestep)

    def _last_actions(self, actions: dict[str, Tensor], rollout: Rollout) -> dict[str, Tensor] | None:
        """Returns the previous actions by role [T + 1, B, n, P]; None if no network reads them."""
        if not self.policy.stores_last_action:
            return None
        done = self._masked(actions, valid_mask(rollout)) if self.team.agents_can_die else actions
        return last_actions(done, rollout.first, unpad_by_role(self.team, rollout.hidden_state["last"]))

    def _masked(self, actions: dict[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
        """Returns actions by role [.., n, P] with zeros where `mask` [.., N] is False."""
        masks = dict(zip(actions, mask.split([role.n for role in self.team.roles], -1), strict=True))
        return {role: torch.where(masks[role].unsqueeze(-1), action, 0.0) for role, action in actions.items()}

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
                hidden_state = hidden_state | {"last": pad_by_agent(self._masked(done, valid[time][-1]))}
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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._shuffle.set_state(state["shuffle"].cpu())
        self.next_actions.set_state(state["next_actions"].cpu())
        self.policy.epsilon = state["epsilon"]
        self._steps = state["steps"]

"""SEAC: actor-critic whose agents have networks of their own, and learn from the experience of all agents.

Every agent learns from its own timesteps as in IA2C, and from those of each other agent k as if it had acted there,
with importance weights pi_i / pi_k, since k chose the actions. Agents explore as different policies, and what one of
them finds all of them learn.

Source: Christianos et al. 2020, Shared Experience Actor-Critic for Multi-Agent Reinforcement Learning.
Differences: advantages are generalized advantage estimates. As in the paper, agent i values the timesteps of agent k by
its own critic; the authors' code bootstraps the returns there by the critic of k, and adds 1e-7 to the pi_k that it
divides by, which is not small next to the probabilities of actions with many components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.clipped_learner import Targets, ValueState
from coterie.algos.ppo import PPO, Batch, PPOConfig, PPOLoss
from coterie.algos.sequences import select_envs
from coterie.core.tree import register_pytree, tree_map
from coterie.core.types import HiddenState, Rollout
from coterie.functional.policy_gradient import clipped_policy_loss, clipped_value_error
from coterie.functional.returns import agent_rewards
from coterie.functional.statistics import Reduction, masked_mean


class SEACConfig(PPOConfig):
    """Settings of SEAC."""

    critic: Literal["own"] = "own"
    """Input of the critics: the agent's own observation."""
    share_params: Literal["none"] = "none"
    """Agents share experience, not parameters: networks that are one and the same learn nothing from each other."""
    sharing_coef: float = Field(1.0, ge=0, le=10**6)
    """Weight lambda of the loss on each other agent's experience relative to the agent's own; 0: IA2C."""


@register_pytree
@dataclass(frozen=True)
class SharedBatch(Batch):
    """Training data of SEAC: timesteps of which entry i is of agent i itself, or of another agent."""

    own: Tensor
    """[.., N] bool, True where the timestep is the agent's own."""
    others: Tensor
    """[.., N] bool, True where it is that of another agent of its role."""


def seac_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    batch: SharedBatch,
    *,
    sharing_coef: float,
    num_others: float,
    clip_eps: float,
    value_clip_eps: float | None,
    huber_delta: float | None,
    reduction: Reduction | None = None,
) -> PPOLoss:
    """Computes the terms of the loss of all agents, each of which is the mean over the agents i.

        L_policy = L_own + lambda sum_{k != i} mean sg(w) (-log pi_i(u_k | o_k) A_i(o_k)),   w = pi_i / pi_k
        L_value  = mean l(V_i(o_i), G_i) + lambda sum_{k != i} mean sg(w) l(V_i(o_k), G_k)
        A_i(o_k) = G_k - V_i(o_k),    G_k bootstraps from V_i

    L_own is that of PPO, which has the gradient of -log pi_i(u_i | o_i) A_i(o_i) while the policy is the one that
    acted. Weights have no bound, as in the paper. The means are over valid entries, l is half the squared error or the
    Huber loss.

    Args:
        log_prob: log pi_i of the actions taken [.., N].
        entropy: H, entropy of pi_i [.., N]; only of own timesteps.
        value: V_i [.., N, 1].
        batch: Log-probabilities under the policies that acted, advantages A, targets G, and which entries are own.
        sharing_coef: lambda.
        num_others: Other agents that an agent learns from, mean over the agents.
        clip_eps: Clip range of the ratio of own actions.
        value_clip_eps: Clip range of the value; None for no clipping.
        huber_delta: Error above which l is linear; None for the squared error.
        reduction: Processes whose entries the means are over; None for this one's.

    Source: Christianos et al. 2020, eq. 5 and 6.
    """
    own = batch.own if batch.valid is None else batch.own & batch.valid
    own_values = batch.own if batch.critic_valid is None else batch.own & batch.critic_valid
    others = batch.others if batch.valid is None else batch.others & batch.valid
    policy, kl, clip_fraction = clipped_policy_loss(
        log_prob, batch.log_prob, batch.advantage, own, clip_eps=clip_eps, reduction=reduction
    )
    options = {"clip_eps": value_clip_eps, "huber_delta": huber_delta}
    error = clipped_value_error(value, batch.value, batch.target, **options).mean(-1)
    value_loss = masked_mean(error, own_values, reduction)
    if (share := sharing_coef * num_others) > 0:
        with torch.no_grad():  # other entries may hold anything
            weight = torch.where(others, log_prob - batch.log_prob, 0.0).exp()
        policy = policy + share * masked_mean(-weight * log_prob * batch.advantage, others, reduction)
        value_loss = value_loss + share * masked_mean(weight * error, others, reduction)
    entropy = masked_mean(entropy, own, reduction)
    return PPOLoss(policy=policy, entropy=entropy, kl=kl, clip_fraction=clip_fraction, value=value_loss)


class SEAC(PPO):
    """SEAC, see the module's description.

    An update reads the rollout as one of S times as many environments, where S is the size of the largest role. In the
    s-th copy of an environment, agent i of a role of n has the timesteps of agent (i + s) mod n of this role, if s < n.
    """

    Config: ClassVar = SEACConfig
    base: ClassVar = "seac"
    capabilities: ClassVar = replace(PPO.capabilities, reward_streams=False, cuda_graphs=False)

    def __init__(self, config: SEACConfig, context: AlgorithmContext) -> None:
        super().__init__(config, context)
        self._sharing_coef, n = config.sharing_coef, self.team.n
        self._copies = max(role.n for role in self.team.roles)
        self._own_envs = torch.arange(context.num_envs, device=self.device)
        self._agents_of = {role.name: _shifted(role.n, self._copies).to(self.device) for role in self.team.roles}
        starts = accumulate((role.n for role in self.team.roles), initial=0)
        of_team = [x + start for x, start in zip(self._agents_of.values(), starts, strict=False)]
        self._agent_of = torch.cat(of_team, 1)  # [S, N]
        sizes = torch.tensor([role.n for role in self.team.roles for _ in role.agents], device=self.device)
        self._is_other = (torch.arange(self._copies, device=self.device).unsqueeze(1) < sizes).index_fill(
            0, torch.zeros(1, dtype=torch.int64, device=self.device), False
        )  # [S, N]
        self._num_others = float(self._is_other.sum()) / n
        self._num_envs = self._copies * context.num_envs
        self._critic_state = self.start_value_estimation(self._num_envs)
        self._actor_state: HiddenState = self.policy.initial_hidden_state(self._num_envs)
        """Hidden states of the actors on the timesteps of all agents before the next rollout; {} without."""

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        shared = self.shared(rollout)
        state = self._actor_state
        if self._recurrent:
            with torch.no_grad():
                obs = tree_map(lambda x: x[:-1], self.policy.obs_normalizer.of_rollout(shared))
                state = self.policy.unroll(obs, shared.first[:-1], shared.hidden_state, shared.action)
        metrics = super().update(shared, progress)
        self._actor_state = state
        return metrics

    def _observe(self, rollout: Rollout) -> None:
        super()._observe(select_envs(rollout, self._own_envs))

    def shared(self, rollout: Rollout) -> Rollout:
        """Returns the rollout as one of S B environments, ordered by s first: of agent (i + s) mod n of each role."""
        given, by_agent = rollout, _of_agents(self._agent_of)
        copies = lambda x: x.repeat(1, self._copies, *(1,) * (x.ndim - 2))  # noqa: E731
        rewards = agent_rewards(rollout, self._membership, self.team.has_group_reward, self._common_reward)
        state = {name: torch.cat([x, self._actor_state[name][len(x) :]]) for name, x in given.hidden_state.items()}
        return replace(
            rollout,
            hidden_state=state,
            alive=by_agent(given.alive) & self._known(),
            **{
                name: {role: tree_map(_of_agents(self._agents_of[role]), x) for role, x in getattr(given, name).items()}
                for name in ("obs", "action_mask", "action")
            },
            reward=by_agent(rewards),
            group_reward=torch.zeros_like(copies(given.group_reward)),  # part of the agents' rewards
            streams={},
            **{name: tree_map(by_agent, getattr(given, name)) for name in _OF_AGENTS},
            **{name: tree_map(copies, getattr(given, name)) for name in _OF_ENVS},
        )

    def _ends(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        return tree_map(_of_agents(self._agent_of), super()._ends(self._own(rollout)))

    def _critic_valid(self, rollout: Rollout) -> Tensor:
        return _of_agents(self._agent_of)(super()._critic_valid(self._own(rollout))) & self._known()

    def _own(self, rollout: Rollout) -> Rollout:
        """Returns a shared rollout with the ends and lives of all agents in their own timesteps: the first copy."""
        names = ("alive", "first", "terminated", "truncated", "acted", "episode_terminated", "episode_truncated")
        return replace(rollout, **{name: getattr(rollout, name)[:, : len(self._own_envs)] for name in names})

    def _known(self) -> Tensor:
        """Returns [S B, N] bool, False where a role is too small to have another agent for a copy."""
        is_own = (torch.arange(self._copies, device=self.device) == 0).unsqueeze(1)
        return self._of_envs(self._is_other | is_own)

    def _of_envs(self, x: Tensor) -> Tensor:
        """Returns what belongs to copies [S, N or 1] for all their environments [S B, N or 1]."""
        return x.repeat_interleave(len(self._own_envs), 0)

    def targets(
        self, rollout: Rollout, before: ValueState, stream_weights: Tensor | None, *, as_sequences: bool
    ) -> Targets:
        found = super().targets(rollout, before, stream_weights, as_sequences=as_sequences)
        batch: Batch = found.batch
        shape = batch.log_prob.shape
        others = self._of_envs(self._is_other).expand(shape)
        own = self._of_envs((torch.arange(self._copies, device=self.device) == 0).unsqueeze(1)).expand(shape)
        parts: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return found._replace(batch=SharedBatch(**parts, own=own, others=others))

    def loss_terms(self, log_prob: Tensor, entropy: Tensor, value: Tensor, batch: Batch) -> PPOLoss:
        """Returns the terms of the loss on a minibatch, see `seac_loss`; for subclasses to override."""
        assert isinstance(batch, SharedBatch)
        config = self.config
        return seac_loss(
            log_prob,
            entropy,
            value,
            batch,
            sharing_coef=self._sharing_coef,
            num_others=self._num_others,
            clip_eps=config.clip_eps,
            value_clip_eps=config.value_clip_eps,
            huber_delta=config.huber_delta,
            reduction=self.reduction,
        )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"actor_state": self._actor_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._actor_state = {name: x.to(self.device) for name, x in state["actor_state"].items()}


_OF_AGENTS = ("first", "terminated", "truncated", "extras")
"""Fields of a rollout that have an entry per agent [.., B, N] and are copied."""
_OF_ENVS = ("state", "acted", "episode_terminated", "episode_truncated")
"""Fields of a rollout that have an entry per environment [.., B, ..]."""


def _shifted(n: int, copies: int) -> Tensor:
    """Returns (i + s) mod n for s below `copies` and each of n agents [S, n]."""
    return (torch.arange(n) + torch.arange(copies).unsqueeze(1)).remainder(n)


def _of_agents(agent_of: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns a function from tensors [T, B, N, ..] to [T, S B, N, ..] of the agents `agent_of` [S, N]."""

    def select(x: Tensor) -> Tensor:
        return torch.cat([x.index_select(2, agents) for agents in agent_of], 1)

    return select

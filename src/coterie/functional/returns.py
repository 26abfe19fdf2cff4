"""Returns of rollouts: the agents' rewards, the ends of returns, and targets that bootstrap (TD(lambda), n-step)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.types import TIME_LEFT, Rollout


def valid_mask(rollout: Rollout, of_team: bool = False) -> Tensor:
    """Returns [T, B, N] bool, True where the agent was alive and acted; `of_team`: where any agent of the team did.

    Values learn from the latter if returns go on after an agent's death.
    """
    valid = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    return valid.any(-1, keepdim=True).expand_as(valid) if of_team else valid


def bootstrap_step(boundary: Tensor) -> Tensor:
    """Returns [B] int64, the step whose successor a return of all T steps from the first one bootstraps from.

    It is the first step with a boundary [T, B], or the last step.
    """
    last = torch.ones_like(boundary[:1])
    return torch.cat([boundary[:-1], last]).to(torch.uint8).argmax(0)


def terminate_at_limit(rollout: Rollout) -> Rollout:
    """Returns the rollout with truncation at the step limit as termination, so that returns end there.

    Returns still bootstrap where an agent or an episode is truncated before the limit, such as when a worker fails.
    Without a known limit, they end at every truncation.
    """
    if (left := rollout.state.get(TIME_LEFT)) is None:
        at_limit = torch.ones_like(rollout.episode_truncated)
    else:
        at_limit = left[1:, :, 0] <= 0
    agents = at_limit.unsqueeze(-1)
    return replace(
        rollout,
        terminated=rollout.terminated | (rollout.truncated & agents),
        truncated=rollout.truncated & ~agents,
        episode_terminated=rollout.episode_terminated | (rollout.episode_truncated & at_limit),
        episode_truncated=rollout.episode_truncated & ~at_limit,
    )


def present_agents(rollout: Rollout) -> Tensor:
    """Returns [T + 1, B, N] bool, agents that a centralized value function counts at each timestep.

    They are those alive. If the last agents of the team were truncated while the episode continues, they are counted
    once more at the next timestep, which shows what they saw last, so that their return can bootstrap from it.
    """
    return torch.cat([rollout.alive[:1], present_successors(rollout)])


def present_successors(rollout: Rollout) -> Tensor:
    """Returns [T, B, N] bool, `present_agents` of all timesteps but the first."""
    alive = rollout.alive[1:]
    return alive | (rollout.truncated & ~alive.any(-1, keepdim=True))


def agent_rewards(rollout: Rollout, membership: Tensor, has_group_reward: bool, common_reward: bool) -> Tensor:
    """Returns the reward of each agent [T, B, N]: its own plus that of its group.

    Args:
        rollout: Experience of the team.
        membership: [G, N], see `group_membership`.
        has_group_reward: True if the environment has group rewards.
        common_reward: If True, every agent receives the mean over the team.
    """
    reward = rollout.reward
    if has_group_reward:
        reward = reward + rollout.group_reward @ membership.to(rollout.group_reward.dtype)
    return reward.mean(-1, keepdim=True).expand_as(reward) if common_reward else reward


def team_rewards(rollout: Rollout, has_group_reward: bool) -> Tensor:
    """Returns the reward of the team [T, B]: the sum of its agents' own rewards plus its groups' once."""
    reward = rollout.reward.sum(-1)
    return reward + rollout.group_reward.sum(-1) if has_group_reward else reward


def bootstrap_masks(rollout: Rollout, outlives: bool, agents_can_die: bool) -> tuple[Tensor, Tensor]:
    """Returns where to drop the successor's value and where to end the trace of each agent's return.

    A return ends with its agent, or, if it outlives the agent, with that of the team, see `team_bootstrap_masks`, so
    that rewards after an agent's death still reach its actions. It ends then, without bootstrapping, before the next
    life in the agent's slot begins, if one does within the episode: the own rewards of that life, and those of the
    group from then on, are no longer its own.

    Args:
        rollout: Experience of the team.
        outlives: True if returns go on after an agent's death, see `returns_outlive_agents`.
        agents_can_die: True if agents can be absent or end before their episode does.

    Returns:
        terminated, boundary: [T, B, N] bool. `boundary` is also True at truncation.
    """
    if not outlives or not agents_can_die:
        return rollout.terminated, rollout.terminated | rollout.truncated | ~rollout.acted[:-1, :, None]
    replaced = replaced_agents(rollout)
    terminated, boundary = team_bootstrap_masks(rollout, agents_can_die)
    return terminated.unsqueeze(-1) | replaced, boundary.unsqueeze(-1) | replaced


def team_bootstrap_masks(rollout: Rollout, agents_can_die: bool) -> tuple[Tensor, Tensor]:
    """Returns the same for the return of a team, the rewards of all its agents: [T, B] bool.

    It ends with the episode or the last agent of those that were there; agents that appear at that moment do not
    continue it. If one of the last agents was truncated, the return bootstraps from it, see `present_agents`, even if
    others died in that step.

    Args:
        rollout: Experience of the team.
        agents_can_die: True if agents can be absent or end before their episode does.
    """
    if not agents_can_die:
        terminated = rollout.terminated[..., 0]
        return terminated, terminated | rollout.truncated[..., 0] | ~rollout.acted[:-1]
    remaining = rollout.alive[1:] & ~rollout.first[1:]
    all_ended = (rollout.terminated | rollout.truncated).any(-1) & ~remaining.any(-1)
    terminated = rollout.episode_terminated | (all_ended & ~rollout.truncated.any(-1))
    return terminated, terminated | all_ended | rollout.episode_truncated | ~rollout.acted[:-1]


def replaced_agents(rollout: Rollout) -> Tensor:
    """Returns [T, B, N] bool, the steps after which another life begins in the slot of an agent that is gone."""
    gone = ~rollout.alive[:-1] | rollout.terminated | rollout.truncated
    return rollout.first[1:] & gone & rollout.acted[:-1, :, None]


def lambda_return(
    reward: Tensor, next_value: Tensor, *, terminated: Tensor, boundary: Tensor, gamma: float | Tensor, td_lambda: float
) -> Tensor:
    """Lambda-return, the target of TD(lambda).

        G_t = r_t + gamma (1 - terminated_t) ((1 - lambda) V(s'_t) + lambda X_t)
        X_t = V(s'_t) where boundary_t and at the last timestep, else G_{t+1}

    Args:
        reward: [T, B, N] or with further axes, such as reward signals [T, B, N, K].
        next_value: V of the true successor, the shape of reward; not used where `terminated`.
        terminated: Bool, broadcast to the shape of reward.
        boundary: Bool, broadcast to the shape of reward; True at the last timestep of an episode.
        gamma: Discount, or a tensor that broadcasts to the shape of reward.
        td_lambda: Lambda.

    Returns:
        Returns of the shape and dtype of next_value.

    With V(s) = max_a Q(s, a) it is Peng's Q(lambda), the target of PQN.

    Sources: Sutton and Barto 2018, eq. 12.18; Peng and Williams 1994.
    """
    discount = (gamma * (~terminated).to(next_value.dtype)).expand_as(next_value)
    trace = (td_lambda * (~boundary).to(next_value.dtype)).expand_as(next_value)
    trace = torch.cat([trace[:-1], torch.zeros_like(trace[:1])])
    now = reward + discount * (1 - trace) * next_value.masked_fill(terminated, 0)
    decay = discount * trace
    later = torch.zeros_like(now[0])
    returns = []
    for x, c in zip(reversed(now.unbind(0)), reversed(decay.unbind(0)), strict=True):
        later = torch.addcmul(x, c, later)
        returns.append(later)
    return torch.stack(returns[::-1])


def n_step_return(
    reward: Tensor, next_value: Tensor, *, terminated: Tensor, boundary: Tensor, gamma: float | Tensor, n: int
) -> Tensor:
    """Return over the next `n` rewards, or fewer before a boundary or the last timestep.

        G^1_t = r_t + gamma (1 - terminated_t) V(s'_t)
        G^n_t = r_t + gamma (1 - terminated_t) (V(s'_t) where boundary_t and at the last timestep, else G^{n-1}_{t+1})

    Arguments as in `lambda_return`; n is at least 1. With n = T it is the lambda-return of lambda 1.

    Source: Sutton and Barto 2018, eq. 7.1.
    """
    discount = (gamma * (~terminated).to(next_value.dtype)).expand_as(next_value)
    successor = next_value.masked_fill(terminated, 0)
    stop = boundary.expand_as(next_value)[:-1]
    returns = torch.addcmul(reward, discount, successor)
    for _ in range(min(n, len(reward)) - 1):
        later = torch.cat([torch.where(stop, successor[:-1], returns[1:]), successor[-1:]])
        returns = torch.addcmul(reward, discount, later.masked_fill(terminated, 0))
    return returns

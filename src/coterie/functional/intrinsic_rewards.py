"""Intrinsic rewards: prediction errors, rewards computed from them, and returns that episodes do not end."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.policy_gradient import choice_log_probs


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance per sample: [.., F] -> [..]."""
    return 0.5 * (prediction - target).square().sum(-1)


def action_error(spec: ActionSpec, params: Tensor, mask: Tensor | None, action: Action) -> Tensor:
    """Error of predicted actions [..]: cross-entropies of choices, and half the squared error of numbers.

    Args:
        spec: Action space of each agent.
        params: [.., sum A + C], predicted logits of every component, then numbers.
        mask: [.., sum A] bool; None: all choices are available.
        action: Action taken.
    """
    parts = []
    if action.discrete is not None:
        log_probs = choice_log_probs(spec, params[..., : spec.mask_size], mask).split(spec.choices, -1)
        chosen = action.discrete.unbind(-1)
        parts += [-p.gather(-1, index.unsqueeze(-1)).squeeze(-1) for p, index in zip(log_probs, chosen, strict=True)]
    if action.continuous is not None:
        parts.append(squared_error(params[..., spec.mask_size :], action.continuous))
    return torch.stack(parts).sum(0)


def curiosity_reward(error: Tensor, eta: float, weight: float) -> Tensor:
    """Reward of the forward model's error, of any shape, clipped so that `weight` times it is at most 1.

        r = min(eta e, 1 / weight)

    Source: Pathak et al. 2017, eq. 6, where e is half the squared distance of features.
    """
    reward = eta * error
    return reward.clamp(max=1 / weight) if weight > 0 else reward


def running_return(reward: Tensor, valid: Tensor, before: Tensor, gamma: float) -> Tensor:
    """Discounted sum of past rewards, whose standard deviation normalizes rewards.

        R_t = gamma R_{t-1} + r_t where valid_t, else R_{t-1};  R_{-1} = before

    Args:
        reward: [T, B, N].
        valid: [T, B, N] bool.
        before: [B, N].
        gamma: Discount.

    Returns:
        [T, B, N]. Ends of episodes do not reset the sum.

    Source: Burda et al. 2018, section 2.4.
    """
    total, sums = before, []
    for r, v in zip(reward.unbind(0), valid.unbind(0), strict=True):
        total = torch.where(v, gamma * total + r, total)
        sums.append(total)
    return torch.stack(sums)


def non_episodic_return(
    reward: Tensor, value: Tensor, valid: Tensor, *, gamma: float | Tensor, td_lambda: float
) -> Tensor:
    """Lambda-return of a reward signal that continues across episodes.

        G_t = r_t + gamma ((1 - lambda) V'_{t+1} + lambda G_{t+1}) where valid_t, else G_{t+1};  G_T = V_T
        V'_t = V_t where valid_t, else V'_{t+1};  V'_T = V_T

    Timesteps without an action take no time: the last step of an episode is followed by the first one of the next.

    Args:
        reward: [T, B, N] or with further axes, such as reward signals [T, B, N, K].
        value: The same with T + 1 timesteps.
        valid: [T, B, N] bool, broadcast to reward.
        gamma: Discount, or discounts [K].
        td_lambda: Lambda.

    Returns:
        Returns of the shape of reward and the dtype of value.

    Source: Burda et al. 2018, section 2.3 (non-episodic intrinsic returns).
    """
    successor = later = value[-1]
    returns = []
    for r, v, is_valid in zip(
        reversed(reward.unbind(0)), reversed(value[:-1].unbind(0)), reversed(valid.unbind(0)), strict=True
    ):
        later = torch.where(is_valid, r + gamma * ((1 - td_lambda) * successor + td_lambda * later), later)
        successor = torch.where(is_valid, v, successor)
        returns.append(later)
    return torch.stack(returns[::-1])

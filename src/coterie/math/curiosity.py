"""What curiosity is made of: errors of models, rewards of them, and the sums that rewards are scaled by."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.math.distributions import log_choices
from coterie.types import Action, ActionSpec


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance of every sample: [.., F] -> [..]."""
    return 0.5 * (prediction - target).square().sum(-1)


def action_error(spec: ActionSpec, params: Tensor, mask: Tensor | None, action: Action) -> Tensor:
    """How badly an action is told [..]: cross-entropies of its choices, and half the squared error of its numbers.

    params: [.., sum A + C] logits of every component, then numbers; mask: [.., sum A] bool, choices that were open, or
    None; action: what was done [.., K], [.., C].
    """
    parts = []
    if action.discrete is not None:
        told = log_choices(spec, params[..., : spec.mask_size], mask).split(spec.choices, -1)
        picks = action.discrete.unbind(-1)
        parts += [-p.gather(-1, pick.unsqueeze(-1)).squeeze(-1) for p, pick in zip(told, picks, strict=True)]
    if action.continuous is not None:
        parts.append(squared_error(params[..., spec.mask_size :], action.continuous))
    return torch.stack(parts).sum(0)


def curiosity_reward(error: Tensor, eta: float, strength: float) -> Tensor:
    """The reward of an error of the forward model, any shape, so that weighted by `strength` it is at most 1.

        r = min(eta e, 1 / strength)

    Source: Pathak et al. 2017, eq. 6, where e is half the squared distance of features.
    """
    reward = eta * error
    return reward.clamp(max=1 / strength) if strength > 0 else reward


def running_return(reward: Tensor, live: Tensor, before: Tensor, gamma: float) -> Tensor:
    """Discounted sums of what was earned until every step, for the spread that rewards are divided by.

        R_t = gamma R_{t-1} + r_t where live_t, else R_{t-1};  R_{-1} = before

    reward: [T, B, N]; live: the same shape, bool; before: [B, N]. Ends are not looked at. Returns [T, B, N].
    Source: Burda et al. 2018, section 2.4.
    """
    total, sums = before, []
    for r, lives in zip(reward.unbind(0), live.unbind(0), strict=True):
        total = torch.where(lives, gamma * total + r, total)
        sums.append(total)
    return torch.stack(sums)

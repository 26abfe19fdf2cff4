"""Returns and advantages."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    boundary: Tensor,
    gamma: float | Tensor,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage of every step.

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - boundary_t) A_{t+1}

    reward, value: [T, B, N] or with axes behind, such as reward signals [T, B, N, K] (gamma then may be [K]);
    next_value: the same shape, V of the true successor; terminated, boundary: bool, broadcast to that shape.
    Returns the shape and dtype of value. A + V is the lambda-return. Source: Schulman et al. 2016, eq. 16.
    """
    delta = reward + gamma * next_value.masked_fill(terminated, 0) - value
    decay = (gamma * gae_lambda * ~boundary).expand_as(delta)
    later = torch.zeros_like(delta[0])
    advantage = []
    for d, c in zip(reversed(delta.unbind(0)), reversed(decay.unbind(0)), strict=True):
        later = torch.addcmul(d, c, later)
        advantage.append(later)
    return torch.stack(advantage[::-1])

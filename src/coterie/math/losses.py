"""Losses. Each returns one number a sample; `masked_sum` and `masked_mean` reduce over the live ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def masked_sum(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | int]:
    """Sum of x over the entries where `weight` (bool, the shape of x; None: everywhere) holds, and their count.

    A value in a masked place, NaN included, changes neither the sum nor its gradient.
    """
    if weight is None:
        return x.sum(), x.numel()
    return torch.where(weight, x, 0.0).sum(), weight.sum()


def masked_mean(x: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of x over the entries where `weight` holds; 0 if there is none."""
    total, count = masked_sum(x, weight)
    return total / (max(count, 1) if isinstance(count, int) else count.clamp(min=1))


def masked_moments(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of x over the entries where `weight` holds, in float64."""
    x = x.double()
    mean = masked_mean(x, weight)
    return mean, masked_mean((x - mean).square(), weight)


def standardise(x: Tensor, weight: Tensor | None, eps: float = 1e-8) -> Tensor:
    """x shifted and scaled to mean 0 and variance 1 over the entries where `weight` holds. Same shape and dtype."""
    mean, variance = masked_moments(x, weight)
    return (x - mean.to(x.dtype)) / (variance.sqrt().to(x.dtype) + eps)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip_eps: float) -> Tensor:
    """PPO's pessimistic policy loss of every sample, to be minimised.

        L = -min(rho A, clip(rho, 1 - eps, 1 + eps) A)

    ratio: pi / pi_old, any shape; advantage: the same shape. Source: Schulman et al. 2017, eq. 7.
    """
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantage)


def value_error(value: Tensor, target: Tensor, huber_delta: float | None) -> Tensor:
    """Half the squared error of every sample, linear beyond `huber_delta` (None: nowhere)."""
    if huber_delta is None:
        return 0.5 * (value - target).square()
    return F.huber_loss(value, target, reduction="none", delta=huber_delta)


def clipped_value_error(
    value: Tensor, old_value: Tensor, target: Tensor, clip_eps: float | None, huber_delta: float | None
) -> Tensor:
    """The larger of the errors of the value and of the value clipped to within `clip_eps` of the old one.

        L = max(l(V, G), l(V_old + clip(V - V_old, -eps, eps), G))

    All of one shape; clip_eps None: the plain error. Source: Yu et al. 2022, section 4 (value clipping, Huber loss).
    """
    error = value_error(value, target, huber_delta)
    if clip_eps is None:
        return error
    near = old_value + (value - old_value).clamp(-clip_eps, clip_eps)
    return torch.maximum(error, value_error(near, target, huber_delta))

"""Draws from distributions, as functions of uniform noise: whoever calls them brings the randomness."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EDGE = 2.0**-24
"""Noise nearer to 0 or 1 than this counts as this near: a normal's quantiles there are infinite."""


def uniform(noise: Tensor, low: float, high: float) -> Tensor:
    """Numbers in [low, high) from uniform noise in [0, 1) of any shape."""
    return low + (high - low) * noise


def log_uniform(noise: Tensor, low: float, high: float) -> Tensor:
    """Numbers in [low, high) whose logarithm is uniform; 0 < low."""
    return torch.exp(uniform(noise, math.log(low), math.log(high)))


def integers(noise: Tensor, low: int, high: int) -> Tensor:
    """Whole numbers from low to high, both included, each as likely; in the noise's dtype."""
    return (low + torch.floor((high - low + 1) * noise)).clamp(max=high)


def clipped_normal(noise: Tensor, mean: float, std: float, low: float, high: float) -> Tensor:
    """Numbers around `mean` with the standard deviation `std`, those outside of [low, high] moved to its nearer end.

    x = clip(mean + std ndtri(u), low, high),   ndtri: the quantile function of the standard normal distribution
    """
    return (mean + std * torch.special.ndtri(noise.clamp(_EDGE, 1 - _EDGE))).clamp(low, high)


def choice(noise: Tensor, weights: Tensor) -> Tensor:
    """Places in `weights` [K], each as likely as its part of their sum: int64 of the noise's shape."""
    bounds = weights.to(noise).cumsum(0)
    return torch.searchsorted(bounds / bounds[-1], noise.contiguous(), right=True).clamp(max=len(weights) - 1)


def clipped_normal_mean(mean: float, std: float, low: float, high: float) -> float:
    """The mean of what `clipped_normal` draws.

        low F(a) + high (1 - F(b)) + mean (F(b) - F(a)) + std (f(a) - f(b)),   a = (low - mean) / std, b likewise

    with F and f the distribution and density of the standard normal; low and high may be infinite.
    """
    if std == 0:
        return min(max(mean, low), high)
    a, b = (low - mean) / std, (high - mean) / std
    below, above = _below(a), 1 - _below(b)
    ends = (low * below if below else 0.0) + (high * above if above else 0.0)
    return ends + mean * (1 - below - above) + std * (_density(a) - _density(b))


def _below(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _density(x: float) -> float:
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)

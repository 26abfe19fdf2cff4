"""Inverse transform sampling: random variates as functions of uniform noise in [0, 1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MIN_NOISE = 2.0**-24
"""Noise is clipped to [_MIN_NOISE, 1 - _MIN_NOISE] where a normal quantile is taken, which is infinite at 0 and 1."""


def uniform(noise: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers in [low, high), of the shape of `noise`."""
    return low + (high - low) * noise


def log_uniform(noise: Tensor, low: float, high: float) -> Tensor:
    """Numbers in [low, high) whose logarithm is uniform; 0 < low."""
    return torch.exp(uniform(noise, math.log(low), math.log(high)))


def integers(noise: Tensor, low: int, high: int) -> Tensor:
    """Uniform integers from low to high, both inclusive, in the dtype of `noise`."""
    return (low + torch.floor((high - low + 1) * noise)).clamp(max=high)


def clipped_normal(noise: Tensor, *, mean: float, std: float, low: float, high: float) -> Tensor:
    """Normal numbers clipped to [low, high].

    x = clip(mean + std ndtri(u), low, high),   ndtri: quantile function of the standard normal distribution
    """
    return (mean + std * torch.special.ndtri(noise.clamp(_MIN_NOISE, 1 - _MIN_NOISE))).clamp(low, high)


def choice(noise: Tensor, weights: Tensor) -> Tensor:
    """Indices into `weights` [K] with probabilities proportional to them: int64, of the shape of `noise`."""
    bounds = weights.to(noise).cumsum(0)
    return torch.searchsorted(bounds / bounds[-1], noise.contiguous(), right=True).clamp(max=len(weights) - 1)


def clipped_normal_mean(mean: float, std: float, low: float, high: float) -> float:
    """Mean of the distribution of `clipped_normal`.

        low F(a) + high (1 - F(b)) + mean (F(b) - F(a)) + std (f(a) - f(b)),   a = (low - mean) / std, b likewise

    F and f are the distribution function and the density of the standard normal; low and high may be infinite.
    """
    if std == 0:
        return min(max(mean, low), high)
    a, b = (low - mean) / std, (high - mean) / std
    below, above = _normal_cdf(a), 1 - _normal_cdf(b)
    ends = (low * below if below else 0.0) + (high * above if above else 0.0)
    return ends + mean * (1 - below - above) + std * (_normal_density(a) - _normal_density(b))


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _normal_density(x: float) -> float:
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)

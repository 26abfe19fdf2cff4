"""Gaussians squashed by tanh, the continuous actions of soft actor-critics."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

_MIN_LOG_STD, _MAX_LOG_STD = -5.0, 2.0
_CENTER, _HALF_RANGE = (_MAX_LOG_STD + _MIN_LOG_STD) / 2, (_MAX_LOG_STD - _MIN_LOG_STD) / 2
_SHIFT = math.atanh(-_CENTER / _HALF_RANGE)


def bounded_log_std(raw: Tensor) -> Tensor:
    """Maps any number to a log standard deviation in (-5, 2), and 0 to 0.

        log std = -1.5 + 3.5 tanh(x + atanh(1.5 / 3.5))

    Unlike a clamp it has a gradient everywhere. Same shape.
    """
    return _CENTER + _HALF_RANGE * torch.tanh(raw + _SHIFT)


def sample_squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample of a tanh-squashed Gaussian in [-1, 1], and its log-density [..] summed over the last axis.

        u = mean + std noise;  a = tanh(u);  log p(a) = log N(u; mean, std) - sum 2 (log 2 - u - softplus(-2 u))

    The last term is log(1 - tanh(u)^2) without cancellation.

    Args:
        mean: [.., C].
        log_std: [.., C].
        noise: Standard normal [.., C].

    Source: Haarnoja et al. 2018, appendix C.
    """
    u = mean + noise * log_std.exp()
    density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_derivative = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    return torch.tanh(u), (density - log_derivative).sum(-1)

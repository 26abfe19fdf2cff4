"""Running statistics: pure updates of a dict of tensors, so that they can be saved, summed over ranks and replayed."""

from __future__ import annotations

import torch
from torch import Tensor

Moments = dict[str, Tensor]
"""Statistics of `K` or `D` features: named float64 tensors."""


def ema_start(size: int, device: torch.device | str = "cpu") -> Moments:
    """Moving moments that have seen nothing: mean, square [size] and the weight [] that debiases them."""
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return {"mean": zeros, "square": zeros.clone(), "weight": torch.zeros((), dtype=torch.float64, device=device)}


def ema_update(moments: Moments, mean: Tensor, square: Tensor, beta: float) -> Moments:
    """Moments moved towards a batch's `mean` and `square` (mean of squares), both [size].

        m <- beta m + (1 - beta) mean(x);  w <- beta w + (1 - beta)

    Source: Yu et al. 2022 (value normalisation), after van Hasselt et al. 2016.
    """
    return {
        "mean": beta * moments["mean"] + (1 - beta) * mean,
        "square": beta * moments["square"] + (1 - beta) * square,
        "weight": beta * moments["weight"] + (1 - beta),
    }


def ema_scale(moments: Moments, least_variance: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Debiased mean and standard deviation [size], float32; the variance is at least `least_variance`. (0, 1) at
    first.
    """
    weight = moments["weight"]
    seen = weight > 0
    safe = torch.where(seen, weight, 1.0)
    mean = moments["mean"] / safe
    variance = (moments["square"] / safe - mean.square()).clamp(min=least_variance)
    return mean.float(), torch.where(seen, variance, 1.0).sqrt().float()


def count_start(size: int, device: torch.device | str = "cpu") -> Moments:
    """Exact moments that have seen nothing: count [], mean and summed squared deviation [size]."""
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return {"count": torch.zeros((), dtype=torch.float64, device=device), "mean": zeros, "deviation": zeros.clone()}


def count_update(moments: Moments, x: Tensor, weight: Tensor | None) -> Moments:
    """Moments of everything seen so far and of x [.., size] where `weight` [..] holds, each sample once.

    Source: Chan, Golub and LeVeque 1983, parallel variance.
    """
    x = x.reshape(-1, x.shape[-1]).double()
    keep = torch.ones(x.shape[0], dtype=torch.bool, device=x.device) if weight is None else weight.reshape(-1)
    count = keep.sum().double()
    rows = torch.where(keep[:, None], x, 0.0)
    mean = rows.sum(0) / count.clamp(min=1)
    deviation = torch.where(keep[:, None], x - mean, 0.0).square().sum(0)
    total = (moments["count"] + count).clamp(min=1)
    shift = mean - moments["mean"]
    return {
        "count": moments["count"] + count,
        "mean": moments["mean"] + shift * count / total,
        "deviation": moments["deviation"] + deviation + shift.square() * moments["count"] * count / total,
    }


def count_scale(moments: Moments, least_variance: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [size], float32; (0, 1) at first."""
    seen = moments["count"] > 0
    variance = (moments["deviation"] / moments["count"].clamp(min=1)).clamp(min=least_variance)
    return moments["mean"].float(), torch.where(seen, variance, 1.0).sqrt().float()

"""Statistics of tensors, over valid entries and of all data so far.

Moments are dictionaries of tensors, which updates replace and never change in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

Moments = dict[str, Tensor]
"""`count` [], `mean` and summed squared `deviation` [size], float64."""


def masked_sum(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | int]:
    """Returns the sum of x over entries where `valid` (bool, the shape of x; None: everywhere), and their count.

    Other entries, NaN included, change neither the sum nor its gradient.
    """
    if valid is None:
        return x.sum(), x.numel()
    return torch.where(valid, x, 0.0).sum(), valid.sum()


def masked_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the mean of x over valid entries; 0 if there is none."""
    total, count = masked_sum(x, valid)
    return total / (max(count, 1) if isinstance(count, int) else count.clamp(min=1))


def masked_moments(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the mean and the (biased) variance of x over valid entries, in float64."""
    x = x.double()
    mean = masked_mean(x, valid)
    return mean, masked_mean((x - mean).square(), valid)


def standardize(x: Tensor, valid: Tensor | None, eps: float = 1e-8) -> Tensor:
    """Shifts and scales x to mean 0 and variance 1 over valid entries. Same shape and dtype."""
    mean, variance = masked_moments(x, valid)
    return (x - mean.to(x.dtype)) / (variance.sqrt().to(x.dtype) + eps)


def explained_variance(target: Tensor, residual: Tensor, mask: Tensor) -> Tensor:
    """Returns 1 - Var(residual) / Var(target) [] over the entries where `mask` is True; all [.., N]."""
    unexplained, total = masked_moments(residual, mask)[1], masked_moments(target, mask)[1]
    return 1 - unexplained / total.clamp(min=1e-8)


def initial_moments(size: int, device: torch.device | str = "cpu") -> Moments:
    """Returns the moments of no data."""
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return {"count": torch.zeros((), dtype=torch.float64, device=device), "mean": zeros, "deviation": zeros.clone()}


def update_moments(moments: Moments, x: Tensor, valid: Tensor | None) -> Moments:
    """Returns the moments of the old data and of x [.., size] where `valid` [..] (None: everywhere).

    Source: Chan, Golub and LeVeque 1983, parallel variance.
    """
    x = x.reshape(-1, x.shape[-1]).double()
    keep = torch.ones(x.shape[0], dtype=torch.bool, device=x.device) if valid is None else valid.reshape(-1)
    count = keep.sum().double()
    mean = torch.where(keep[:, None], x, 0.0).sum(0) / count.clamp(min=1)
    deviation = torch.where(keep[:, None], x - mean, 0.0).square().sum(0)
    total = (moments["count"] + count).clamp(min=1)
    shift = mean - moments["mean"]
    return {
        "count": moments["count"] + count,
        "mean": moments["mean"] + shift * count / total,
        "deviation": moments["deviation"] + deviation + shift.square() * moments["count"] * count / total,
    }


def mean_and_std(moments: Moments, min_variance: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Returns the mean and standard deviation [size], float32; (0, 1) without data."""
    has_data = moments["count"] > 0
    variance = (moments["deviation"] / moments["count"].clamp(min=1)).clamp(min=min_variance)
    return moments["mean"].float(), torch.where(has_data, variance, 1.0).sqrt().float()

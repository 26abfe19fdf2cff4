"""Mean and variance of all data so far.

Moments are dictionaries of tensors, which updates replace and never change in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.ranks import current
from coterie.math.statistics import pooled_moments

Moments = dict[str, Tensor]
"""`count` [], `mean` and summed squared `deviation` [size], float64."""


def initial_moments(size: int, device: torch.device | str = "cpu") -> Moments:
    """Returns the moments of no data."""
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return {"count": torch.zeros((), dtype=torch.float64, device=device), "mean": zeros, "deviation": zeros.clone()}


def update_moments(moments: Moments, x: Tensor, valid: Tensor | None) -> Moments:
    """Returns the moments of the old data and of x [.., size] of all ranks where `valid` [..] (None: everywhere).

    Source: Chan, Golub and LeVeque 1983, parallel variance.
    """
    x = x.reshape(-1, x.shape[-1]).double()
    keep = torch.ones(x.shape[0], dtype=torch.bool, device=x.device) if valid is None else valid.reshape(-1)
    count, total = keep.sum().double(), torch.where(keep[:, None], x, 0.0).sum(0)
    mean = total / count.clamp(min=1)
    deviation = torch.where(keep[:, None], x - mean, 0.0).square().sum(0)
    if (ranks := current()).size > 1:
        parts = torch.stack(ranks.gather(torch.cat([count[None], mean, deviation])))
        count, mean, deviation = pooled_moments(parts[:, 0], *parts[:, 1:].chunk(2, 1))
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

"""Statistics of tensors over valid entries, and mean and variance of all data so far.

Moments of data are dictionaries of tensors, which updates replace and never change in place.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from coterie.kernels import moments as fused


class Reduction(Protocol):
    """Processes that hold a part of a batch each. Statistics with a reduction are those of the whole batch.

    A mean is a sum of parts, one per process:

        mean(x) = 1 / R sum_r mean_r(x),    mean_r(x) = R sum_{i in part r} x_i / sum_r count_r

    Each process gets its part `mean_r`. The average of the parts over processes is the mean, and the average of their
    gradients is its gradient.
    """

    @property
    def scale(self) -> float:
        """Samples of this process, relative to the mean over processes."""
        ...

    def mean_count(self, *valid: Tensor) -> Tensor:
        """Returns the True entries of masks, their mean over processes [] float64, more than 0."""
        ...

    def gather(self, x: Tensor) -> list[Tensor]:
        """Returns the tensors x of all processes."""
        ...


def masked_sum(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | int]:
    """Returns the sum of x over entries where `valid` (bool, the shape of x; None: everywhere), and their count.

    Other entries, NaN included, change neither the sum nor its gradient.
    """
    if valid is None:
        return x.sum(), x.numel()
    return torch.where(valid, x, 0.0).sum(), valid.sum()


def valid_count(*valid: Tensor, reduction: Reduction | None = None) -> Tensor:
    """Returns the number of True entries of masks [], at least 1; with a reduction, the mean over its processes."""
    if reduction is not None:
        return reduction.mean_count(*valid).to(torch.get_default_dtype())
    return sum((x.sum() for x in valid[1:]), start=valid[0].sum()).clamp(min=1)


def masked_mean(x: Tensor, valid: Tensor | None, reduction: Reduction | None = None) -> Tensor:
    """Returns the mean of x over valid entries; 0 if there is none. With a reduction, this process's part of it."""
    total, count = masked_sum(x, valid)
    if reduction is None:
        return total / (max(count, 1) if isinstance(count, int) else count.clamp(min=1))
    if valid is None:
        return total * (reduction.scale / max(x.numel(), 1))
    return total / reduction.mean_count(valid).to(total.dtype)


def own_part(mean: Tensor, valid: Tensor | None, reduction: Reduction | None) -> Tensor:
    """Returns `masked_mean` with a reduction, from the mean over valid entries of this process."""
    if reduction is None:
        return mean
    if valid is None:
        return mean * reduction.scale
    return mean * (valid.sum().clamp(min=1) / reduction.mean_count(valid)).to(mean.dtype)


def masked_moments(x: Tensor, valid: Tensor | None, reduction: Reduction | None = None) -> tuple[Tensor, Tensor]:
    """Returns the mean and the (biased) variance of x over valid entries, in float64."""
    x = x.double()
    if reduction is None:
        mean = masked_mean(x, valid)
        return mean, masked_mean((x - mean).square(), valid)
    total, entries = masked_sum(x, valid)
    count = torch.as_tensor(entries, dtype=x.dtype, device=x.device)
    own_mean = total / count.clamp(min=1)
    deviation = masked_sum((x - own_mean).square(), valid)[0]
    count, mean, deviation = pooled_moments(*torch.stack(reduction.gather(torch.stack([count, own_mean, deviation]))).T)
    return mean, deviation / count.clamp(min=1)


def pooled_moments(count: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns count [], mean and summed squared deviation [..] of all data from those of R parts, [R] and [R, ..] each.

        n = sum_r n_r;  m = sum_r n_r m_r / n;  S = sum_r S_r + sum_r n_r (m_r - m)^2

    Source: Chan, Golub and LeVeque 1983, parallel variance.
    """
    total, weight = count.sum(), count.view(-1, *[1] * (mean.ndim - 1))
    pooled = (weight * mean).sum(0) / total.clamp(min=1)
    return total, pooled, (deviation + weight * (mean - pooled).square()).sum(0)


def standardize(x: Tensor, valid: Tensor | None, reduction: Reduction | None = None, *, eps: float = 1e-8) -> Tensor:
    """Shifts and scales x to mean 0 and variance 1 over valid entries. Same shape and dtype."""
    mean, variance = masked_moments(x, valid, reduction)
    return (x - mean.to(x.dtype)) / (variance.sqrt().to(x.dtype) + eps)


def explained_variance(target: Tensor, residual: Tensor, mask: Tensor, reduction: Reduction | None = None) -> Tensor:
    """Returns 1 - Var(residual) / Var(target) [] over the entries where `mask` is True; all [.., N]."""
    unexplained, total = (masked_moments(x, mask, reduction)[1] for x in (residual, target))
    return 1 - unexplained / total.clamp(min=1e-8)


Moments = dict[str, Tensor]
"""`count` [], `mean` and summed squared `deviation` [size], float64."""


def initial_moments(size: int, device: torch.device | str = "cpu") -> Moments:
    """Returns the moments of no data."""
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return {"count": torch.zeros((), dtype=torch.float64, device=device), "mean": zeros, "deviation": zeros.clone()}


def update_moments(
    moments: Moments,
    x: Tensor,
    valid: Tensor | None,
    reduction: Reduction | None = None,
    *,
    kernels: bool = False,
) -> Moments:
    """Returns the moments of the old data and of x [.., size] where `valid` [..] (None: everywhere), with `kernels` by
    a fused kernel where there is one.

    Source: Chan, Golub and LeVeque 1983, parallel variance.
    """
    if kernels and reduction is None:
        found = fused.update_moments((moments["count"], moments["mean"], moments["deviation"]), x, valid)
        if found is not None:
            return dict(zip(("count", "mean", "deviation"), found, strict=True))
    x = x.reshape(x.shape[:-1].numel(), x.shape[-1]).double()
    keep = torch.ones(x.shape[0], dtype=torch.bool, device=x.device) if valid is None else valid.reshape(-1)
    count, total = keep.sum().double(), torch.where(keep[:, None], x, 0.0).sum(0)
    mean = total / count.clamp(min=1)
    deviation = torch.where(keep[:, None], x - mean, 0.0).square().sum(0)
    if reduction is not None:
        parts = torch.stack(reduction.gather(torch.cat([count[None], mean, deviation])))
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


def root_mean_square(moments: Moments) -> Tensor:
    """Returns the root mean square [size], float32, at least 1e-6; 1 where all data were 0 and without data."""
    square = moments["deviation"] / moments["count"].clamp(min=1) + moments["mean"].square()
    return torch.where(square > 0, square.sqrt().clamp(min=1e-6), 1.0).float()

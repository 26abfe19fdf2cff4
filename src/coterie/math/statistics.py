"""Statistics of tensors over valid entries."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.ranks import current


def masked_sum(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | int]:
    """Returns the sum of x over entries where `valid` (bool, the shape of x; None: everywhere), and their count.

    Other entries, NaN included, change neither the sum nor its gradient.
    """
    if valid is None:
        return x.sum(), x.numel()
    return torch.where(valid, x, 0.0).sum(), valid.sum()


def valid_count(*valid: Tensor) -> Tensor:
    """Returns the number of True entries of masks [], at least 1; with several ranks, their mean over ranks."""
    ranks = current()
    if ranks.size > 1:
        return ranks.mean_count(*valid).to(torch.get_default_dtype())
    return sum((x.sum() for x in valid[1:]), start=valid[0].sum()).clamp(min=1)


def masked_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the mean of x over valid entries; 0 if there is none.

    With several ranks it is this rank's part of the mean over all of them, which is the average of the parts.
    """
    total, count = masked_sum(x, valid)
    ranks = current()
    if ranks.size > 1:
        return (
            total * (ranks.scale / max(x.numel(), 1))
            if valid is None
            else total / ranks.mean_count(valid).to(total.dtype)
        )
    return total / (max(count, 1) if isinstance(count, int) else count.clamp(min=1))


def own_part(mean: Tensor, x: Tensor, valid: Tensor | None) -> Tensor:
    """Returns `masked_mean` of x over valid entries, from the mean over the entries of this rank."""
    ranks = current()
    if ranks.size == 1:
        return mean
    return mean * (
        ranks.scale if valid is None else (valid.sum().clamp(min=1) / ranks.mean_count(valid)).to(mean.dtype)
    )


def masked_moments(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the mean and the (biased) variance of x over valid entries of all ranks, in float64."""
    x, ranks = x.double(), current()
    if ranks.size == 1:
        mean = masked_mean(x, valid)
        return mean, masked_mean((x - mean).square(), valid)
    total, entries = masked_sum(x, valid)
    count = torch.as_tensor(entries, dtype=x.dtype, device=x.device)
    own_mean = total / count.clamp(min=1)
    deviation = masked_sum((x - own_mean).square(), valid)[0]
    count, mean, deviation = pooled_moments(*torch.stack(ranks.gather(torch.stack([count, own_mean, deviation]))).T)
    return mean, deviation / count.clamp(min=1)


def pooled_moments(count: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns count [], mean and summed squared deviation [..] of all data from those of R parts, [R] and [R, ..] each.

        n = sum_r n_r;  m = sum_r n_r m_r / n;  S = sum_r S_r + sum_r n_r (m_r - m)^2

    Source: Chan, Golub and LeVeque 1983, parallel variance.
    """
    total, weight = count.sum(), count.view(-1, *[1] * (mean.ndim - 1))
    pooled = (weight * mean).sum(0) / total.clamp(min=1)
    return total, pooled, (deviation + weight * (mean - pooled).square()).sum(0)


def standardize(x: Tensor, valid: Tensor | None, eps: float = 1e-8) -> Tensor:
    """Shifts and scales x to mean 0 and variance 1 over valid entries. Same shape and dtype."""
    mean, variance = masked_moments(x, valid)
    return (x - mean.to(x.dtype)) / (variance.sqrt().to(x.dtype) + eps)


def explained_variance(target: Tensor, residual: Tensor, mask: Tensor) -> Tensor:
    """Returns 1 - Var(residual) / Var(target) [] over the entries where `mask` is True; all [.., N]."""
    unexplained, total = masked_moments(residual, mask)[1], masked_moments(target, mask)[1]
    return 1 - unexplained / total.clamp(min=1e-8)

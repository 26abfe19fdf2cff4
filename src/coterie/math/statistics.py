"""Statistics of tensors over valid entries."""

from __future__ import annotations

import torch
from torch import Tensor


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

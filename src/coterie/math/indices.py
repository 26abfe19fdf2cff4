"""Indices of True entries."""

from __future__ import annotations

import torch
from torch import Tensor


def true_indices(mask: Tensor, count: int | None) -> Tensor:
    """Returns the indices of the True entries of `mask` in ascending order, [count] int64.

    A GPU computes them without a read by the host, for which `nonzero` would wait.

    Args:
        mask: Bool [M].
        count: Number of True entries; None to read it.
    """
    if count is None or not mask.is_cuda:
        return mask.nonzero().squeeze(-1)
    place = torch.where(mask, mask.cumsum(0) - 1, count)  # False entries share the last place, which is dropped
    index = torch.arange(len(mask), device=mask.device)
    return torch.empty(count + 1, dtype=torch.int64, device=mask.device).scatter_(0, place, index)[:count]

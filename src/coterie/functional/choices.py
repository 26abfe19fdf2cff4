"""Discrete choices: those that are available, and the values of those taken and of the best."""

from __future__ import annotations

import torch
from torch import Tensor


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Returns logits with the lowest finite number where `mask` (bool, the same shape) is False; no gradient there."""
    return logits if mask is None else torch.where(mask, logits, torch.finfo(logits.dtype).min)


def taken(q: Tensor, action: Tensor, choices: tuple[int, ...]) -> Tensor:
    """Returns the value of the actions taken [..], sum_k Q_k(a_k).

    Args:
        q: Values of all choices [.., sum A].
        action: Index of the choice in each component [.., K] int64.
        choices: Number of choices A of each of the K components.
    """
    if len(choices) == 1:
        return q.gather(-1, action).squeeze(-1)
    parts = zip(q.split(choices, -1), action.unbind(-1), strict=True)
    return torch.stack([part.gather(-1, index.unsqueeze(-1)).squeeze(-1) for part, index in parts]).sum(0)


def best(q: Tensor, mask: Tensor | None, choices: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns the best available actions [.., K] and their value [..].

    Args:
        q: Values of all choices [.., sum A].
        mask: Available choices, the same shape, bool; None if all are available.
        choices: Number of choices A of each of the K components.
    """
    tops = [part.max(-1) for part in mask_logits(q, mask).split(choices, -1)]
    if len(tops) == 1:
        return tops[0].indices.unsqueeze(-1), tops[0].values
    return torch.stack([top.indices for top in tops], -1), torch.stack([top.values for top in tops]).sum(0)

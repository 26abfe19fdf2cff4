"""Action values by choice: what was taken, and the best there is. Several discrete components are worth their sum."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.math.distributions import mask_logits


def taken(q: Tensor, pick: Tensor, choices: tuple[int, ...]) -> Tensor:
    """Q [..] of what was picked: the sum over components of Q_k(pick_k).

    q: [.., sum A]; pick: [.., K] int64; choices: A of each of the K components.
    """
    if len(choices) == 1:
        return q.gather(-1, pick).squeeze(-1)
    parts = zip(q.split(choices, -1), pick.unbind(-1), strict=True)
    return torch.stack([part.gather(-1, index.unsqueeze(-1)).squeeze(-1) for part, index in parts]).sum(0)


def best(q: Tensor, mask: Tensor | None, choices: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The best available choices [.., K] and their Q [..]. mask: [.., sum A] bool, None where all are available."""
    tops = [part.max(-1) for part in mask_logits(q, mask).split(choices, -1)]
    if len(tops) == 1:
        return tops[0].indices.unsqueeze(-1), tops[0].values
    return torch.stack([top.indices for top in tops], -1), torch.stack([top.values for top in tops]).sum(0)

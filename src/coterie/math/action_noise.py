"""Noise from which stochastic policies sample their actions."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.specs import ActionSpec


def draw_noise(spec: ActionSpec, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Returns noise [*shape, sum A + C]: Gumbel for choices, normal for numbers."""
    size = spec.mask_size
    parts = []
    if size:
        parts.append(torch.empty(*shape, size, device=device).exponential_(generator=generator).log_().neg_())
    if spec.continuous:
        parts.append(torch.randn(*shape, spec.continuous, generator=generator, device=device))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

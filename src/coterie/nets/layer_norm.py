"""Layer normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """Layer normalization with a learned scale and shift per feature, and per set."""

    def __init__(self, features: int, sets: int | None):
        super().__init__()
        shape = (features,) if sets is None else (sets, 1, features)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.ndim == 1:
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)
        return torch.addcmul(self.bias, nn.functional.layer_norm(x, x.shape[-1:]), self.weight)

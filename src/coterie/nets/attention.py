"""Attention among a team's members, read in several ways at once: who stands there with what he sees, who with what he
does as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from coterie.nets.layers import Linear

HEADS = 4


def draw_normal(module: nn.Module, units: int, generator: torch.Generator) -> None:
    """Redraws the weights of every linear layer below `module` from a normal distribution of deviation sqrt(0.125 /
    units).
    """
    for part in module.modules():
        if isinstance(part, Linear):
            nn.init.normal_(part.weight, 0.0, (0.125 / units) ** 0.5, generator)


class ResidualAttention(nn.Module):
    """Entities look at each other through 4 heads, and what becomes of them is averaged.

        x = LN(x);  z_i = LN(x_i + W sum_k softmax_k(q_i k_k / sqrt(E)) v_k);  out = mean_i z_i

    LN has no learned numbers. Only entities that are present are looked at and averaged; without any, the output is
    zero. The same entities can be read in `C` contexts, in each of which some of them stand: projections are computed
    once an entity, not once a context. Source: Vaswani et al. 2017; Baker et al. 2020 (residual, masked mean); Cohen et
    al. 2022.
    """

    def __init__(self, size: int, generator: torch.Generator):
        super().__init__()
        self.size = size
        self.query_key_value = Linear(size, 3 * size, None, 1.0, generator)
        self.out = Linear(size, size, None, 1.0, generator)
        draw_normal(self, size, generator)

    def forward(self, x: Tensor, present: Tensor | None = None, contexts: Tensor | None = None) -> Tensor:
        """[M, C, E] from entities x [M, S, E].

        present: [M, S] bool, None: all; contexts: [C, N] int64, the entities that stand in each context, None: a single
        one of all.
        """
        rows, entities, size = x.shape
        if contexts is None:
            contexts = torch.arange(entities, device=x.device).unsqueeze(0)
        slots = contexts.flatten()
        x = layer_norm(x, (size,))
        parts = self.query_key_value(x.view(-1, size)).view(rows, entities, 3, HEADS, -1)
        query, key, value = parts.permute(2, 3, 0, 1, 4).contiguous().unbind(0)  # [heads, M, S, E / heads]
        # Scores stand [S, heads, M, C N] under the softmax: along the first axis it runs over whole vectors.
        score = (key * size**-0.5) @ query.index_select(2, slots).transpose(-1, -2)
        score = score.permute(2, 0, 1, 3).contiguous()
        seen = torch.zeros(len(contexts), entities, dtype=torch.bool, device=x.device).scatter(1, contexts, True)
        seen = seen.T.repeat_interleave(contexts.shape[1], 1)[:, None, None]
        if present is not None:
            seen = seen & present.T[:, None, :, None]
        weight = torch.where(seen, score, torch.finfo(x.dtype).min).softmax(0)
        if present is not None:
            weight = torch.where(seen, weight, 0.0)
        mixed = (weight.permute(1, 2, 3, 0) @ value).permute(1, 2, 0, 3).reshape(-1, size)
        z = self.out(mixed).view(rows, -1, size) + x.index_select(1, slots)
        z = layer_norm(z, (size,)).unflatten(1, contexts.shape)  # [M, C, N, E]
        if present is None:
            return z.sum(2) / contexts.shape[1]
        counted = present[:, contexts].unsqueeze(-1)
        return torch.where(counted, z, 0.0).sum(2) / counted.sum(2).clamp(min=1)

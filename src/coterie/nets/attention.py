"""Attention among a team's members, read in several ways at once: who stands there with what he sees, who with what he
does as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from coterie.nets.layers import Linear

HEADS = 4
EPS = 1e-5


def draw_normal(module: nn.Module, units: int, generator: torch.Generator) -> None:
    """Redraws the weights of every linear layer below `module` from a normal distribution of deviation sqrt(0.125 /
    units).
    """
    for part in module.modules():
        if isinstance(part, Linear):
            nn.init.normal_(part.weight, 0.0, (0.125 / units) ** 0.5, generator)


class _Attend(torch.autograd.Function):
    """What entities read of each other, with samples along the last axis, where elementwise code is fastest.

        w = softmax_s(q_i k_s / sqrt(E) over those seen);  out_i = sum_s w_is v_s

    parts: queries, keys and values [S, 3, heads, d, M]; slots: [Q] int64, the entity that asks at each place; seen: [Q,
    S, 1, M or 1] bool, who is looked at from there. Returns [Q, heads, d, M]; zero where nobody is seen. Batched matrix
    products of a handful of entities cost a CPU several times as much, in calls and in copies.
    """

    @staticmethod
    def forward(ctx, parts: Tensor, slots: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        entities, _, heads, width, rows = parts.shape
        query, key, value = parts.unbind(1)
        score = parts.new_zeros(entities, entities, heads, rows)
        scale = (heads * width) ** -0.5
        for f in range(width):
            score.addcmul_(query[:, None, :, f], key[None, :, :, f], value=scale)
        weight = torch.where(seen, score.index_select(0, slots), torch.finfo(parts.dtype).min).softmax(1)
        if seen.shape[-1] > 1:  # somewhere there may be nobody
            weight = torch.where(seen, weight, 0.0)
        out = parts.new_empty(len(slots), heads, width, rows)
        for f in range(width):
            torch.sum(weight * value[:, :, f], 1, out=out[:, :, f])
        ctx.save_for_backward(parts, slots, weight)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        parts, slots, weight = ctx.saved_tensors
        entities, _, heads, width, _ = parts.shape
        query, key, value = parts.unbind(1)
        d_parts, d_weight = torch.empty_like(parts), torch.zeros_like(weight)
        d_query, d_key, d_value = d_parts.unbind(1)
        for f in range(width):
            part = grad[:, None, :, f]
            d_weight.addcmul_(part, value[None, :, :, f])
            torch.sum(weight * part, 0, out=d_value[:, :, f])
        d_weight.sub_((d_weight * weight).sum(1, keepdim=True)).mul_(weight).mul_((heads * width) ** -0.5)
        d_score = parts.new_zeros(entities, *d_weight.shape[1:]).index_add_(0, slots, d_weight)
        for f in range(width):
            torch.sum(d_score * key[None, :, :, f], 1, out=d_query[:, :, f])
            torch.sum(d_score * query[:, None, :, f], 0, out=d_key[:, :, f])
        return d_parts, None, None


class _NormalisedMean(torch.autograd.Function):
    """mean_i LN(z_i) [C, E, M] of z [C, N, E, M] over the members that count, LN being over E without learned numbers.

    share: [C, N, 1, M], a member's part of the mean, or a number for all. One function, because the intermediate
    results are larger than all else of a critic.
    """

    @staticmethod
    def forward(ctx, z: Tensor, share: Tensor | float) -> Tensor:  # type: ignore[override]
        y = z - z.mean(2, keepdim=True)
        scale = (y.square().mean(2, keepdim=True) + EPS).rsqrt_()
        y.mul_(scale)
        ctx.share = share
        ctx.save_for_backward(y, scale)
        return y.sum(1).mul_(share) if isinstance(share, float) else (y * share).sum(1)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        y, scale = ctx.saved_tensors
        grad = grad.unsqueeze(1) * ctx.share
        along = (y * grad).mean(2, keepdim=True)
        return torch.addcmul(grad - grad.mean(2, keepdim=True), y, along, value=-1).mul_(scale), None


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
        x = layer_norm(x, (size,)).permute(1, 2, 0).contiguous()  # [S, E, M]
        parts = _across(self.query_key_value, x).view(entities, 3, HEADS, -1, rows)
        seen = torch.zeros(len(contexts), entities, dtype=torch.bool, device=x.device).scatter(1, contexts, True)
        seen = seen.repeat_interleave(contexts.shape[1], 0)[:, :, None, None]
        if present is not None:
            seen = seen & present.T.unsqueeze(1)
        mixed: Tensor = _Attend.apply(parts, slots, seen)  # pyright: ignore[reportAssignmentType]
        z = (_across(self.out, mixed.flatten(1, 2)) + x.index_select(0, slots)).unflatten(0, contexts.shape)
        share: Tensor | float = 1 / contexts.shape[1]
        if present is not None:
            counted = present.T[contexts].unsqueeze(2)  # [C, N, 1, M]
            share = counted / counted.sum(1, keepdim=True).clamp(min=1)
        return _NormalisedMean.apply(z, share).permute(2, 0, 1)  # pyright: ignore[reportOptionalMemberAccess]


def _across(layer: Linear, x: Tensor) -> Tensor:
    """`layer` over features that stand before the samples: [S, in, M] to [S, out, M]."""
    return torch.baddbmm(layer.bias.unsqueeze(-1), layer.weight.T.expand(len(x), -1, -1), x)

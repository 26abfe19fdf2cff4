"""Memory networks over sequences in which lives begin and end: GRU and LSTM with their own backward pass.

The input's share of the gates is one product over the whole sequence; what remains for a step is one product with the
memory and a few operations. The backward pass is written out, because autograd's bookkeeping of a hundred small steps
costs several times what the arithmetic does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.nets.layers import orthogonal, tanh_

MemoryKind = Literal["none", "gru", "lstm"]
Carry = dict[str, Tensor]
"""Memory between steps, by name: `h`, and `c` for an LSTM."""


stacking: ContextVar[bool] = ContextVar("stacking", default=False)
"""Set where networks run under `torch.vmap`, which PyTorch's fused cell has no rule for."""

_STRETCH = 1 << 17
"""Numbers of memory that a stretch of a sequence has, so that what the backward pass lays by for it stays in cache."""


def _gru(
    gates: Tensor, keep: Tensor, start: Tensor, weight: Tensor, bias: Tensor, saved: Sequence[Tensor] | None = None
) -> Tensor:
    """h_1 .. h_T, see `_GruSequence`; saved: where every step's h', (r, z), h' W_n + b, n and h are written."""
    size, h = start.shape[-1], start
    add_product = torch.addmm if weight.ndim == 2 else torch.baddbmm
    weight_rz, weight_n = weight.split((2 * size, size), -1)
    steps = zip(*(x.unbind(0) for x in (*gates.split((2 * size, size), -1), keep)), strict=True)
    room = repeat((None,) * 5) if saved is None else zip(*(x.unbind(0) for x in saved), strict=True)
    out = []
    for (x_rz, x_n, k), (kept, opened, recalled, new, after) in zip(steps, room, strict=False):
        before = torch.mul(h, k, out=kept)
        r, z = add_product(x_rz, before, weight_rz, out=opened).sigmoid_().chunk(2, -1)
        recall = add_product(bias, before, weight_n, out=recalled)
        n = tanh_(torch.addcmul(x_n, r, recall, out=new))
        h = torch.lerp(n, before, z, out=after)
        out.append(h)
    if saved is not None:
        return saved[-1]
    return out[0].unsqueeze(0) if len(out) == 1 else torch.stack(out)


class _GruSequence(torch.autograd.Function):
    """h_1 .. h_T of a GRU from the inputs' share of its gates.

        r, z = sigmoid(x_r + h' W_r), sigmoid(x_z + h' W_z);  n = tanh(x_n + r (h' W_n + b));  h = n + z (h' - n)

    with h' = keep_t h_{t-1}. gates: [T, .., M, 3H] in the order r, z, n; keep: [T, .., M, 1]; start: [.., M, H];
    weight: [.., H, 3H]; bias: [H] or [G, 1, H]. Returns [T, .., M, H]. Source: Cho et al. 2014 in the form of cuDNN.
    """

    @staticmethod
    def forward(ctx, gates: Tensor, keep: Tensor, start: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        size = start.shape[-1]
        widths = (size, 2 * size, size, size, size)
        saved = [gates.new_empty(*gates.shape[:-1], width) for width in widths]
        out = _gru(gates, keep, start, weight, bias, saved)
        ctx.save_for_backward(keep, weight, *saved[:-1])
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        keep, weight, kept, opened, recalled, new = ctx.saved_tensors
        size = weight.shape[-2]
        r, z = opened.chunk(2, -1)
        # Gradients lie side by side: of h' W_n + b, of the insides of r and z, which memory and input share, of x_n.
        d = grad.new_empty(*grad.shape[:-1], 4, size)
        d_memory, d_gates = d[..., :3, :].flatten(-2), d[..., 1:, :].flatten(-2)
        back = weight.roll(size, -1).transpose(-1, -2).contiguous()
        product = torch.mm if weight.ndim == 2 else torch.bmm
        stretch = max(1, _STRETCH // grad[0].numel())
        d_h = torch.zeros_like(grad[0])
        for stop in range(len(grad), 0, -stretch):
            at = slice(max(0, stop - stretch), stop)
            _gru_shares(kept[at], r[at], z[at], recalled[at], new[at], d[at])
            steps = zip(*(x.unbind(0) for x in (grad[at], d[at], d_memory[at], z[at], keep[at])), strict=True)
            for g, d_step, d_product, z_step, k in reversed(list(steps)):
                g = g + d_h
                d_step.mul_(g.unsqueeze(-2))
                d_h = product(d_product, back).addcmul_(g, z_step).mul_(k)
        if weight.ndim == 2:
            d_weight = kept.flatten(0, -2).T @ d_memory.flatten(0, -2)
            d_bias = d_memory[..., :size].flatten(0, -2).sum(0)
        else:
            d_weight = torch.einsum("tgmi,tgmo->gio", kept, d_memory)
            d_bias = d_memory[..., :size].sum((0, 2)).unsqueeze(1)
        return d_gates, None, d_h, d_weight.roll(-size, -1), d_bias


def _gru_shares(kept: Tensor, r: Tensor, z: Tensor, recalled: Tensor, new: Tensor, out: Tensor) -> None:
    """What a change of h changes h' W_n + b, the insides of r and of z, and x_n by: [T, .., M, 4, H], into `out`."""
    aten = torch.ops.aten
    aten.tanh_backward(1 - z, new, grad_input=out[..., 3, :])
    torch.mul(out[..., 3, :], r, out=out[..., 0, :])
    aten.sigmoid_backward(out[..., 3, :] * recalled, r, grad_input=out[..., 1, :])
    aten.sigmoid_backward(kept - new, z, grad_input=out[..., 2, :])


def _lstm(
    gates: Tensor, keep: Tensor, h: Tensor, c: Tensor, weight: Tensor, kept: list, opened: list
) -> tuple[Tensor, Tensor]:
    """h_1 .. h_T and the last c, see `_LstmSequence`; every step's (h', c') and (gates, tanh c) go to the lists."""
    size, out = h.shape[-1], []
    for x, k in zip(gates.unbind(0), keep.unbind(0), strict=True):
        h_before, c_before = h * k, c * k
        gate = h_before @ weight + x
        ifo = gate[..., : 3 * size].sigmoid_()
        new = tanh_(gate[..., 3 * size :])
        i, f, o = ifo[..., :size], ifo[..., size : 2 * size], ifo[..., 2 * size :]
        c = torch.addcmul(f * c_before, i, new)
        bent = tanh_(c.clone())
        h = o * bent
        kept.append((h_before, c_before))
        opened.append((gate, bent))
        out.append(h)
    return torch.stack(out), c


class _LstmSequence(torch.autograd.Function):
    """h_1 .. h_T and the last c of an LSTM from the inputs' share of its gates.

        i, f, o = sigmoid(..);  g = tanh(..);  c = f c' + i g;  h = o tanh(c)

    with h' = keep h, c' = keep c. gates: [T, .., M, 4H] in the order i, f, o, g; weight: [.., H, 4H]. Returns
    ([T, .., M, H], [.., M, H]). Source: Hochreiter and Schmidhuber 1997, with a forget gate (Gers et al. 2000).
    """

    @staticmethod
    def forward(ctx, gates: Tensor, keep: Tensor, h: Tensor, c: Tensor, weight: Tensor):  # type: ignore[override]
        kept, opened = [], []
        out, c = _lstm(gates, keep, h, c, weight, kept, opened)
        ctx.save_for_backward(keep, weight)
        ctx.steps = (kept, opened)
        return out, c

    @staticmethod
    def backward(ctx, grad: Tensor, grad_c: Tensor):  # type: ignore[override]
        keep, weight = ctx.saved_tensors
        kept, opened = ctx.steps
        size = weight.shape[-2]
        back = weight.transpose(-1, -2)
        d_gates = grad.new_empty(*grad.shape[:-1], 4 * size)
        d_h, d_c = torch.zeros_like(grad[0]), grad_c
        for t in range(len(kept) - 1, -1, -1):
            gate, bent = opened[t]
            i, f, o, new = gate.split(size, -1)
            _, c_before = kept[t]
            g = d_h + grad[t]
            d_c = d_c + torch.ops.aten.tanh_backward(g * o, bent)
            d = d_gates[t]
            d_ifo = torch.cat([d_c * new, d_c * c_before, g * bent], -1)
            torch.ops.aten.sigmoid_backward(d_ifo, gate[..., : 3 * size], grad_input=d[..., : 3 * size])
            torch.ops.aten.tanh_backward(d_c * i, new, grad_input=d[..., 3 * size :])
            d_h = (d @ back).mul_(keep[t])
            d_c = d_c * f * keep[t]
        before = torch.stack([h for h, _ in kept])
        if weight.ndim == 2:
            d_weight = before.flatten(0, -2).T @ d_gates.flatten(0, -2)
        else:
            d_weight = torch.einsum("tgmi,tgmo->gio", before, d_gates)
        return d_gates, None, d_h, d_c, d_weight


class Memory(nn.Module):
    """A GRU or LSTM layer of `size` units: [T, M, in] to [T, M, size], or [T, G, M, ..] with `sets` sets.

    Gate weights are orthogonal, biases zero (the LSTM's forget gate one).
    """

    def __init__(self, kind: MemoryKind, inputs: int, size: int, sets: int | None, generator: torch.Generator):
        super().__init__()
        self.kind, self.size = kind, size
        gates = 3 if kind == "gru" else 4

        def stacked(rows: int) -> Tensor:
            return torch.cat([orthogonal(rows, size, sets, 1.0, generator) for _ in range(gates)], -1)

        self.input_weight = nn.Parameter(stacked(inputs))
        self.weight = nn.Parameter(stacked(size))
        bias = torch.zeros(gates * size) if sets is None else torch.zeros(sets, 1, gates * size)
        if kind == "lstm":
            bias[..., size : 2 * size] = 1.0
        self.bias = nn.Parameter(bias)
        if kind == "gru":
            self.recall_bias = nn.Parameter(torch.zeros(size) if sets is None else torch.zeros(sets, 1, size))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the carry's parts."""
        return ("h",) if self.kind == "gru" else ("h", "c")

    def forward(self, x: Tensor, first: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Features of every step and the memory after the last one.

        x: [T, .., M, in]; first: [T, .., M] bool, zeroes the memory before the step is read; carry: by name [.., M,
        size].
        """
        alone = self.weight.ndim == 2 and not stacking.get()
        if len(x) == 1 and self.kind == "gru" and alone and not torch.is_grad_enabled():
            return self._step(x[0], first[0], carry["h"])
        if self.weight.ndim == 2:
            gates = torch.addmm(self.bias, x.flatten(0, -2), self.input_weight).unflatten(0, x.shape[:-1])
        else:
            gates = x @ self.input_weight + self.bias
        keep = (~first).unsqueeze(-1).to(x.dtype)
        if self.kind == "gru":
            given = (gates, keep, carry["h"], self.weight, self.recall_bias)
            out: Tensor = _GruSequence.apply(*given) if torch.is_grad_enabled() else _gru(*given)  # pyright: ignore[reportAssignmentType]
            return out, {"h": out[-1]}
        given = (gates, keep, carry["h"], carry["c"], self.weight)
        if torch.is_grad_enabled():
            out, c = _LstmSequence.apply(*given)  # pyright: ignore[reportGeneralTypeIssues]
        else:
            out, c = _lstm(*given, [], [])
        return out, {"h": out[-1], "c": c}

    def _step(self, x: Tensor, first: Tensor, h: Tensor) -> tuple[Tensor, Carry]:
        """A row of a GRU by PyTorch's own cell, equal but for rounding: for few copies calls are what acting costs."""
        recall = torch.cat((self.recall_bias.new_zeros(2 * self.size), self.recall_bias))
        before = h.masked_fill(first.unsqueeze(-1), 0)
        h = torch.gru_cell(x, before, self.input_weight.T, self.weight.T, self.bias, recall)
        return h.unsqueeze(0), {"h": h}

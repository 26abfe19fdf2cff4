"""Recurrent layers: GRU and LSTM over sequences with resets, with a hand-written backward pass.

The contribution of the inputs to the gates is one product over the whole sequence. What remains per timestep is one
product with the hidden state and a few elementwise operations. The backward pass is written out because autograd's
bookkeeping for a hundred small steps costs several times the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import repeat

import torch
from torch import Tensor, nn

from coterie.core import precision
from coterie.core.tree import Tree, tree_map
from coterie.core.types import HiddenState
from coterie.kernels import recurrent as kernels
from coterie.kernels import switch
from coterie.nets.config import RNNKind
from coterie.nets.layers import orthogonal, tanh_

_STATE_NAMES: dict[str, tuple[str, ...]] = {"none": (), "gru": ("h",), "lstm": ("h", "c")}

vmapped: ContextVar[bool] = ContextVar("vmapped", default=False)
"""True while networks run under `torch.vmap`, for which PyTorch's fused GRU cell has no rule."""

_CHUNK_ELEMENTS = 1 << 17
"""Hidden state elements per chunk of a sequence, so that the intermediate results of the backward pass fit in cache."""


def zero_hidden_state(kind: RNNKind, shape: tuple[int, ...], device: torch.device) -> HiddenState:
    """Returns hidden states of zeros of a shape [.., H] by name; {} without a recurrent layer."""
    return {name: torch.zeros(shape, device=device) for name in _STATE_NAMES[kind]}


def unroll_with_burn_in(
    net: Callable[..., tuple[Tree, HiddenState]],
    inputs: Tree,
    first: Tensor | None,
    hidden_state: HiddenState,
    *,
    burn_in: int,
) -> Tree:
    """Outputs of a network [T, ..] for sequences whose first timesteps only warm up its hidden state.

    No gradient flows through the first `burn_in` timesteps, neither from their own outputs nor from later ones.

    Args:
        net: Called as `net(inputs, first, hidden_state)`; returns outputs and the hidden state after them.
        inputs: [T, ..].
        first: [T, ..] bool, True where the hidden state is reset; None for feed-forward networks.
        hidden_state: Hidden state before the first timestep, by name.
        burn_in: Number of these timesteps.

    Source: Kapturowski et al. 2019, section 3.
    """
    if not burn_in:
        return net(inputs, first, hidden_state)[0]
    (early, early_first), (late, late_first) = (
        tree_map(lambda x, time=time: x[time], (inputs, first)) for time in (slice(burn_in), slice(burn_in, None))
    )
    with torch.no_grad():
        warm_up, hidden_state = net(early, early_first, hidden_state)
    return tree_map(lambda *x: torch.cat(x), warm_up, net(late, late_first, hidden_state)[0])


class _RecurrentLayer(nn.Module):
    """Parameters of a recurrent layer of `size` units: orthogonal gate weights, zero biases.

    Subclasses map x [T, M, in] to [T, M, size], or [T, G, M, ..] with `sets` sets. `first` [T, .., M] bool resets the
    hidden state before a timestep is read; the hidden state is [.., M, size] by name.
    """

    num_gates: int

    def __init__(self, in_features: int, size: int, sets: int | None, generator: torch.Generator):
        super().__init__()
        self.size = size

        def gate_weights(rows: int) -> Tensor:
            gates = [orthogonal(rows, size, sets=sets, gain=1.0, generator=generator) for _ in range(self.num_gates)]
            return torch.cat(gates, -1)

        self.input_weight = nn.Parameter(gate_weights(in_features))
        self.weight = nn.Parameter(gate_weights(size))
        gates = self.num_gates * size
        self.bias = nn.Parameter(torch.zeros(gates) if sets is None else torch.zeros(sets, 1, gates))

    def _gate_inputs(self, x: Tensor) -> Tensor:
        """Contribution of the inputs to the gates of every timestep [T, .., M, gates H]."""
        if self.weight.ndim == 2:
            inputs = (self.bias, x.flatten(0, -2), self.input_weight)
            out = precision.in_bfloat16(torch.addmm, *inputs) if precision.reduced else torch.addmm(*inputs)
            return out.unflatten(0, x.shape[:-1])
        product = (
            precision.in_bfloat16(torch.matmul, x, self.input_weight) if precision.reduced else x @ self.input_weight
        )
        return product + self.bias


class GRU(_RecurrentLayer):
    """Gated recurrent unit. Source: Cho et al. 2014 in the form of cuDNN; see `_GruSequence`."""

    num_gates = 3

    def __init__(self, in_features: int, size: int, sets: int | None, generator: torch.Generator):
        super().__init__(in_features, size, sets, generator)
        self.recurrent_bias = nn.Parameter(torch.zeros(size) if sets is None else torch.zeros(sets, 1, size))

    def forward(self, x: Tensor, first: Tensor, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        if switch.on:
            weights = (self.input_weight, self.weight)
            fused = kernels.gru(x, first, hidden_state["h"], weights, self.bias, self.recurrent_bias)
            if fused is not None:
                return fused, {"h": fused[-1]}
        single_set = self.weight.ndim == 2 and not vmapped.get()
        if len(x) == 1 and single_set and not torch.is_grad_enabled() and not precision.reduced:
            return self._step(x[0], first[0], hidden_state["h"])
        keep = (~first).unsqueeze(-1).to(x.dtype)
        inputs = (self._gate_inputs(x), keep, hidden_state["h"], self.weight, self.recurrent_bias)
        out: Tensor = _GruSequence.apply(*inputs) if torch.is_grad_enabled() else _gru(*inputs)  # pyright: ignore[reportAssignmentType]
        return out, {"h": out[-1]}

    def _step(self, x: Tensor, first: Tensor, h: Tensor) -> tuple[Tensor, HiddenState]:
        """One timestep by PyTorch's own cell, equal up to rounding: with few environments, calls dominate the cost."""
        recurrent_bias = torch.cat((self.recurrent_bias.new_zeros(2 * self.size), self.recurrent_bias))
        h = h.masked_fill(first.unsqueeze(-1), 0)
        h = torch.gru_cell(x, h, self.input_weight.T, self.weight.T, self.bias, recurrent_bias)
        return h.unsqueeze(0), {"h": h}


class LSTM(_RecurrentLayer):
    """Long short-term memory; the forget gate's bias is one. See `_LstmSequence`."""

    num_gates = 4

    def __init__(self, in_features: int, size: int, sets: int | None, generator: torch.Generator):
        super().__init__(in_features, size, sets, generator)
        with torch.no_grad():
            self.bias[..., size : 2 * size] = 1.0

    def forward(self, x: Tensor, first: Tensor, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        if switch.on:
            weights = (self.input_weight, self.weight)
            fused = kernels.lstm(x, first, (hidden_state["h"], hidden_state["c"]), weights, self.bias)
            if fused is not None:
                return fused[0], {"h": fused[0][-1], "c": fused[1]}
        keep = (~first).unsqueeze(-1).to(x.dtype)
        inputs = (self._gate_inputs(x), keep, hidden_state["h"], hidden_state["c"], self.weight)
        if torch.is_grad_enabled():
            out, c = _LstmSequence.apply(*inputs)  # pyright: ignore[reportGeneralTypeIssues]
        else:
            out, c = _lstm(*inputs, [], [])
        return out, {"h": out[-1], "c": c}


def build_rnn(kind: RNNKind, in_features: int, size: int, sets: int | None, generator: torch.Generator) -> GRU | LSTM:
    """Returns a GRU or an LSTM."""
    return (GRU if kind == "gru" else LSTM)(in_features, size, sets, generator)


def unroll(rnn: GRU | LSTM, features: Tensor, first: Tensor, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
    """Applies a recurrent layer to the features of agents at the timesteps of a sequence, or at one timestep.

    Args:
        rnn: The layer, with one set of parameters or one for each of the n agents.
        features: [T M n, D] with one set of parameters, [n, T M, D] with one for each agent.
        first: [T, M, n] or [M, n] bool, True where the hidden state is reset before the timestep is read.
        hidden_state: By name [M, n, H].

    Returns:
        The layer's outputs, [T M n, H] or [n, T M, H], and the hidden state after the last timestep.
    """
    steps = len(first) if first.ndim > 2 else 1  # one timestep is a sequence of length one
    agents = first.shape[-2:]
    if features.ndim == 2:
        inner = {name: value.flatten(0, -2) for name, value in hidden_state.items()}
        out, inner = rnn(features.unflatten(0, (steps, -1)), first.reshape(steps, -1), inner)
        return out.flatten(0, 1), {name: value.view(*agents, -1) for name, value in inner.items()}
    inner = {name: value.transpose(0, 1) for name, value in hidden_state.items()}  # [n, M, H]
    sequence = features.unflatten(1, (steps, -1)).transpose(0, 1)  # [T, n, M, D]
    out, inner = rnn(sequence, first.reshape(steps, *agents).transpose(1, 2), inner)
    return out.transpose(0, 1).flatten(1, 2), {name: value.transpose(0, 1) for name, value in inner.items()}


def _gru(
    gates: Tensor, keep: Tensor, start: Tensor, weight: Tensor, bias: Tensor, saved: Sequence[Tensor] | None = None
) -> Tensor:
    """h_1 .. h_T, see `_GruSequence`; saved: buffers for every step's h', (r, z), h' W_n + b, n and h."""
    size, h = start.shape[-1], start
    add_product = torch.addmm if weight.ndim == 2 else torch.baddbmm
    weight_rz, weight_n = weight.split((2 * size, size), -1)
    steps = zip(*(x.unbind(0) for x in (*gates.split((2 * size, size), -1), keep)), strict=True)
    buffers = repeat((None,) * 5) if saved is None else zip(*(x.unbind(0) for x in saved), strict=True)
    out = []
    for (x_rz, x_n, k), (previous, rz, recurrent_n, new, after) in zip(steps, buffers, strict=False):
        before = torch.mul(h, k, out=previous)
        r, z = add_product(x_rz, before, weight_rz, out=rz).sigmoid_().chunk(2, -1)
        recurrent = add_product(bias, before, weight_n, out=recurrent_n)
        n = tanh_(torch.addcmul(x_n, r, recurrent, out=new))
        h = torch.lerp(n, before, z, out=after)
        out.append(h)
    if saved is not None:
        return saved[-1]
    return out[0].unsqueeze(0) if len(out) == 1 else torch.stack(out)


class _GruSequence(torch.autograd.Function):
    """h_1 .. h_T of a GRU from the contribution of the inputs to its gates.

        r, z = sigmoid(x_r + h' W_r), sigmoid(x_z + h' W_z);  n = tanh(x_n + r (h' W_n + b));  h = n + z (h' - n)

    with h' = keep_t h_{t-1}. gates: [T, .., M, 3H] in the order r, z, n; keep: [T, .., M, 1]; start: [.., M, H];
    weight: [.., H, 3H]; bias: [H] or [G, 1, H]. Returns [T, .., M, H]. Source: Cho et al. 2014 in the form of cuDNN.
    """

    @staticmethod
    def forward(ctx, gates: Tensor, keep: Tensor, start: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        size = start.shape[-1]
        widths = (size, 2 * size, size, size, size)
        saved = [gates.new_empty(*gates.shape[:-1], width) for width in widths]
        out = _gru(gates, keep, start, weight, bias=bias, saved=saved)
        ctx.save_for_backward(keep, weight, *saved[:-1])
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        keep, weight, previous, rz, recurrent_n, new = ctx.saved_tensors
        size = weight.shape[-2]
        r, z = rz.chunk(2, -1)
        # Concatenated gradients: of h' W_n + b, of the arguments of r and z (shared by hidden state and input), of x_n.
        d = grad.new_empty(*grad.shape[:-1], 4, size)
        d_recurrent, d_gates = d[..., :3, :].flatten(-2), d[..., 1:, :].flatten(-2)
        weight_t = weight.roll(size, -1).transpose(-1, -2).contiguous()
        product = torch.mm if weight.ndim == 2 else torch.bmm
        chunk = max(1, _CHUNK_ELEMENTS // grad[0].numel())
        d_h = torch.zeros_like(grad[0])
        for stop in range(len(grad), 0, -chunk):
            at = slice(max(0, stop - chunk), stop)
            _gru_derivatives(previous[at], r[at], z[at], recurrent_n[at], new=new[at], out=d[at])
            steps = zip(*(x.unbind(0) for x in (grad[at], d[at], d_recurrent[at], z[at], keep[at])), strict=True)
            for g, d_step, d_product, z_step, k in reversed(list(steps)):
                g = g + d_h
                d_step.mul_(g.unsqueeze(-2))
                d_h = product(d_product, weight_t).addcmul_(g, z_step).mul_(k)
        if weight.ndim == 2:
            d_weight = previous.flatten(0, -2).T @ d_recurrent.flatten(0, -2)
            d_bias = d_recurrent[..., :size].flatten(0, -2).sum(0)
        else:
            d_weight = torch.einsum("tgmi,tgmo->gio", previous, d_recurrent)
            d_bias = d_recurrent[..., :size].sum((0, 2)).unsqueeze(1)
        return d_gates, None, d_h, d_weight.roll(-size, -1), d_bias


def _gru_derivatives(previous: Tensor, r: Tensor, z: Tensor, recurrent_n: Tensor, new: Tensor, out: Tensor) -> None:
    """Writes the derivatives of h by h' W_n + b, the arguments of r and z, and x_n into `out` [T, .., M, 4, H]."""
    aten = torch.ops.aten
    aten.tanh_backward(1 - z, new, grad_input=out[..., 3, :])
    torch.mul(out[..., 3, :], r, out=out[..., 0, :])
    aten.sigmoid_backward(out[..., 3, :] * recurrent_n, r, grad_input=out[..., 1, :])
    aten.sigmoid_backward(previous - new, z, grad_input=out[..., 2, :])


def _lstm(
    gates: Tensor, keep: Tensor, h: Tensor, c: Tensor, weight: Tensor, previous: list, rz: list
) -> tuple[Tensor, Tensor]:
    """h_1 .. h_T and the last c, see `_LstmSequence`; appends every step's (h', c') and (gates, tanh c)."""
    size, out = h.shape[-1], []
    for x, k in zip(gates.unbind(0), keep.unbind(0), strict=True):
        h_before, c_before = h * k, c * k
        gate = h_before @ weight + x
        ifo = gate[..., : 3 * size].sigmoid_()
        new = tanh_(gate[..., 3 * size :])
        i, f, o = ifo[..., :size], ifo[..., size : 2 * size], ifo[..., 2 * size :]
        c = torch.addcmul(f * c_before, i, new)
        tanh_c = tanh_(c.clone())
        h = o * tanh_c
        previous.append((h_before, c_before))
        rz.append((gate, tanh_c))
        out.append(h)
    return torch.stack(out), c


class _LstmSequence(torch.autograd.Function):
    """h_1 .. h_T and the last c of an LSTM from the contribution of the inputs to its gates.

        i, f, o = sigmoid(..);  g = tanh(..);  c = f c' + i g;  h = o tanh(c)

    with h' = keep h, c' = keep c. gates: [T, .., M, 4H] in the order i, f, o, g; weight: [.., H, 4H]. Returns
    ([T, .., M, H], [.., M, H]). Source: Hochreiter and Schmidhuber 1997, with a forget gate (Gers et al. 2000).
    """

    @staticmethod
    def forward(ctx, gates: Tensor, keep: Tensor, h: Tensor, c: Tensor, weight: Tensor):  # type: ignore[override]
        previous, rz = [], []
        out, c = _lstm(gates, keep, h, c, weight=weight, previous=previous, rz=rz)
        ctx.save_for_backward(keep, weight)
        ctx.steps = (previous, rz)
        return out, c

    @staticmethod
    def backward(ctx, grad: Tensor, grad_c: Tensor):  # type: ignore[override]
        keep, weight = ctx.saved_tensors
        previous, rz = ctx.steps
        size = weight.shape[-2]
        weight_t = weight.transpose(-1, -2)
        d_gates = grad.new_empty(*grad.shape[:-1], 4 * size)
        d_h, d_c = torch.zeros_like(grad[0]), grad_c
        for t in range(len(previous) - 1, -1, -1):
            gate, tanh_c = rz[t]
            i, f, o, new = gate.split(size, -1)
            _, c_before = previous[t]
            g = d_h + grad[t]
            d_c = d_c + torch.ops.aten.tanh_backward(g * o, tanh_c)
            d = d_gates[t]
            d_ifo = torch.cat([d_c * new, d_c * c_before, g * tanh_c], -1)
            torch.ops.aten.sigmoid_backward(d_ifo, gate[..., : 3 * size], grad_input=d[..., : 3 * size])
            torch.ops.aten.tanh_backward(d_c * i, new, grad_input=d[..., 3 * size :])
            d_h = (d @ weight_t).mul_(keep[t])
            d_c = d_c * f * keep[t]
        before = torch.stack([h for h, _ in previous])
        if weight.ndim == 2:
            d_weight = before.flatten(0, -2).T @ d_gates.flatten(0, -2)
        else:
            d_weight = torch.einsum("tgmi,tgmo->gio", before, d_gates)
        return d_gates, None, d_h, d_c, d_weight

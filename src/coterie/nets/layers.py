"""Feed-forward layers with one set of parameters, or with `G` sets that are applied in one batched product, and
activation functions.

Without sets a layer maps [M, in] to [M, out]. With `G` sets it maps [G, M, in] to [G, M, out]; entry g uses set g.
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import precision
from coterie.kernels import switch
from coterie.kernels.mlp import mlp
from coterie.nets.config import Activation, Init, NetworkConfig

GAINS: dict[str, float] = {"tanh": 5 / 3, "relu": 2**0.5, "elu": 2**0.5, "gelu": 2**0.5, "silu": 2**0.5}
"""Gains of orthogonal weights that preserve the scale of activations."""


def orthogonal(rows: int, columns: int, *, sets: int | None, gain: float, generator: torch.Generator) -> Tensor:
    """Returns orthogonal matrices [rows, columns] or [sets, rows, columns].

    They are drawn on the CPU, so that a seed gives the same weights on every device.
    """
    draws = [torch.empty(rows, columns) for _ in range(sets or 1)]
    for draw in draws:
        nn.init.orthogonal_(draw, gain, generator)
    return draws[0] if sets is None else torch.stack(draws)


def xavier_normal(rows: int, columns: int, *, sets: int | None, generator: torch.Generator) -> Tensor:
    """Returns matrices [rows, columns] or [sets, rows, columns] from a normal distribution of variance
    2 / (rows + columns).

    Source: Glorot and Bengio 2010.
    """
    draws = [nn.init.xavier_normal_(torch.empty(rows, columns), generator=generator) for _ in range(sets or 1)]
    return draws[0] if sets is None else torch.stack(draws)


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


_MANY_ROWS, _FEW_COLUMNS, _PADDED_COLUMNS = 1024, 8, 16
"""On a CPU, a product of at least that many rows with at most that few columns is padded with zero columns to the width
that the kernels process at once. Forward and backward, 12,288 x 64 by 64 x 5 took 3.8 ms and takes 2.6 ms with one
thread of an AMD EPYC, 2.2 and 1.5 ms with two.
"""


forward_mode: ContextVar[bool] = ContextVar("forward_mode", default=False)
"""True while networks are differentiated in forward mode, where PyTorch's tanh is faster than four operations."""


def tanh_(x: Tensor) -> Tensor:
    """tanh(x) = 2 sigmoid(2 x) - 1 in place, accurate to 2e-7 and four to six times as fast as PyTorch's on a CPU."""
    return x.tanh_() if x.is_cuda or forward_mode.get() else x.mul_(2).sigmoid_().mul_(2).sub_(1)


class _Tanh(torch.autograd.Function):
    """`tanh_` with the gradient of tanh."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.mark_dirty(x)
        y = tanh_(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, y)


def tanh(x: Tensor) -> Tensor:
    """Overwrites x with tanh(x), differentiable once; x must not be needed elsewhere. See `tanh_`."""
    if not torch.is_grad_enabled():
        return tanh_(x)
    return _Tanh.apply(x)  # pyright: ignore[reportReturnType]


ACTIVATIONS = {
    "tanh": tanh,
    "relu": torch.relu,
    "elu": nn.functional.elu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
}


class Linear(nn.Module):
    """x W + b with W [in, out], or [G, in, out] with `sets` sets; `gain` scales orthogonal weights."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        gain: float,
        generator: torch.Generator,
        sets: int | None = None,
        init: Init = "orthogonal",
    ):
        super().__init__()
        if init == "orthogonal":
            weight = orthogonal(in_features, out_features, sets=sets, gain=gain, generator=generator)
        else:
            weight = xavier_normal(in_features, out_features, sets=sets, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(out_features) if sets is None else torch.zeros(sets, 1, out_features))

    def forward(self, x: Tensor) -> Tensor:
        if switch.on and (out := mlp(x, [self.weight], [self.bias], activated=0)) is not None:
            return out
        columns, single_set = self.weight.shape[-1], self.weight.ndim == 2
        product = torch.addmm if single_set else torch.baddbmm
        if precision.reduced:
            return precision.in_bfloat16(product, self.bias, x, self.weight)
        if columns > _FEW_COLUMNS or x.shape[-2] < _MANY_ROWS or x.is_cuda or (single_set and columns == 1):
            return product(self.bias, x, self.weight)
        padding = (0, _PADDED_COLUMNS - columns)
        padded = product(nn.functional.pad(self.bias, padding), x, nn.functional.pad(self.weight, padding))
        return padded[..., :columns].contiguous()


def activated(layer: Linear, x: Tensor, activation: Activation) -> Tensor:
    """Returns the activation of a layer's outputs: x [M, in] to [M, out]."""
    if switch.on and (out := mlp(x, [layer.weight], [layer.bias], activation=activation, activated=1)) is not None:
        return out
    return ACTIVATIONS[activation](layer(x))


class MLP(nn.Module):
    """Hidden layers with an activation each: [M, in] to [M, hidden_sizes[-1]], or [G, M, ..] with sets.

    With `config.layer_norm` the input and the output of every activation are normalized; if it is `hidden`, the inputs
    of activations are. A `head` is applied last.
    """

    def __init__(self, in_features: int, config: NetworkConfig, generator: torch.Generator, sets: int | None = None):
        super().__init__()
        sizes, gain = [in_features, *config.hidden_sizes], GAINS[config.activation]
        self.features = sizes[-1]
        self.activation, self.activation_name = ACTIVATIONS[config.activation], config.activation
        self.layers = nn.ModuleList(
            Linear(a, b, gain=gain, generator=generator, sets=sets, init=config.init) for a, b in pairwise(sizes)
        )
        self.layer_norm = config.layer_norm
        normalized = sizes[1:] if config.layer_norm == "hidden" else sizes
        self.norms = nn.ModuleList(LayerNorm(size, sets) for size in normalized) if config.layer_norm else None

    def forward(self, x: Tensor, head: Linear | None = None) -> Tensor:
        if switch.on:
            linear: list[Any] = [*self.layers] if head is None else [*self.layers, head]
            norms: list[Any] = [] if self.norms is None else [*self.norms]
            out = mlp(
                x,
                [layer.weight for layer in linear],
                [layer.bias for layer in linear],
                norms=[(norm.weight, norm.bias) for norm in norms],
                activation=self.activation_name,
                activated=len(self.layers),
            )
            if out is not None:
                return out
        if self.norms is None:
            for layer in self.layers:
                x = self.activation(layer(x))
        elif self.layer_norm == "hidden":
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = self.activation(norm(layer(x)))
        else:
            x = self.norms[0](x)
            for layer, norm in zip(self.layers, self.norms[1:], strict=True):  # pyright: ignore[reportIndexIssue, reportArgumentType]
                x = norm(self.activation(layer(x)))
        return x if head is None else head(x)


class VectorEncoder(nn.Module):
    """Passes vector observations on as floats; see `coterie.nets.encoders` for other observations."""

    def __init__(self, features: int):
        super().__init__()
        self.features = features

    def forward(self, obs: Tensor) -> Tensor:
        return obs if obs.is_floating_point() else obs.float()

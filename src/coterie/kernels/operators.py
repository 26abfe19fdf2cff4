"""Operators of `torch.ops.coterie`, which are called without PyTorch's dispatcher where nothing traces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)

Preparation = tuple[int, Callable[..., Callable[..., Any]]]
"""Number k of arguments that vary between calls, the first ones, and a function of the others. It returns a function of
the first k that computes the operator until one of the others changes."""

_forward_functions: dict[Any, Callable[..., Any]] = {}
"""Functions without a gradient of all operators, by their entries in PyTorch's dispatcher."""
_preparations: dict[Any, Preparation] = {}


def direct_call(operator: Any) -> Callable[..., Any]:
    """Returns the function that computes an operator of `torch.ops.coterie` without PyTorch's dispatcher."""
    return _forward_functions[operator]


def preparation(operator: Any) -> Preparation | None:
    """Returns the preparation of an operator of `torch.ops.coterie` that is called often with the same parameters."""
    return _preparations.get(operator)


class Operator:
    """A function of tensors on the CPU, registered with PyTorch.

    Autograd, `torch.compile`, `torch.export` and fake tensors need PyTorch's dispatcher, which takes about 0.1 ms for a
    function written in Python, often longer than the function itself. Everything else calls the function directly.
    """

    def __init__(
        self,
        name: str,
        signature: str,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        prepare: Preparation | None = None,
    ) -> None:
        """
        Args:
            name: Name in `torch.ops.coterie`.
            signature: Arguments, a tensor first, and results, in the language of `torch.library.define`.
            forward: Computes the results, without a gradient.
            fake: Returns empty tensors of the results' shapes.
            prepare: Used by traces; None for none.
        """
        qualified = f"coterie::{name}"
        torch.library.define(qualified, signature)
        torch.library.impl(qualified, "CPU", forward)
        torch.library.register_fake(qualified, fake)
        self._name, self._forward = qualified, forward
        self._registered = getattr(torch.ops.coterie, name).default
        _forward_functions[self._registered] = forward
        if prepare is not None:
            _preparations[self._registered] = prepare
        self._differentiable: Callable[..., Any] | None = None

    def set_gradient(self, differentiable: Callable[..., Any]) -> None:
        """Sets the function that is called where gradients are recorded; it calls `without_gradient`."""
        torch.library.impl(self._name, "Autograd", differentiable)
        self._differentiable = differentiable

    def __call__(self, *args: Any) -> Any:
        """Returns the results, with a gradient if one is recorded."""
        if _is_traced(args[0]):
            return self._registered(*args)
        if self._differentiable is not None and torch.is_grad_enabled():
            return self._differentiable(*args)
        return self._forward(*args)

    def without_gradient(self, *args: Any) -> Any:
        """Returns the results within a function of autograd, which records the gradient itself."""
        if not _is_traced(args[0]):
            return self._forward(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return self._registered(*args)


def _is_traced(x: Tensor) -> bool:
    """True if the call is recorded, transformed or replaced by something that sees operators only."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or type(x) not in _PLAIN
    )

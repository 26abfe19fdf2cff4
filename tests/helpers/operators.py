"""Checks of registrations of custom operators: schema, autograd, fake tensors, and tracing with dynamic shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


def failures(operator: Any, *arguments: Any) -> dict[str, str]:
    """Returns the checks of `torch.library.opcheck` that an operator fails, with the messages.

    Args:
        operator: An overload, such as `torch.ops.coterie.mlp.default`.
        *arguments: Arguments of a call.
    """
    found = opcheck(operator, arguments, raise_exception=False)
    return {check: str(result) for check, result in found.items() if result != "SUCCESS"}


def calls(namespace: str, function: Callable[[], object]) -> dict[Any, list[tuple[Any, ...]]]:
    """Returns the operators of a namespace that a function calls, also in backward passes, with their arguments."""
    found: dict[Any, list[tuple[Any, ...]]] = {}

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == namespace:
                copies = tree_map(
                    lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x,
                    args,
                )
                found.setdefault(func, []).append(copies)
            return func(*args, **(kwargs or {}))

    with Recording():
        function()
    return found

"""A CUDA graph of operations on the CPU, see `fakecuda.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._cxx_pytree import tree_leaves


class CaptureError(RuntimeError):
    """The function cannot be captured as a CUDA graph."""


class Recording:
    """The operations of a captured function. A replay executes them on the same memory, without the function's Python.

    Args:
        generators: Generators that the operations may draw from, besides PyTorch's own.
    """

    def __init__(self, generators: Sequence[torch.Generator]):
        self._states = [(g, g.get_state()) for g in generators]
        self._calls: list[tuple[Any, Any, Any, list[torch.Tensor | None]]] = []
        """Operations with the new tensors of their results; None for other results, and those that share an input."""
        self._made: dict[int, torch.UntypedStorage] = {}
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def execute(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Executes an operation on tensors of the host and records it."""
        drawn_from = kwargs.get("generator")
        seeds = {g.initial_seed() for g, _ in self._states}
        if drawn_from is not None and drawn_from.initial_seed() not in seeds:
            raise CaptureError(f"{func}: its generator is not registered with the graph")
        storages = [x.untyped_storage() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        for storage in storages:
            if storage.data_ptr() not in self._made and storage.data_ptr() not in self._before:
                self._before[storage.data_ptr()] = (storage, storage.clone())
        result = func(*args, **kwargs)
        inputs, new = {storage.data_ptr() for storage in storages}, []
        for x in tree_leaves(result):
            place = x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) else None
            if place is not None and place not in self._before:
                self._made[place] = x.untyped_storage()
            new.append(None if place is None or place in inputs else x)
        self._calls.append((func, args, kwargs, new))
        return result

    def undo(self) -> None:
        """Restores tensors and generators: a capture executes nothing."""
        for storage, before in self._before.values():
            storage.copy_(before)
        for g, state in self._states:
            g.set_state(state)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, made in self._calls:
            for x, new in zip(made, tree_leaves(func(*args, **kwargs)), strict=True):
                if x is not None:
                    x.copy_(new)

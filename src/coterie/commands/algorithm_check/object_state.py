"""Walks over the attributes of an algorithm, to name what a checkpoint lacks and which network never changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_DEPTH = 7


def leaves(root: Any) -> dict[str, Any]:
    """Returns the numbers, tensors and states of generators that an object holds, by path such as `critic.weight`.

    Tensors are copied. Objects that are reached on several paths are listed once.
    """
    found: dict[str, Any] = {}
    _walk(root, "", found, set(), _DEPTH)
    return found


def _walk(node: Any, path: str, found: dict[str, Any], seen: set[int], depth: int) -> None:
    if isinstance(node, Tensor):
        found[path] = node.detach().clone()
    elif isinstance(node, torch.Generator):
        found[path] = node.get_state()
    elif isinstance(node, bool | int | float):
        found[path] = node
    elif depth and id(node) not in seen:
        seen.add(id(node))
        for name, part in _parts(node):
            _walk(part, f"{path}.{name}" if path else name, found, seen, depth - 1)


def _parts(node: Any) -> list[tuple[str, Any]]:
    """Returns the parts of a container or of an object with attributes, by name."""
    if isinstance(node, nn.Module):
        own = [(name, part) for name, part in vars(node).items() if not name.startswith("_")]
        return [*own, *node._parameters.items(), *node._buffers.items(), *node._modules.items()]
    if isinstance(node, dict):
        return [(str(key) if isinstance(key, str | int) else f"item_{k}", node[key]) for k, key in enumerate(node)]
    if isinstance(node, list | tuple):
        return [(str(k), part) for k, part in enumerate(node)]
    if isinstance(node, type) or callable(node) or not hasattr(node, "__dict__"):
        return []
    return list(vars(node).items())


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Returns the paths whose values differ, or that only `one` has."""
    return [path for path, value in one.items() if not _equal(value, other.get(path))]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and torch.equal(one, other)
    return one == other or (one != one and other != other)


def kind_of(root: Any, path: str) -> str:
    """Returns `optimizer` or `generator` for a path into one, otherwise `other`."""
    node = root
    for name in path.split("."):
        if isinstance(node, torch.optim.Optimizer) or "optim" in type(node).__name__.lower():
            return "optimizer"
        if isinstance(node, dict):
            node = node.get(name, node.get(int(name)) if name.isdigit() else None)
        elif isinstance(node, list | tuple) and name.isdigit():
            node = node[int(name)] if int(name) < len(node) else None
        else:
            node = getattr(node, name, None)
    return "generator" if isinstance(node, torch.Generator) else "other"


def frozen_copies(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns paths of weights that were a copy of other weights, and did not change while those did."""
    tensors = {
        path: value for path, value in before.items() if isinstance(value, Tensor) and value.ndim > 1 and value.any()
    }
    kept = [path for path, value in tensors.items() if _equal(value, after.get(path))]
    changed = [path for path in tensors if path not in set(kept)]
    return [path for path in kept if any(_equal(tensors[path], tensors[other]) for other in changed)]

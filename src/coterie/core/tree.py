"""Nested structures (pytrees) of tensors: dictionaries and registered dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

import optree
from torch import Tensor

Tree = Any
"""A tensor, or a nested structure of dictionaries and registered dataclasses whose leaves are tensors."""

_NAMESPACE = "coterie"

C = TypeVar("C")


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Returns `tree` with every tensor replaced by `function(tensor, ...)`; None stays None."""
    return optree.tree_map(function, tree, *rest, namespace=_NAMESPACE)


def tree_leaves(tree: Tree) -> list[Tensor]:
    """Returns the tensors of `tree` in a fixed order."""
    return optree.tree_leaves(tree, namespace=_NAMESPACE)


def register_pytree(cls: type[C]) -> type[C]:
    """Class decorator: registers a frozen dataclass of tensors so that `tree_map` maps over its fields."""
    dataclass_type: Any = cls  # the type checker does not know that it is a dataclass
    names = tuple(field.name for field in fields(dataclass_type))
    values = attrgetter(*names) if len(names) > 1 else lambda node: tuple(vars(node).values())
    optree.register_pytree_node(
        dataclass_type,
        lambda node: (values(node), None, names),
        lambda _, children: dataclass_type(*children),
        namespace=_NAMESPACE,
    )
    return cls

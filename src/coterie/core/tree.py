"""Nested structures (pytrees) of tensors: dictionaries and registered dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import optree
from torch import Tensor

Tree = Any
"""A tensor, or a nested structure of dictionaries and registered dataclasses whose leaves are tensors."""

_NAMESPACE = "coterie"

C = TypeVar("C")


tree_map: Callable[..., Any] = partial(optree.tree_map, namespace=_NAMESPACE)
"""tree_map(function, tree, *rest): `tree` with every tensor replaced by `function(tensor, ...)`; None stays None."""

tree_leaves: Callable[[Tree], list[Tensor]] = partial(optree.tree_leaves, namespace=_NAMESPACE)  # pyright: ignore[reportAssignmentType]
"""tree_leaves(tree): the tensors of `tree` in a fixed order."""


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

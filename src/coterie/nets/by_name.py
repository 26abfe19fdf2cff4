"""Modules and parameters by names of users: of roles, agents and sensors.

PyTorch refuses keys with a dot, the empty one, and those that are attributes of a module, such as `items` and `train`.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView
from typing import Any, final

from torch import nn

_ATTRIBUTES = frozenset(dir(nn.ModuleDict())) | frozenset(dir(nn.ParameterDict()))
_MARKS = ("%2E", "%25")


def key_of(name: str) -> str:
    """Returns the key of a module for a name: itself if PyTorch accepts it. Different names have different keys."""
    if any(mark in name for mark in _MARKS) or name.endswith("%"):
        name = name.replace("%", "%25")
    key = name.replace(".", "%2E")
    return f"{key}%" if not key or key in _ATTRIBUTES else key


def name_of(key: str) -> str:
    """Returns the name that has a key, see `key_of`."""
    return key.removesuffix("%").replace("%2E", ".").replace("%25", "%")


class _ByName:
    """Translates names to keys for `nn.ModuleDict` and `nn.ParameterDict`."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(key_of(name))  # pyright: ignore[reportAttributeAccessIssue]

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(key_of(name), value)  # pyright: ignore[reportAttributeAccessIssue]

    def __delitem__(self, name: str) -> None:
        super().__delitem__(key_of(name))  # pyright: ignore[reportAttributeAccessIssue]

    def __contains__(self, name: str) -> bool:
        return super().__contains__(key_of(name))  # pyright: ignore[reportAttributeAccessIssue]

    def __iter__(self) -> Iterator[str]:
        return map(name_of, super().__iter__())  # pyright: ignore[reportAttributeAccessIssue]

    def keys(self) -> Iterable[str]:
        return KeysView(self)  # pyright: ignore[reportArgumentType]

    def items(self) -> Iterable[tuple[str, Any]]:
        return ItemsView(self)  # pyright: ignore[reportArgumentType]


@final
class ModulesByName(_ByName, nn.ModuleDict):
    """A dictionary of modules whose keys are any texts."""


@final
class ParametersByName(_ByName, nn.ParameterDict):
    """A dictionary of parameters whose keys are any texts."""

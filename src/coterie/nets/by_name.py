"""Modules and parameters by names of users: of roles, agents and sensors.

PyTorch refuses keys with a dot, the empty one, and those that are attributes of a module, such as `items` and `train`.
Its exporter to ONNX fails at keys with quotes or line breaks.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView
from typing import Any, final

from torch import nn

_ATTRIBUTES = frozenset(dir(nn.ModuleDict())) | frozenset(dir(nn.ParameterDict()))
_MARK = re.compile("%([0-9A-F]{2})")
_REFUSED = re.compile(r"""[.\x00-\x1f"'\\\x7f-\x9f]""")
"""Dots, which PyTorch refuses, and what would end a text in the code that the exporter to ONNX writes."""


def key_of(name: str) -> str:
    """Returns the key of a module for a name: itself if PyTorch accepts it. Different names have different keys."""
    if _MARK.search(name) or name.endswith("%"):
        name = name.replace("%", "%25")
    key = _REFUSED.sub(lambda found: f"%{ord(found[0]):02X}", name)
    return f"{key}%" if not key or key in _ATTRIBUTES else key


def name_of(key: str) -> str:
    """Returns the name that has a key, see `key_of`."""
    return _MARK.sub(lambda found: chr(int(found[1], 16)), key.removesuffix("%"))


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

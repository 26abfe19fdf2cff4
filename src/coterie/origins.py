"""A resolved configuration as YAML, each value with where it came from in a comment behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from coterie.config import Resolved
from coterie.overrides import primitive

_WIDEST = 64
"""Column behind which comments are not pushed by long values."""


def to_yaml(resolved: Resolved) -> str:
    """What `--cfg job` prints and `config.yaml` holds; `load_resolved` reads the same configuration back."""
    lines = list(_lines(resolved.config.tree(), "", 0))
    column = min(_WIDEST, 2 + max(len(text) for text, key in lines if key))
    return "".join(
        f"{text:<{column}}  # {resolved.origins[key]}\n" if key in resolved.origins else f"{text}\n"
        for text, key in lines
    )


def _lines(tree: Mapping[str, Any], prefix: str, depth: int) -> list[tuple[str, str]]:
    """Lines of YAML with the dotted key that each holds; empty for the head of a section."""
    lines: list[tuple[str, str]] = []
    for key, value in tree.items():
        start = f"{'  ' * depth}{_scalar(key)}:"
        if isinstance(value, Mapping) and value:
            lines.append((start, ""))
            lines += _lines(value, f"{prefix}{key}.", depth + 1)
        else:
            lines.append((f"{start} {_scalar(value)}", f"{prefix}{key}"))
    return lines


def _scalar(value: Any) -> str:
    """A value on one line as YAML that reads the same in versions 1.1 and 1.2."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, str) and primitive(value) != value:
        return json.dumps(value)  # a text that looks like a number or a word of YAML 1.2
    return yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=2**31).strip()[1:-1]

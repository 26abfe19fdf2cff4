"""Parsing of YAML files of settings, which may be damaged or hostile.

Scalars are those of YAML 1.2: `1e-4` is a number, `off` and `no` are strings. Refused besides invalid YAML: control
characters, integers beyond 64 bits, tags such as `!!binary`, keys that are not words, duplicate keys, deep nesting, and
aliases that contain themselves or expand to very much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from coterie.config.overrides import MAX_KEY
from coterie.core.errors import UserError
from coterie.core.text import find_control_character, parse_integer, printable, shorten

MAX_DEPTH = 50
"""Maximum number of nested mappings and lists."""
MAX_VALUES = 100_000
"""Maximum number of keys and values, with aliases expanded."""
_TOO_DEEP = f"more than {MAX_DEPTH} nested mappings and lists, or an alias that contains itself. Write it flat."
_LONGEST_PROBLEM = 200
"""Characters of PyYAML's description of a problem, which may quote an anchor or tag of any length."""

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """YAML loader with the scalars of YAML 1.2, and limits of nesting and size."""

    def __init__(self, text: str, name: str):
        super().__init__(text)
        self._name, self._depth, self._values = name, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:  # PyYAML would take quadratic time
            raise UserError(f"{self._name}: {_TOO_DEEP}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def leaves(self, mapping: yaml.MappingNode, prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any, int]]:
        """Yields dotted key, value and line of each setting in a mapping."""
        self._check(mapping, depth)
        for key, node, line in self._items(mapping):
            if isinstance(node, yaml.MappingNode) and node.value:
                yield from self.leaves(node, f"{prefix}{key}.", depth + 1)
            else:
                yield f"{prefix}{key}", self._value(node, depth + 1), line

    def _value(self, node: yaml.Node, depth: int) -> Any:
        self._check(node, depth)
        if isinstance(node, yaml.MappingNode):
            return {key: self._value(inner, depth + 1) for key, inner, _ in self._items(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._value(inner, depth + 1) for inner in node.value]
        if character := find_control_character(node.value):
            raise self.error(node, f"contains the control character {character}. Remove it.")
        return self.construct_object(node)

    def _items(self, mapping: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, int]]:
        """Yields key, value and line of the entries. UserError for keys that are not words, or given twice."""
        seen: set[str] = set()
        for key, node in mapping.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (f"{_TAG}str", f"{_TAG}int") or not key.value:
                raise self.error(key, "a key is not a word. Write `key: value`, with quotation marks around the key.")
            if key.value in seen:
                raise self.error(key, f"{shorten(key.value)}: given twice. Remove one of them.")
            if len(key.value) > MAX_KEY:
                raise self.error(key, f"{shorten(key.value)}: longer than {MAX_KEY} characters. Shorten it.")
            if "\t" in key.value or "\n" in key.value or find_control_character(key.value):
                raise self.error(key, f"the key {shorten(repr(key.value))} contains a control character. Remove it.")
            seen.add(key.value)
            yield str(self.construct_object(key)), node, key.start_mark.line + 1

    def _check(self, node: yaml.Node, depth: int) -> None:
        """Raises UserError for a tag that is not the one of the node's own form, deep nesting, and too many values."""
        self._values += 1
        if depth > MAX_DEPTH:
            raise self.error(node, _TOO_DEEP)
        if self._values > MAX_VALUES:
            raise self.error(node, f"more than {MAX_VALUES:,} values. Use fewer aliases.")
        is_text = isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}str"
        if not is_text and node.tag != self.resolve(type(node), node.value, (True, False)):
            raise self.error(node, f"the tag {shorten(node.tag.replace(_TAG, '!!'))} is not supported. Remove it.")

    def error(self, node: yaml.Node, problem: str) -> UserError:
        return UserError(f"{self._name}:{node.start_mark.line + 1}: {problem}")


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+(_[0-9]+)*", "-+0123456789"),
    (
        "float",
        r"[-+]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf)|\.(nan|NaN)",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"^(?:{_pattern})\\Z"), list(_first))
_Loader.add_constructor(f"{_TAG}int", lambda _, node: parse_integer(node.value))  # YAML 1.1 would read 010 as 8


def parse_settings(text: str, name: str) -> list[tuple[str, Any, int]]:
    """Returns the leaves of YAML settings: dotted key, value and line of each.

    Args:
        text: The YAML text.
        name: Name of the file, for messages.

    Raises:
        UserError: If the text is refused, with the line.
    """
    try:
        loader = _Loader(text, name)
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise loader.error(root, "expected settings, one `key: value` per line")
        return list(loader.leaves(root))
    except yaml.reader.ReaderError as error:
        raise UserError(
            f"{name}: invalid YAML: the control character {printable(chr(error.character))} at character "
            f"{error.position + 1}. Remove it."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if error.context_mark and (mark is None or "stream end" in str(error.problem)):
            mark = error.context_mark  # an opening bracket or quote that is never closed
        problem = shorten(str(error.problem or error.context), _LONGEST_PROBLEM)
        raise UserError(f"{name}:{mark.line + 1 if mark else 1}: invalid YAML: {problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{name}: invalid YAML: {shorten(str(error), _LONGEST_PROBLEM)}") from error

"""Parsing of YAML files of settings, which may be damaged or hostile.

Scalars are those of YAML 1.2: `1e-4` is a number, `off` and `no` are strings. Refused besides invalid YAML: control
characters, integers beyond 64 bits, tags such as `!!binary`, keys that are not words, duplicate keys, deep nesting, and
aliases that contain themselves or expand to very much.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from coterie.config.overrides import MAX_KEY
from coterie.core.errors import UserError
from coterie.core.text import find_control_character, parse_integer, printable, shorten

MAX_DEPTH = 50
"""Maximum number of nested mappings and lists."""
MAX_VALUES = 100_000
"""Maximum number of keys and values, with aliases expanded."""
_LONGEST_PROBLEM = 200
"""Characters of PyYAML's description of a problem."""

_TAG = "tag:yaml.org,2002:"
_KEY_TAGS = {f"{_TAG}str", f"{_TAG}int"}


class _Loader(yaml.SafeLoader):
    """YAML loader with the scalars of YAML 1.2 and limited nesting, at which PyYAML would take quadratic time."""

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


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


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return parse_integer(node.value)  # YAML 1.1 would read 010 as 8


_Loader.add_constructor(f"{_TAG}int", _integer)


def parse_settings(text: str, name: str) -> list[tuple[str, Any, int]]:
    """Returns the leaves of YAML settings: dotted key, value and line of each.

    Args:
        text: The YAML text.
        name: Name of the file, for messages.

    Raises:
        UserError: If the text is refused, with the line.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{name}:{_line(root)}: expected settings, one `key: value` per line")
        _check(loader, root, name)
        return _leaves(loader, root, "")
    except yaml.reader.ReaderError as error:
        raise UserError(
            f"{name}: invalid YAML: the control character {printable(chr(error.character))} at character "
            f"{error.position + 1}. Remove it."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if error.context_mark and (mark is None or "stream end" in str(error.problem)):
            mark = error.context_mark  # an opening bracket or quote that is never closed
        line = mark.line + 1 if mark else 1
        raise UserError(f"{name}:{line}: invalid YAML: {_problem(error)}") from error
    except RecursionError as error:
        raise UserError(_too_deep(name)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{name}: invalid YAML: {shorten(str(error), _LONGEST_PROBLEM)}") from error


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Returns the problem in a text, which may quote an anchor or tag of any length."""
    return shorten(str(error.problem or error.context), _LONGEST_PROBLEM)


def _too_deep(where: str) -> str:
    return f"{where}: more than {MAX_DEPTH} nested mappings and lists, or an alias that contains itself. Write it flat."


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _check(loader: _Loader, root: yaml.Node, name: str) -> None:
    """Raises UserError for nodes that are refused. Visits them level by level, without recursion."""
    level, depth, count = [root], 0, 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise UserError(_too_deep(f"{name}:{_line(level[0])}"))
        inner: list[yaml.Node] = []
        for node in level:
            _check_tag(loader, node, name)
            if isinstance(node, yaml.MappingNode):
                _check_keys(node, name)
                inner += [value for _, value in node.value]
            elif isinstance(node, yaml.SequenceNode):
                inner += node.value
            elif character := find_control_character(node.value):
                raise UserError(f"{name}:{_line(node)}: contains the control character {character}. Remove it.")
            if count + len(inner) > MAX_VALUES:
                raise UserError(f"{name}:{_line(node)}: more than {MAX_VALUES:,} values. Use fewer aliases.")
        level, count = inner, count + len(inner)


def _check_tag(loader: _Loader, node: yaml.Node, name: str) -> None:
    """Raises UserError for a tag that is not the one of the node's own form."""
    if isinstance(node, yaml.ScalarNode):
        own = {f"{_TAG}str", loader.resolve(yaml.ScalarNode, node.value, (True, False))}
    else:
        own = {f"{_TAG}{'map' if isinstance(node, yaml.MappingNode) else 'seq'}"}
    if node.tag not in own:
        tag = node.tag.replace(_TAG, "!!")
        raise UserError(f"{name}:{_line(node)}: the tag {shorten(tag)} is not supported. Remove it.")


def _check_keys(mapping: yaml.MappingNode, name: str) -> None:
    """Raises UserError for keys that are not words, or given twice."""
    seen: set[str] = set()
    for key, _ in mapping.value:
        where = f"{name}:{_line(key)}"
        if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEY_TAGS or not key.value:
            raise UserError(f"{where}: a key is not a word. Write `key: value`, with quotation marks around the key.")
        if key.value in seen:
            raise UserError(f"{where}: {shorten(key.value)}: given twice. Remove one of them.")
        if len(key.value) > MAX_KEY:
            raise UserError(f"{where}: {shorten(key.value)}: longer than {MAX_KEY} characters. Shorten it.")
        if "\t" in key.value or "\n" in key.value or find_control_character(key.value):
            raise UserError(f"{where}: the key {shorten(repr(key.value))} contains a control character. Remove it.")
        seen.add(key.value)


def _leaves(loader: _Loader, mapping: yaml.MappingNode, prefix: str) -> list[tuple[str, Any, int]]:
    leaves: list[tuple[str, Any, int]] = []
    for key_node, node in mapping.value:
        key = f"{prefix}{loader.construct_object(key_node)}"
        if isinstance(node, yaml.MappingNode) and node.value:
            leaves += _leaves(loader, node, f"{key}.")
        else:
            leaves.append((key, loader.construct_object(node, deep=True), _line(key_node)))
    return leaves

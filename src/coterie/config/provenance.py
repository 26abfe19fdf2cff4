"""A configuration with the source of each value, and its YAML with these in comments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from coterie.config.overrides import parse_primitive
from coterie.config.schema import RunConfig
from coterie.config.sources import ARGUMENT, COMMAND_LINE, DERIVED, FILE, before_derivation, flatten
from coterie.config.strict_yaml import parse_settings
from coterie.core.errors import UserError
from coterie.core.text import find_control_character, printable, shorten

_MAX_COMMENT_COLUMN = 64
"""Column of comments, except after values that are longer."""
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_/]*")
_NO_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}
"""Words that YAML 1.1 or 1.2 reads as other values."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, and the origin of each of its values by dotted key."""

    config: RunConfig
    origins: dict[str, str]

    @property
    def given(self) -> frozenset[str]:
        """Dotted keys of the values that the user has given, on the command line, in Python or in a file."""
        return frozenset(
            key for key, origin in self.origins.items() if origin in (COMMAND_LINE, ARGUMENT) or origin.startswith(FILE)
        )

    @property
    def requested(self) -> dict[str, Any]:
        """The settings by dotted key, null or auto where the run has derived the value."""
        derived = {key for key, origin in self.origins.items() if origin.startswith(DERIVED)}
        return {key: before_derivation(key) if key in derived else value for key, value in flatten(self.config.tree())}


def to_yaml(resolved: Resolved) -> str:
    """Returns the YAML that `--cfg job` prints and `config.yaml` contains, which `load_resolved` reads back.

    Raises:
        UserError: If a setting cannot be read back, such as a folder with a line break in its name.
    """
    lines = list(_lines(resolved.config.tree(), "", 0))
    column = min(_MAX_COMMENT_COLUMN, 2 + max(len(text) for text, key in lines if key))
    written = "".join(
        f"{text:<{column}}  # {printable(resolved.origins[key])}\n" if key in resolved.origins else f"{text}\n"
        for text, key in lines
    )
    _require_readable(written, resolved.config.tree())
    return written


def _require_readable(written: str, tree: Mapping[str, Any]) -> None:
    """Raises UserError if the text is not read as the settings `tree`."""
    for key, value in flatten(tree):
        for text in (*key.split("."), value):
            if isinstance(text, str) and (character := find_control_character(text)):
                raise UserError(f"{printable(key)}: contains the control character {character}, which cannot be saved.")
    try:
        found = {key: json.dumps(value, sort_keys=True) for key, value, _ in parse_settings(written, "the settings")}
    except UserError as error:
        raise UserError(f"these settings cannot be saved: {error}") from error
    for key, value in flatten(tree):
        if found.get(key) != json.dumps(value, sort_keys=True):
            raise UserError(f"{printable(key)}: {shorten(repr(value))} cannot be saved and read again. Choose another.")


def lines_of(tree: Mapping[str, Any]) -> list[str]:
    """Returns nested settings as lines of YAML."""
    return [text for text, _ in _lines(tree, "", 0)]


def _lines(tree: Mapping[str, Any], prefix: str, depth: int) -> list[tuple[str, str]]:
    """Returns lines of YAML, each with the dotted key of its value, or "" for the heading of a section."""
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
    """Returns a value as one line of YAML that has the same meaning in YAML 1.1 and 1.2."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, str) and _is_primitive(value):
        return json.dumps(value)  # Text that YAML 1.2 would read as a number, boolean or null.
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _NO_WORDS:
        return value  # as PyYAML would write it, which takes much longer
    shown = not isinstance(value, str) or value.isprintable()  # other text is written with escapes
    return yaml.safe_dump([value], default_flow_style=True, allow_unicode=shown, width=2**31).strip()[1:-1]


def _is_primitive(text: str) -> bool:
    """True for text that would be read as a number, boolean or null without quotation marks."""
    try:
        return parse_primitive(text) != text
    except ValueError:  # an integer of more than 64 bits
        return True

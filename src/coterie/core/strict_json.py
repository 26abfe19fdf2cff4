"""Parsing of JSON that may be damaged or hostile.

Refused besides invalid JSON: text that is not UTF-8, NaN and Infinity, numbers beyond 64 bits, duplicate keys, and deep
nesting.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import read_bytes
from coterie.core.text import parse_integer, shorten

MAX_DEPTH = 100
"""Maximum number of nested objects and lists."""


def parse(content: bytes | str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: If it is refused, with the reason in one line.
    """
    text = content.decode() if isinstance(content, bytes) else content
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=parse_integer,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} nested objects and lists") from None
    _check_depth(value)
    return value


def read_object(path: Path, fix: str) -> dict[str, Any]:
    """Reads a file that contains one JSON object.

    Args:
        path: The file.
        fix: How to fix a file that cannot be read, for the message.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        value = parse(read_bytes(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). {fix}") from error
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({error}). {fix}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: cannot be read (not a JSON object). {fix}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key '{shorten(twice, 30)}' is given twice")
    return items


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {shorten(text, 30)} is too large")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_depth(value: Any) -> None:
    """Raises ValueError for deep nesting, which recursive functions could not process."""
    level, depth = [value], 0
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} nested objects and lists")
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]

"""Markdown tables, also of configuration keys."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coterie.config.messages import leaf_fields, show
from coterie.config.needs import FACTS, Needs, needs_of

_BOUNDS = (
    (annotated_types.Ge, "ge", "≥"),
    (annotated_types.Gt, "gt", ">"),
    (annotated_types.Le, "le", "≤"),
    (annotated_types.Lt, "lt", "<"),
)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in lines)]
    )


def code_list(words: Iterable[str]) -> str:
    """The words as inline code, separated by commas."""
    return ", ".join(f"`{word}`" for word in words)


def key_table(model: type[BaseModel], prefix: str, besides: Iterable[str] = ()) -> str:
    """A table of a model's keys with the docstrings of its fields.

    Args:
        model: The configuration model.
        prefix: Put before every key, such as `algo.`.
        besides: Keys, or first parts of keys, that are left out.
    """
    rows = []
    for key, field in leaf_fields(model, prefix).items():
        if key in besides or key.partition(".")[0] in besides:
            continue
        meaning = " ".join(((field.description or "") + "".join(map(_needs, needs_of(field)))).split())
        rows.append([f"`{key}`", _default(field), _allowed(field), meaning])
    return table(["key", "default", "values", "meaning"], rows)


def _needs(need: Needs) -> str:
    """A sentence on what a setting needs to have an effect."""
    facts = [FACTS[condition.key] for condition in need.conditions if condition.key in FACTS]
    settings = [f"`{condition.text}`" for condition in need.conditions if condition.key not in FACTS]
    return f" Without effect {facts[0]}." if facts and not settings else f" Needs {' or '.join(settings)}."


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return f"`{show(field.default)}`" if field.default_factory is None else "computed"


def _allowed(field: FieldInfo) -> str:
    """The choices or bounds of a field."""
    parts = _alternatives(field.annotation)
    choices = [word for part in parts for word in _choices(part)]
    if choices:
        return code_list([*(("false", "true") if bool in parts else ()), *choices])
    words = []
    for kind, name, sign in _BOUNDS:
        bounds = [bound for bound in field.metadata if isinstance(bound, kind)]
        words += [f"{sign} {_bound(getattr(bound, name))}" for bound in bounds]
    return ", ".join(words)


def _bound(value: Any) -> str:
    """A bound as it is written; large powers of ten as `1e12`."""
    text = show(value)
    zeros = len(text) - len(text.rstrip("0"))
    return f"{text[:-zeros]}e{zeros}" if isinstance(value, int) and zeros >= 6 else text


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    args = typing.get_args(annotation)
    return args if args and typing.get_origin(annotation) is not typing.Literal else (annotation,)


def _choices(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()

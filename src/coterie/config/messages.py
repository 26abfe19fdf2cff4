"""One-line error messages for configurations: the key, its value, the expected value, and how to fix it."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from coterie.core.text import shorten

_TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_LIST = "a list in brackets"
_NUMBER = r"(?<!\d)-?\d+(?:\.\d+)?"
_EXPECTED_BY_ERROR = (
    ("int_", "an integer"),
    ("float_", "a number"),
    ("finite_number", "a finite number"),
    ("bool_", "true or false"),
    ("string_type", "text"),
    ("path_", "a path"),
    ("list_type", _LIST),
    ("tuple_type", _LIST),
    ("dict_type", "a mapping in braces"),
    ("none_required", "null"),
    ("model_type", "null, {}, or a value for one of its keys"),
)


def leaf_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Returns the leaf fields of a model and its nested models by dotted key, and sections that may be null."""
    leaves: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        kinds = alternatives(field.annotation)
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(kinds) > 1 or not inner:
            leaves[f"{prefix}{name}"] = field
        for section in inner:
            leaves |= leaf_fields(section, f"{prefix}{name}.")
    return leaves


def holds_mapping(field: FieldInfo) -> bool:
    """True if the field's value is a dict with arbitrary keys."""
    return any(typing.get_origin(part) is dict or part is dict for part in alternatives(field.annotation))


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Returns the types that an annotation allows, without `Annotated`."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return tuple(part for branch in typing.get_args(annotation) for part in alternatives(branch))
    if typing.get_origin(annotation) is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    return (annotation,)


def nearest_keys(key: str, known: Iterable[str]) -> str:
    """Returns a suggestion for an unknown key: similar valid keys, including those in other sections."""
    known = sorted(set(known))
    if key.startswith("env.wrappers.") and not any(candidate.startswith("env.wrappers") for candidate in known):
        return "Wrappers are not available for environments that step a batch."
    if f"algo.{key}" in known:
        return f"Did you mean 'algo.{key}'?"
    last = key.rpartition(".")[2]
    same_word = [candidate for candidate in known if candidate.rpartition(".")[2] == last]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    by_word = {key.rpartition(".")[2]: key for key in sorted(known, key=lambda key: key.startswith("algo."))}
    close_word = [by_word[word] for word in difflib.get_close_matches(last, by_word, n=3, cutoff=0.6)]
    matcher = difflib.SequenceMatcher(b=key)

    def similarity(candidate: str) -> float:
        matcher.set_seq1(candidate)
        return matcher.ratio()

    best = sorted({*same_word, *close, *close_word}, key=similarity, reverse=True)[:3]
    if best:
        return "Did you mean " + " or ".join(f"'{candidate}'" for candidate in best) + "?"
    return "`coterie train --cfg job` lists all keys."


def mistakes(error: ValidationError, fields: Mapping[str, FieldInfo], prefix: str = "") -> list[tuple[str, str]]:
    """Returns (key, message) for every invalid key of a validation error.

    Args:
        error: The validation error.
        fields: Leaf fields by dotted key.
        prefix: Dotted prefix of the validated model's keys.
    """
    by_key: dict[str, list[dict[str, Any]]] = {}
    for detail in error.errors():
        by_key.setdefault(_key_of(detail["loc"], fields, prefix), []).append(typing.cast(dict[str, Any], detail))
    return [(key, _message(key, details, fields.get(key))) for key, details in by_key.items()]


def first_mistake(error: ValidationError) -> str:
    """Returns the first mistake in data that are no settings, such as `seed=[1]: expected an integer`."""
    detail = typing.cast(dict[str, Any], error.errors()[0])
    place = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"{place} is missing"
    if detail["type"] == "extra_forbidden":
        return f"{place} is unknown"
    if detail["type"] in {"value_error", "assertion_error"}:
        return f"{place}: {_plain_message(detail)}".removeprefix(": ")
    return f"{place}={show(detail['input'])}: expected {_expected(detail, None)}".removeprefix("=")


def _key_of(location: tuple[int | str, ...], fields: Mapping[str, FieldInfo], prefix: str) -> str:
    """Returns the longest dotted key in an error's location, without list items and branches of a union."""
    for stop in range(len(location), 0, -1):
        key = prefix + ".".join(str(part) for part in location[:stop])
        if key in fields:
            return key
    return prefix + ".".join(str(part) for part in location) if location else prefix.rstrip(".")


def _message(key: str, details: list[dict[str, Any]], field: FieldInfo | None) -> str:
    items = [detail for detail in details if detail["type"] not in {"too_short", "too_long"}]
    first, *_ = details = items or details  # a list is too short because its wrong items were left out
    if first["type"] == "missing":
        meaning = f" ({' '.join(field.description.split()).rstrip('.')})" if field and field.description else ""
        return f"{key}: a value is required{meaning}. Set {key}=VALUE"
    if first["type"] in {"value_error", "assertion_error"}:
        given = format_value(first["input"])
        place = f"{key}={given}" if field and len(given) <= 80 else key
        return f"{place}: {_plain_message(first)}"
    expected = list(dict.fromkeys(_expected(detail, field) for detail in details))
    default = None if field is None or field.default is PydanticUndefined else field.default
    if _LIST in expected or any(isinstance(part, int) for part in first["loc"][-1:]):
        return _list_message(key, first, expected, default)
    line = f"{key}={show(first['input'])}: expected {' or '.join(expected)}"
    if default is not None and expected == [show(default)]:
        return f"{line}. Omit it."
    return line if default is None else f"{line}, e.g. {show(default)}"


def _list_message(key: str, detail: Mapping[str, Any], expected: list[str], default: Any) -> str:
    """Message for a value that is no list, or an item that does not fit, with the list to write instead."""
    value, place = detail["input"], next(iter(detail["loc"][-1:]), None)
    numbers = [] if value is None or isinstance(value, bool) else re.findall(_NUMBER, str(value).removesuffix(".0"))
    is_list_of_numbers = isinstance(default, list | tuple) and all(isinstance(item, int | float) for item in default)
    shown = f"'{show(value)}'" if isinstance(value, str) else show(value)
    if isinstance(place, int):
        said = f"{key}: item {place} is {shown}, expected {' or '.join(expected)}"
        numbers = numbers if len(numbers) > 1 else []
    else:
        said = f"{key}={shown}: {'text, ' if isinstance(value, str) else ''}expected a list"
    if numbers and is_list_of_numbers:
        quoted = " without quotation marks" if isinstance(value, str) and value.strip().startswith("[") else ""
        return f"{said}. Write {key}=[{shorten(','.join(numbers))}]{quoted}"
    return said if default is None else f"{said}, e.g. {key}={show(default)}"


def _plain_message(detail: Mapping[str, Any]) -> str:
    return " ".join(str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ").split())


def _expected(detail: Mapping[str, Any], field: FieldInfo | None) -> str:
    kind, context = str(detail["type"]), detail.get("ctx", {})
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        return _range(detail, field)
    if kind in {"too_short", "too_long"}:
        limit = "at least" if kind == "too_short" else "at most"
        number = context.get("min_length", context.get("max_length"))
        return f"{limit} {number} {'item' if number == 1 else 'items'}"
    if kind == "multiple_of":
        return f"a multiple of {show(context['multiple_of'])}"
    if kind == "string_pattern_mismatch":
        return f"text of the form {context['pattern']}"
    for start, expected in _EXPECTED_BY_ERROR:
        if kind.startswith(start):
            return expected
    return _plain_message(detail)


def _range(detail: Mapping[str, Any], field: FieldInfo | None) -> str:
    """Returns all bounds of the field, or those of the error if the field defines none."""
    bounds: dict[str, Any] = {}
    for part in field.metadata if field else ():
        for sign, kind in (("ge", annotated_types.Ge), ("gt", annotated_types.Gt)):
            bounds |= {sign: getattr(part, sign)} if isinstance(part, kind) else {}
        for sign, kind in (("le", annotated_types.Le), ("lt", annotated_types.Lt)):
            bounds |= {sign: getattr(part, sign)} if isinstance(part, kind) else {}
    bounds = bounds or {sign: value for sign, value in detail["ctx"].items() if sign in {"ge", "gt", "le", "lt"}}
    words = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
    names = [_TYPE_NAMES[part] for part in alternatives(field.annotation) if part in {int, float}] if field else []
    limits = " and ".join(f"{words[sign]} {show(value)}" for sign, value in bounds.items())
    return f"{names[0] if names else 'a number'} {limits}"


def show(value: Any) -> str:
    """Formats a value as on the command line, in at most 80 characters."""
    return shorten(format_value(value))


def format_value(value: Any) -> str:
    """Formats a value as on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(format_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {format_value(item)}" for key, item in value.items()) + "}"
    return " ".join(str(value).split())

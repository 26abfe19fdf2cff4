"""Search spaces: words of the command line such as `algo.lr=log(1e-5,1e-2)`, and YAML files.

log(LOW,HIGH)        uniform on a logarithmic scale     {log_uniform: [LOW, HIGH]}
uniform(LOW,HIGH)    uniform                            {uniform: [LOW, HIGH]}
int(LOW,HIGH)        integers, both bounds included     {integers: [LOW, HIGH]}
choice(A,B,...)      one of several values              {choices: [A, B, ...]}
range()              the setting's own range            range
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from coterie.commands.tuning.dimensions import Choices, Dimension, NumberRange
from coterie.commands.tuning.ranges import default_space, is_integer, own_range
from coterie.config.messages import format_value, leaf_fields
from coterie.config.overrides import canonical, parse
from coterie.config.resolve import Resolved, resolve
from coterie.config.schema import RunConfig
from coterie.config.sources import flatten
from coterie.config.strict_yaml import parse_settings
from coterie.core.errors import UserError, nearest

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_KINDS = ("log", "uniform", "int", "choice", "range")
_YAML_KINDS = {"log_uniform": "log", "uniform": "uniform", "integers": "int", "choices": "choice"}

_FIXED = (
    "seed",
    "steps",
    "out",
    "device",
    "threads",
    "progress",
    "precision",
    "kernels",
    "cuda_graphs",
    "algo.name",
    "env.name",
)
_FIXED_SECTIONS = ("eval.", "log.", "checkpoint.", "workers.")


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separates settings from ranges.

    Args:
        words: Words of the command line, `key=value` or `key=log(1e-5,1e-2)`.

    Returns:
        The settings, and the text of the ranges by key.

    Raises:
        UserError: For a function that does not exist.
    """
    settings, ranges = [], {}
    for word in words:
        key, _, value = word.partition("=")
        call = _CALL.fullmatch(value)
        if call is None:
            settings.append(word)
        elif call[1] not in _KINDS:
            raise UserError(f"{word}: '{call[1]}' is no range. {nearest(call[1], _KINDS)}")
        else:
            ranges[canonical(key.strip())] = value.strip()
    return settings, ranges


def read_space(path: Path) -> dict[str, str]:
    """Returns the text of the ranges in a YAML file by key.

    Raises:
        UserError: If the file cannot be read, or a range has another form, with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"--space {path}: no such file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--space {path}: cannot be read: {error}.") from error
    found: dict[str, str] = {}
    for dotted, value, line in parse_settings(text, str(path)):
        key, _, kind = dotted.rpartition(".")
        if kind in _YAML_KINDS and isinstance(value, list):
            found[canonical(key)] = f"{_YAML_KINDS[kind]}({','.join(map(format_value, value))})"
        elif value == "range":
            found[canonical(dotted)] = "range()"
        elif isinstance(value, str) and _CALL.fullmatch(value):
            found |= split_words([f"{dotted}={value}"])[1]
        else:
            raise UserError(
                f"{path}:{line}: {dotted}: no range. Write {dotted}: {{log_uniform: [LOW, HIGH]}}, uniform, integers, "
                "choices or the word range."
            )
    if not found:
        raise UserError(f"--space {path}: contains no settings. Write a line such as `algo.lr: range`.")
    return found


def build_space(
    ranges: Mapping[str, str], resolved: Resolved, words: Sequence[str], config_file: Path | None
) -> dict[str, Dimension]:
    """Returns the dimensions of a search space by key.

    Args:
        ranges: Text of the ranges by key; empty to search the usual settings of the algorithm.
        resolved: The configuration without them.
        words: Settings of the command line.
        config_file: Configuration file.

    Raises:
        UserError: For a setting that does not exist or cannot be searched, and for a range that is empty or has values
            that the setting does not take.
    """
    config = resolved.config
    fields = leaf_fields(RunConfig) | leaf_fields(type(config.algo.params), "algo.")
    for team, own in config.teams.items():
        fields |= leaf_fields(type(own.algo.params), f"teams.{team}.algo.")
    if not ranges:
        given = {key for key, origin in resolved.origins.items() if not origin.startswith(("default", "preset"))}
        space = default_space(fields, dict(flatten(config.tree())), given)
        if not space:
            raise UserError(
                f"algo={config.algo.name}: none of its settings is searched by default. Name one: 'algo.KEY=range()'."
            )
        return space
    space = {}
    for key, text in ranges.items():
        _require_searchable(key)
        if text == "range()" and key not in resolved.origins:
            resolve([*words, f"{key}=0"], config_file)  # the error for a setting that does not exist
        space[key] = _dimension(key, text, fields.get(key))
        for value in space[key].examples():
            resolve([*words, f"{key}={value}"], config_file)
    return space


def _require_searchable(key: str) -> None:
    if key in _FIXED or key.startswith(_FIXED_SECTIONS) or key.endswith(".algo.name"):
        raise UserError(f"{key}: cannot be searched, trials would not be comparable. Give it one value.")
    if key.startswith("env.") and not key.startswith("env.wrappers"):
        raise UserError(f"{key}: cannot be searched, because it changes the task. Give it one value.")


def _dimension(key: str, text: str, field: FieldInfo | None) -> Dimension:
    call = _CALL.fullmatch(text)
    assert call is not None
    kind, inner = call[1], call[2].strip()
    if kind == "range":
        if inner:
            raise UserError(f"{key}={text}: range() takes no numbers. Write uniform({inner}) or log({inner}).")
        return own_range(key, field)
    if not inner:
        raise UserError(f"{key}={text}: the range is empty. Write {key}={kind}({_form(kind)}).")
    parsed = parse(f"{key}={inner}")
    if kind == "choice":
        if len({repr(value) for value in parsed.values}) < 2:
            raise UserError(f"{key}={text}: only one value. Add another, or write {key}={inner}.")
        return Choices(key, tuple(dict.fromkeys(parsed.texts)))
    return _number_range(key, text, kind, values=parsed.values, integer=kind == "int" or is_integer(field))


def _number_range(key: str, text: str, kind: str, *, values: Sequence[Any], integer: bool) -> NumberRange:
    """Returns a range of numbers. UserError if it is empty, or if bounds are no numbers."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(values) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise UserError(f"{key}={text}: expected two finite numbers. Write {key}={kind}({_form(kind)}).")
    low, high = numbers
    if low > high:
        raise UserError(f"{key}={text}: the lower bound {low:g} is greater than the upper bound {high:g}. Swap them.")
    if low == high:
        raise UserError(f"{key}={text}: only one value. Widen the range, or write {key}={low:g}.")
    if kind == "log" and low <= 0:
        raise UserError(f"{key}={text}: a logarithmic range begins above 0. Raise {low:g}, or write uniform.")
    if integer and (low != int(low) or high != int(high)):
        raise UserError(f"{key}={text}: takes integers. Write integers as bounds.")
    return NumberRange(key, low, high, log=kind == "log", integer=integer)


def _form(kind: str) -> str:
    return "A,B,..." if kind == "choice" else "LOW,HIGH"

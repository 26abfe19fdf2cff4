"""Search spaces: words of the command line such as `algo.lr=log(1e-5,1e-2)`, YAML files, and ranges of settings.

log(LOW,HIGH)        uniform on a logarithmic scale     {log_uniform: [LOW, HIGH]}
uniform(LOW,HIGH)    uniform                            {uniform: [LOW, HIGH]}
int(LOW,HIGH)        integers, both bounds included     {integers: [LOW, HIGH]}
choice(A,B,...)      one of several values              {choices: [A, B, ...]}
range()              the setting's own range            range

A search space maps dotted keys to Optuna's distributions. Values of a categorical distribution are texts of the command
line.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import annotated_types
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic.fields import FieldInfo

from coterie.assembly.resolve import Resolved, resolve
from coterie.config.messages import alternatives, format_value, leaf_fields
from coterie.config.overrides import canonical, parse
from coterie.config.schema import RunConfig
from coterie.config.sources import flatten
from coterie.config.strict_yaml import parse_settings
from coterie.core.errors import UserError, nearest

Distribution = FloatDistribution | IntDistribution | CategoricalDistribution

RANGES: dict[str, tuple[float, float, bool]] = {
    "lr": (1e-5, 1e-2, True),
    "critic_lr": (1e-5, 1e-2, True),
    "temperature_lr": (1e-5, 1e-2, True),
    "gamma": (0.9, 0.999, False),
    "gae_lambda": (0.8, 1.0, False),
    "td_lambda": (0.5, 1.0, False),
    "entropy_coef": (1e-4, 0.1, True),
    "clip_eps": (0.05, 0.4, False),
    "value_clip_eps": (0.05, 0.4, False),
    "value_coef": (0.1, 4.0, True),
    "huber_delta": (0.1, 20.0, True),
    "max_grad_norm": (0.1, 20.0, True),
    "adam_eps": (1e-8, 1e-3, True),
    "weight_decay": (1e-8, 1e-2, True),
    "epochs": (1, 20, False),
    "num_minibatches": (1, 16, True),
    "rollout_length": (16, 512, True),
    "batch_size": (16, 1024, True),
    "rnn_size": (16, 256, True),
    "tau": (1e-3, 0.1, True),
    "target_update_interval": (10, 2000, True),
    "n_step": (1, 10, False),
    "noise_std": (0.02, 0.5, True),
    "temperature": (0.01, 2.0, True),
    "init_std": (0.1, 1.0, False),
}
"""Low, high and logarithmic scale of settings of algorithms, by name.

They contain the values with which the algorithms were published and about a power of ten around them, where the
interval that a setting allows is much wider.
"""

DEFAULT_KEYS = (
    *("lr", "gamma", "gae_lambda", "td_lambda", "entropy_coef", "clip_eps", "epochs", "tau", "batch_size", "n_step"),
    "temperature",
)
"""Settings of an algorithm that are searched if the user names none, as far as it has them."""

_HIDDEN_SIZES = ("[64,64]", "[128,128]", "[256,256]")
_MAX_INTEGERS = 1000
"""Integers in the widest interval that is searched without an entry of `RANGES`."""

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
_KINDS = ("log", "uniform", "int", "choice", "range")
_YAML_KINDS = {"log_uniform": "log", "uniform": "uniform", "integers": "int", "choices": "choice"}

_FIXED = (
    *("seed", "steps", "out", "device", "threads", "progress", "precision", "kernels", "cuda_graphs"),
    *("algo.name", "algo.base", "env.name"),
)
_FIXED_SECTIONS = ("eval.", "log.", "checkpoint.", "workers.")


# -------------------------------------------------------------------------------------------------------- distributions


def range_text(distribution: Distribution) -> str:
    """Returns the range as on the command line, such as `log(1e-05,0.01)`."""
    if isinstance(distribution, CategoricalDistribution):
        kind = "choice"
    else:
        kind = "log" if distribution.log else "int" if isinstance(distribution, IntDistribution) else "uniform"
    return f"{kind}({','.join(_examples(distribution))})"


def value_text(value: Any) -> str:
    """Returns a value that Optuna suggests as text of the command line."""
    return value if isinstance(value, str) else repr(value)


def suggest(trial: optuna.Trial, key: str, distribution: Distribution) -> None:
    """Suggests a parameter of a trial unless it has one already."""
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(key, distribution.low, distribution.high, log=distribution.log)
    else:
        trial.suggest_float(key, distribution.low, distribution.high, log=distribution.log)


def contains(distribution: Distribution, value: Any) -> bool:
    """True if Optuna may suggest the value."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and distribution.low <= value <= distribution.high


def parameter(key: str, distribution: Distribution, value: Any) -> Any:
    """Returns Optuna's parameter for a value of a setting; None if it is outside of the range."""
    if not isinstance(distribution, CategoricalDistribution):
        return value if contains(distribution, value) else None
    plain = list(value) if isinstance(value, tuple) else value
    return next((text for text in distribution.choices if parse(f"{key}={text}").values[0] == plain), None)


def _examples(distribution: Distribution) -> list[str]:
    """Returns the bounds, or all values, as text of the command line."""
    if isinstance(distribution, CategoricalDistribution):
        return [str(text) for text in distribution.choices]
    return [repr(distribution.low), repr(distribution.high)]


def _numbers(low: float, high: float, *, log: bool, integer: bool) -> Distribution:
    return IntDistribution(int(low), int(high), log=log) if integer else FloatDistribution(low, high, log=log)


# ------------------------------------------------------------------------------------------------------ ranges of users


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
) -> dict[str, Distribution]:
    """Returns the distributions of a search space by key.

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
        return _default_space(fields, resolved)
    space = {}
    for key, text in ranges.items():
        _require_searchable(key)
        if text == "range()" and key not in resolved.origins:
            resolve([*words, f"{key}=0"], config_file)  # the error for a setting that does not exist
        space[key] = _distribution(key, text, fields.get(key))
        for value in _examples(space[key]):
            resolve([*words, f"{key}={value}"], config_file)
    return space


def _default_space(fields: Mapping[str, FieldInfo], resolved: Resolved) -> dict[str, Distribution]:
    """Returns the ranges of `DEFAULT_KEYS`, without settings that the user has set or that are off, null or zero."""
    config, origins = resolved.config, resolved.origins
    values = dict(flatten(config.tree()))
    keys = [f"algo.{name}" for name in DEFAULT_KEYS if values.get(f"algo.{name}")]
    keys = [key for key in keys if key in fields and origins.get(key, "default").startswith(("default", "preset"))]
    if not keys:
        raise UserError(
            f"algo={config.algo.name}: none of its settings is searched by default. Name one: 'algo.KEY=range()'."
        )
    return {key: _own_range(key, fields[key]) for key in keys}


def _require_searchable(key: str) -> None:
    if key in _FIXED or key.startswith(_FIXED_SECTIONS) or key.endswith((".algo.name", ".algo.base")):
        raise UserError(f"{key}: cannot be searched, trials would not be comparable. Give it one value.")
    if key.startswith("env.") and not key.startswith("env.wrappers"):
        raise UserError(f"{key}: cannot be searched, because it changes the task. Give it one value.")


def _distribution(key: str, text: str, field: FieldInfo | None) -> Distribution:
    call = _CALL.fullmatch(text)
    assert call is not None
    kind, inner = call[1], call[2].strip()
    if kind == "range":
        if inner:
            raise UserError(f"{key}={text}: range() takes no numbers. Write uniform({inner}) or log({inner}).")
        return _own_range(key, field)
    if not inner:
        raise UserError(f"{key}={text}: the range is empty. Write {key}={kind}({_form(kind)}).")
    parsed = parse(f"{key}={inner}")
    if kind == "choice":
        if len({repr(value) for value in parsed.values}) < 2:
            raise UserError(f"{key}={text}: only one value. Add another, or write {key}={inner}.")
        return CategoricalDistribution(tuple(dict.fromkeys(parsed.texts)))
    return _number_range(key, text, kind, values=parsed.values, integer=kind == "int" or _is_integer(field))


def _number_range(key: str, text: str, kind: str, *, values: Sequence[Any], integer: bool) -> Distribution:
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
    return _numbers(low, high, log=kind == "log", integer=integer)


def _form(kind: str) -> str:
    return "A,B,..." if kind == "choice" else "LOW,HIGH"


# --------------------------------------------------------------------------------------------------- ranges of settings


def _own_range(key: str, field: FieldInfo | None) -> Distribution:
    """Returns the range of a setting that the user gives no range for.

    Args:
        key: Dotted key of the setting.
        field: Its field, with type and bounds; None if it has none.

    Raises:
        UserError: If the setting has no range of its own.
    """
    kinds = () if field is None else alternatives(field.annotation)
    name = key.rpartition(".")[2]
    if ".algo." in f".{key}" and name in RANGES:
        low, high, log = RANGES[name]
        return _numbers(low, high, log=log, integer=_is_integer(field))
    if ".algo." in f".{key}" and name in {"hidden_sizes", "critic_hidden_sizes"}:
        return CategoricalDistribution(_HIDDEN_SIZES)
    if values := _values(kinds):
        return CategoricalDistribution(values)
    low, high = _bounds(field)
    if (set(kinds) == {int} and high - low < _MAX_INTEGERS) or (set(kinds) == {float} and math.isfinite(high - low)):
        return _numbers(low, high, log=False, integer=set(kinds) == {int})
    raise UserError(
        f"{key}: has no range of its own to search. Give one: '{key}=log(LOW,HIGH)', uniform(LOW,HIGH), int(LOW,HIGH) "
        "or choice(A,B,...)."
    )


def _is_integer(field: FieldInfo | None) -> bool:
    """True if a setting takes integers, but no other numbers."""
    kinds = set() if field is None else set(alternatives(field.annotation))
    return int in kinds and float not in kinds


def _values(kinds: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns all values of a setting that takes few, as text; none for others."""
    found: list[str] = []
    for kind in kinds:
        if kind is bool:
            found += ["false", "true"]
        elif kind is type(None):
            found.append("null")
        elif typing.get_origin(kind) is Literal:
            found += [format_value(value) for value in typing.get_args(kind)]
        elif kind is not str:  # text, such as a class of the user, is not searched
            return ()
    return tuple(found) if len(found) > 1 else ()


def _bounds(field: FieldInfo | None) -> tuple[float, float]:
    """Returns the bounds that a setting may have itself; infinite where it has none or excludes them."""
    low, high = -math.inf, math.inf
    for part in field.metadata if field is not None else ():
        low = float(part.ge) if isinstance(part, annotated_types.Ge) else low  # type: ignore[arg-type]
        high = float(part.le) if isinstance(part, annotated_types.Le) else high  # type: ignore[arg-type]
    return low, high

"""Ranges in which settings are searched that the user gives no range for."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import Any, Literal

import annotated_types
from pydantic.fields import FieldInfo

from coterie.commands.tuning.dimensions import Choices, Dimension, NumberRange
from coterie.config.messages import alternatives, format_value
from coterie.core.errors import UserError

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

_HIDDEN_SIZES = ("[64,64]", "[128,128]", "[256,256]")

DEFAULT_KEYS = (
    *("lr", "gamma", "gae_lambda", "td_lambda", "entropy_coef", "clip_eps", "epochs", "tau", "batch_size", "n_step"),
    "temperature",
)
"""Settings of an algorithm that are searched if the user names none, as far as it has them."""

_MAX_INTEGERS = 1000
"""Integers in the widest interval that is searched without an entry of `RANGES`."""


def own_range(key: str, field: FieldInfo | None) -> Dimension:
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
        return NumberRange(key, low, high, log=log, integer=is_integer(field))
    if ".algo." in f".{key}" and name in {"hidden_sizes", "critic_hidden_sizes"}:
        return Choices(key, _HIDDEN_SIZES)
    if values := _values(kinds):
        return Choices(key, values)
    low, high = _bounds(field)
    if set(kinds) == {int} and high - low < _MAX_INTEGERS:
        return NumberRange(key, low, high, integer=True)
    if set(kinds) == {float} and math.isfinite(high - low):
        return NumberRange(key, low, high)
    raise UserError(
        f"{key}: has no range of its own to search. Give one: '{key}=log(LOW,HIGH)', uniform(LOW,HIGH), int(LOW,HIGH) "
        "or choice(A,B,...)."
    )


def default_space(fields: Mapping[str, FieldInfo], values: Mapping[str, Any], given: set[str]) -> dict[str, Dimension]:
    """Returns the ranges of the algorithm's settings that are searched if the user names none.

    Args:
        fields: Fields by dotted key.
        values: Values of all settings by dotted key. Those that are off, null or zero, are not searched.
        given: Keys that the user has set, which are not searched.
    """
    keys = [f"algo.{name}" for name in DEFAULT_KEYS]
    wanted = [key for key in keys if key in fields and values.get(key) and key not in given]
    return {key: own_range(key, fields[key]) for key in wanted}


def is_integer(field: FieldInfo | None) -> bool:
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
        else:
            return ()
    return tuple(found) if len(found) > 1 else ()


def _bounds(field: FieldInfo | None) -> tuple[float, float]:
    """Returns the bounds that a setting may have itself; infinite where it has none or excludes them."""
    low, high = -math.inf, math.inf
    for part in field.metadata if field is not None else ():
        low = float(part.ge) if isinstance(part, annotated_types.Ge) else low  # type: ignore[arg-type]
        high = float(part.le) if isinstance(part, annotated_types.Le) else high  # type: ignore[arg-type]
    return low, high

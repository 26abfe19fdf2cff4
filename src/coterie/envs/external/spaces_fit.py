"""Observations that do not fit their space: what differs, in the words of training and of `coterie check-env`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.envs.external.spaces import is_image

Problem = tuple[str, str]
"""A violated rule of `coterie check-env`, and a message."""

FIXES = {
    "observation-type": "Return what the space describes: an array for a Box, an integer for Discrete.",
    "observation-keys": "Return exactly the entries that the space names.",
    "observation-shape": "Return arrays of the space's shape, or change the shape of the space.",
    "observation-range": "Widen the bounds of the observation space, or clip observations to them.",
}
"""Fix for each violation that an observation cannot be converted with."""

_TOLERANCE = 1e-5  # relative and absolute, for rounding


def observation_problems(space: spaces.Space, value: Any, name: str = "the observation") -> Iterator[Problem]:
    """Yields the differences between an observation and its space."""
    if isinstance(space, spaces.Dict):
        yield from _dict_problems(space, value, name)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
            yield "observation-keys", f"{name} is a {type(value).__name__}{size}, expected {len(space.spaces)} parts"
            return
        for i, (part, entry) in enumerate(zip(space.spaces, value, strict=True)):
            yield from observation_problems(part, entry, f"{name}[{i}]")
    else:
        yield from (
            _box_problems(space, value, name)
            if isinstance(space, spaces.Box)
            else _integer_problems(space, value, name)
        )
        if isinstance(value, list | tuple):
            yield "observation-list", f"{name} is a {type(value).__name__}, expected an array"


UNLIKE = (UserError, KeyError, IndexError, TypeError, ValueError, AttributeError)
"""Exceptions of the conversion of an observation that is unlike its space."""


@final
class KeyCheck:
    """Checks that the dictionaries of an observation have the entries of their spaces."""

    def __init__(self, keys: list[tuple[tuple[Any, ...], frozenset[Any]]]):
        self._keys = keys

    @classmethod
    def of(cls, space: spaces.Space) -> KeyCheck | None:
        """Returns the check for a space, None for a space without dictionaries."""
        keys = list(_dict_keys(space, ()))
        return cls(keys) if keys else None

    def __call__(self, value: Any) -> None:
        """Raises KeyError for missing and surplus entries."""
        for path, keys in self._keys:
            part = value
            for key in path:
                part = part[key]
            if part.keys() != keys:
                raise KeyError(path)


def _dict_keys(space: spaces.Space, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], frozenset[Any]]]:
    parts = space.spaces if isinstance(space, spaces.Dict | spaces.Tuple) else ()
    if isinstance(parts, Mapping):
        yield path, frozenset(parts)
    for key, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts):
        yield from _dict_keys(part, (*path, key))


def misfit(space: spaces.Space, value: Any, error: Exception, prefix: str = "") -> Exception:
    """Returns the error for an observation that could not be converted: a UserError that names the part.

    Args:
        space: Space of the observation.
        value: The observation.
        error: Exception of the conversion, returned if the observation agrees with its space.
        prefix: Beginning of the message, such as "agent 'a_0': ".
    """
    rules = ("observation-type", "observation-keys") if isinstance(error, UserError) else FIXES
    for rule, message in observation_problems(space, value):
        if rule in rules:
            return UserError(f"{prefix}{message}. {FIXES[rule]}")
    return UserError(f"{prefix}{error}") if prefix and isinstance(error, UserError) else error


def _dict_problems(space: spaces.Dict, value: Any, name: str) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield "observation-type", f"{name} is a {type(value).__name__}, expected a dict with {list(space.spaces)}"
        return
    yield from key_problems(space, value, name)
    for key, part in space.spaces.items():
        if key in value:
            yield from observation_problems(part, value[key], f"{name}['{key}']")


def key_problems(space: spaces.Dict, value: Mapping[Any, Any], name: str = "the observation") -> Iterator[Problem]:
    """Yields the missing and surplus entries of a dictionary."""
    missing, surplus = space.spaces.keys() - value.keys(), value.keys() - space.spaces.keys()
    if missing or surplus:
        lacks = f"lacks {sorted(map(str, missing))}" if missing else ""
        has = f"has undeclared {sorted(map(str, surplus))}" if surplus else ""
        problem = " and ".join(filter(None, (lacks, has)))
        yield "observation-keys", f"{name} {problem}; its space names {list(space.spaces)}"


def _box_problems(space: spaces.Box, value: Any, name: str) -> Iterator[Problem]:
    array = as_array(value)
    if array is None:
        is_array = isinstance(value, list | tuple | np.ndarray)
        found = _short_repr(value) if is_array else f"a {type(value).__name__}"
        yield "observation-type", f"{name} is {found}, expected an array of {list(space.shape)} numbers"
        return
    if array.shape != space.shape:
        if len(space.shape) == 1 or not array.size == math.prod(space.shape) == 1:
            yield "observation-shape", f"{name} has the shape {list(array.shape)}, expected {list(space.shape)}"
            return
        array = array.reshape(space.shape)
    if array.dtype.kind == "f" and is_image(space) and (array != np.floor(array)).any():
        problem = f"{name} is {array.dtype}, but its space is {space.dtype}: fractions are lost"
        yield "observation-dtype", f"{problem} (values from {array.min():.4g} to {array.max():.4g})"
        return
    if array.dtype != space.dtype and isinstance(value, np.ndarray):
        yield "observation-precision", f"{name} is {array.dtype}, but its space is {space.dtype}"
    finite = np.isfinite(array)
    if not finite.all():
        yield "observation-finite", f"{name} contains NaN or infinity"
        array = array[finite]
    low, high = (bound if finite.all() else bound[finite] for bound in (space.low, space.high))
    tolerance = _TOLERANCE * (1 + np.abs(array.astype(np.float64)))
    out = (array < low - tolerance) | (array > high + tolerance)
    if out.any():
        values = array[out]
        yield (
            "observation-range",
            f"{name} has values from {values.min():.4g} to {values.max():.4g}, outside of {space}",
        )


def _integer_problems(space: spaces.Space, value: Any, name: str) -> Iterator[Problem]:
    """Problems of Discrete, MultiDiscrete and MultiBinary."""
    array, shape = as_array(value), space.shape or ()
    if array is None or not (array == np.floor(array)).all():
        yield "observation-type", f"{name} is {_short_repr(value)}, expected integers of {space}"
    elif array.shape != shape and not array.size == math.prod(shape) == 1:
        yield "observation-shape", f"{name} has the shape {list(array.shape)}, expected {list(shape)}"
    elif not _in_bounds(space, array):
        yield "observation-range", f"{name} is {_short_repr(value)}, outside of {space}"


def _in_bounds(space: spaces.Space, array: np.ndarray) -> bool:
    if isinstance(space, spaces.Discrete):
        return bool(((array >= space.start) & (array < space.start + space.n)).all())
    if isinstance(space, spaces.MultiDiscrete):
        return bool(((array >= space.start) & (array < space.start + space.nvec)).all())
    return bool(((array == 0) | (array == 1)).all())


def as_array(value: Any) -> np.ndarray | None:
    """Returns the value as a numeric array, None if it is not numeric."""
    try:
        array = np.asarray(value)
    except Exception:  # the value of a foreign class may raise anything
        return None
    return array if array.dtype.kind in "biuf" else None


def _short_repr(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."

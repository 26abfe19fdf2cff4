"""Whether spaces can be used, and what is observed lies in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.envs.adapters.spaces import Observer
from coterie.types import ActionSpec

Misfit = tuple[str, str]
"""A rule, and what was seen."""

_SLACK = 1e-5  # of rounding, beside the number's own size


def useless(observes: Any, acts: Any) -> Iterator[Misfit]:
    """What keeps two spaces from being used."""
    for what, space in (("observation_space", observes), ("action_space", acts)):
        if not isinstance(space, spaces.Space):
            kind = type(space)
            of = f" of {kind.__module__.partition('.')[0]}" if kind.__module__ != "builtins" else ""
            yield "space-kind", f"{what} is a {kind.__name__}{of}, expected a space of gymnasium"
            return
    try:
        Observer(observes)
    except TypeError as error:
        yield "space-kind", str(error)
    try:
        if min(ActionSpec.of(acts).choices, default=1) < 1:
            yield "space-kind", f"the action space {acts} leaves nothing to choose"
    except TypeError as error:
        yield "space-kind", str(error)


def misfits(space: spaces.Space, value: Any, name: str = "the observation") -> Iterator[Misfit]:
    """How a value differs from what the space describes."""
    if isinstance(space, spaces.Dict):
        yield from _dict(space, value, name)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
            yield "observation-keys", f"{name} is a {type(value).__name__}{size}, expected {len(space.spaces)} parts"
            return
        for i, (part, own) in enumerate(zip(space.spaces, value, strict=True)):
            yield from misfits(part, own, f"{name}[{i}]")
    else:
        yield from _numbers(space, value, name) if isinstance(space, spaces.Box) else _whole(space, value, name)
        if isinstance(value, list | tuple):
            yield "observation-list", f"{name} is a {type(value).__name__}, expected an array"


def _dict(space: spaces.Dict, value: Any, name: str) -> Iterator[Misfit]:
    if not isinstance(value, Mapping):
        yield "observation-kind", f"{name} is a {type(value).__name__}, expected a dict with {list(space.spaces)}"
        return
    lacks, more = space.spaces.keys() - value.keys(), value.keys() - space.spaces.keys()
    if lacks or more:
        said = f"lacks {sorted(map(str, lacks))}" if lacks else f"has undeclared {sorted(map(str, more))}"
        yield "observation-keys", f"{name} {said}; its space names {list(space.spaces)}"
    for key, part in space.spaces.items():
        if key in value:
            yield from misfits(part, value[key], f"{name}['{key}']")


def _numbers(space: spaces.Box, value: Any, name: str) -> Iterator[Misfit]:
    array = _array(value)
    if array is None:
        yield "observation-kind", f"{name} is a {type(value).__name__}, expected an array of {list(space.shape)}"
        return
    if array.shape != space.shape:
        yield "observation-shape", f"{name} has the shape {list(array.shape)}, expected {list(space.shape)}"
        return
    if array.dtype.kind == "f" and space.dtype is not None and space.dtype.kind in "iu":
        said = f"{name} is {array.dtype}, and its space is {space.dtype}: fractions are lost"
        yield "observation-dtype", f"{said} (values from {array.min():.4g} to {array.max():.4g})"
        return
    if array.dtype != space.dtype and isinstance(value, np.ndarray):
        yield "observation-precision", f"{name} is {array.dtype}, and its space is {space.dtype}"
    finite = np.isfinite(array)
    if not finite.all():
        yield "observation-finite", f"{name} holds NaN or infinity"
        array = array[finite]
    low, high = (bound if finite.all() else bound[finite] for bound in (space.low, space.high))
    slack = _SLACK * (1 + np.abs(array.astype(np.float64)))
    out = (array < low - slack) | (array > high + slack)
    if out.any():
        worst = array[out]
        yield (
            "observation-range",
            f"{name} holds values from {worst.min():.4g} to {worst.max():.4g}, outside of {space}",
        )


def _whole(space: spaces.Space, value: Any, name: str) -> Iterator[Misfit]:
    """Discrete, MultiDiscrete and MultiBinary."""
    array, shape = _array(value), space.shape or ()
    if array is None or array.dtype.kind not in "biu":
        yield "observation-kind", f"{name} is {_shown(value)}, expected whole numbers of {space}"
    elif array.shape != shape:
        yield "observation-shape", f"{name} has the shape {list(array.shape)}, expected {list(shape)}"
    elif not _within(space, array):
        yield "observation-range", f"{name} is {_shown(value)}, outside of {space}"


def _within(space: spaces.Space, array: np.ndarray) -> bool:
    if isinstance(space, spaces.Discrete):
        return bool(space.start <= array < space.start + space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return bool(((array >= space.start) & (array < space.start + space.nvec)).all())
    return bool(((array == 0) | (array == 1)).all())


def _array(value: Any) -> np.ndarray | None:
    """The value as numbers; None if it is none."""
    try:
        array = np.asarray(value)
    except Exception:  # whatever a value of others raises on being read
        return None
    return array if array.dtype.kind in "biuf" else None


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def flag(value: Any) -> bool | None:
    """An end as a bool; None if it is none."""
    array = _array(value)
    return bool(array) if array is not None and array.ndim == 0 and array.dtype.kind in "biu" else None


def number(value: Any) -> float | None:
    """A reward as a float; None if it is none."""
    array = _array(value)
    return float(array) if array is not None and array.ndim == 0 else None


def same(one: Any, other: Any) -> bool:
    """Whether two observations (or actions, or nests of them) hold the same numbers."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    a, b = _array(one), _array(other)
    if a is None or b is None:
        return type(one) is type(other)
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())

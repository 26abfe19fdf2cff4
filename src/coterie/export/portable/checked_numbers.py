"""Numbers from outside: Python lists, JSON and arrays, which may hold anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from coterie.export.portable.policy_files import PolicyError


def checked_numbers(
    value: Any, shape: tuple[int, ...], what: str, *, dtype: str = "float32", booleans: bool = False
) -> np.ndarray:
    """Returns numbers as an array of float32.

    Args:
        value: An array, a number, or nested lists of numbers.
        shape: Shape that it must have.
        what: What it is, for messages.
        dtype: `uint8` for integers from 0 to 255, otherwise `float32`.
        booleans: Accept booleans as 0 and 1.

    Raises:
        PolicyError: For anything but numbers, for another shape, and for numbers that the type does not have, with the
            first wrong value.
    """
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # such as lists of several lengths
        given = np.asarray(None)
    if given.dtype.kind not in "fiub" or (not booleans and _has_booleans(value)):
        raise PolicyError(f"{what} {_first_mistake(value, booleans)}. Pass numbers of shape {list(shape)}.")
    if given.shape != shape:
        raise PolicyError(f"{what} has shape {list(given.shape)}, expected {list(shape)}")
    with np.errstate(over="ignore"):
        array = given.astype(np.float32)
    if dtype == "uint8" and given.dtype != np.uint8:
        wrong = ~((array >= 0) & (array <= 255) & (array == np.floor(array)))
        expected = "integers from 0 to 255, as images of uint8 have"
    else:
        wrong, expected = ~np.isfinite(array), "finite numbers of float32"
    if wrong.any():
        index = np.argwhere(wrong)[0].tolist()
        raise PolicyError(f"{what} {_shown(given[tuple(index)].item(), index)}, expected {expected}")
    return array


def axes_of(value: Any) -> int:
    """Returns the number of axes of an array or of nested lists, in which the first entries count."""
    axes = 0
    while isinstance(value, (list, tuple)):
        axes, value = axes + 1, value[0] if value else None
    return axes + getattr(value, "ndim", 0)


def _has_booleans(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_booleans, value))
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _first_mistake(value: Any, booleans: bool) -> str:
    """Describes the first entry that is no number, or the shape if all are."""
    for index, entry in _entries(value, []):
        if isinstance(entry, bool):
            if not booleans:
                return _shown(entry, index)
        elif not isinstance(entry, (int, float)):
            return _shown(entry, index)
        elif isinstance(entry, int) and not -(2**63) <= entry < 2**64:
            return f"{_shown(entry, index)}, which has more than 64 bits"
    return "is an array of objects" if isinstance(value, np.ndarray) else "has lists of several lengths"


def _entries(value: Any, index: list[int]) -> Iterator[tuple[list[int], Any]]:
    """Yields index and value of all entries of nested lists and arrays."""
    if not isinstance(value, (list, tuple)) and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from _entries(part, [*index, i])
    else:
        yield index, value


def _shown(value: Any, index: list[int]) -> str:
    """Such as `holds nan at index [3]`. Huge integers have no decimal digits in Python."""
    text = hex(value) if isinstance(value, int) and abs(value) >= 2**64 else repr(value)
    text = " ".join((text if len(text) <= 60 else f"{text[:57]}...").split())
    return f"holds {text} at index {index}" if index else f"is {text}"

"""Conversion of an observation to an array of numbers: one for training, players and exports.

A part of an observation is described by an entry that JSON can hold:

    {"kind": "box", "shape": [2, 3], "dtype": "float64"}
    {"kind": "discrete", "n": 4, "start": 1}
    {"kind": "multi_discrete", "nvec": [2, 3], "start": [0, 0], "shape": [2]}
    {"kind": "multi_binary", "shape": [2, 2]}
    {"kind": "tuple", "parts": [...]}

Discrete values are one-hot encoded, arrays are flattened, and the parts of a tuple are concatenated. Images, uint8 of
two or three axes, keep their axes: [H, W] becomes [H, W, 1].

Players also do what the wrappers of the environment did in training: `gray`, `resized` and `stacked`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Entry = dict[str, Any]

Write = Callable[[np.ndarray, Any], None]
"""Writes an observation into an array of its sensor's shape. Raises `Mismatch` for one that is not in its space."""


class Mismatch(ValueError):
    """An observation that is not in its space.

    Args:
        shown: The observation, such as `the number 3`.
        expected: Values that the space declares.
    """

    def __init__(self, shown: str, expected: str):
        self.shown, self.expected = shown, expected
        super().__init__(f"{shown}, expected {expected}")


def is_image_entry(space: Entry) -> bool:
    """True for images, uint8 of two or three axes."""
    return space["kind"] == "box" and space["dtype"] == "uint8" and len(space["shape"]) in (2, 3)


def encoded_size(space: Entry) -> int:
    """Returns the number of elements of the array that an observation is converted to."""
    kind = space["kind"]
    if kind == "discrete":
        return space["n"]
    if kind == "multi_discrete":
        return sum(space["nvec"])
    return sum(map(encoded_size, space["parts"])) if kind == "tuple" else math.prod(space["shape"])


def writer(space: Entry) -> Write:
    """Returns the conversion of observations of a space."""
    kind, shape = space["kind"], tuple(space.get("shape", ()))
    if kind == "box":
        if is_image_entry(space):
            return _copy if len(shape) == 3 else lambda place, value: _copy(place[..., 0], value)
        return _copy if len(shape) == 1 else _flat(shape)
    if kind == "discrete":
        return _one_hot(space["start"])
    if kind == "multi_discrete":
        write = _one_hots(np.array(space["nvec"], np.int64), np.array(space["start"], np.int64))
        return write if len(shape) == 1 else _shaped(write, shape)
    if kind == "multi_binary":
        return _binary(shape)
    return _side_by_side(space["parts"])


def _copy(place: np.ndarray, value: Any) -> None:
    # NumPy would broadcast a single number.
    if getattr(value, "shape", None) != place.shape and np.shape(value) != place.shape:
        raise Mismatch(f"shape {np.shape(value)}", f"{place.shape}")
    _assign(place, value)


def _flat(shape: tuple[int, ...]) -> Write:
    return _shaped(lambda place, value: _assign(place, np.ravel(value)), shape)


def _shaped(write: Write, shape: tuple[int, ...]) -> Write:
    """Refuses values of another shape. A single number may have any."""

    def write_shaped(place: np.ndarray, value: Any) -> None:
        found = getattr(value, "shape", None)
        if found != shape and np.shape(value) != shape and not np.size(value) == math.prod(shape) == 1:
            raise Mismatch(f"shape {np.shape(value)}", f"{shape}")
        write(place, value)

    return write_shaped


def _assign(place: np.ndarray, value: Any) -> None:
    """Writes numbers of the same shape; NumPy would convert texts, and lose fractions of images."""
    dtype = getattr(value, "dtype", None)
    if dtype == place.dtype:
        place[...] = value
        return
    place[...] = numeric(value, place.dtype)


def numeric(value: Any, dtype: np.dtype) -> np.ndarray:
    """Returns real numbers as an array that can be assigned to one of `dtype`, uint8 or a floating-point type.

    Raises:
        Mismatch: For other values, and for numbers that are no uint8.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise Mismatch(f"the value {shortened(value)} of type {array.dtype}", "numbers")
    if dtype == np.uint8 and array.dtype.kind != "b":
        wrong = ~((array >= 0) & (array <= 255) & (array == np.floor(array)))
        if wrong.any():
            raise Mismatch(f"the number {array[wrong].flat[0]} of type {array.dtype}", "integers 0 to 255 (uint8)")
    return array


def shortened(value: Any) -> str:
    """Returns a value as text of at most 60 characters, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _one_hot(start: int) -> Write:
    def write(place: np.ndarray, value: Any) -> None:
        place[...] = 0
        number = value.item() if getattr(value, "shape", None) in ((), (1,)) else value
        try:
            k = int(number)
        except (TypeError, ValueError, OverflowError):
            k = None
        stop = start + len(place)
        if k is None or k != number or not start <= k < stop:
            raise Mismatch(f"the value {shortened(number)}", f"integers {start} to {stop - 1}")
        place[k - start] = 1

    return write


def _one_hots(sizes: np.ndarray, starts: np.ndarray) -> Write:
    offsets = np.cumsum(sizes) - sizes

    def write(place: np.ndarray, value: Any) -> None:
        place[...] = 0
        place[offsets + codes(np.ravel(value), sizes, starts)] = 1

    return write


def codes(picks: np.ndarray, sizes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns discrete values [.., K] as indices from 0 on.

    Raises:
        Mismatch: For another number of values, and for values that are not integers from `starts` on.
    """
    if picks.shape[-1:] == sizes.shape and picks.dtype.kind == "i":
        indices = picks - starts
        if not ((indices < 0) | (indices >= sizes)).any():
            return indices
    if picks.shape[-1:] != sizes.shape:
        raise Mismatch(f"{picks.shape[-1] if picks.ndim else 1} discrete values", f"{len(sizes)}")
    if picks.dtype.kind not in "fiub":
        raise Mismatch(f"the value {shortened(picks.tolist())}", "integers")
    wrong = ~((picks >= starts) & (picks < starts + sizes))
    if picks.dtype.kind == "f":
        wrong |= picks != np.floor(picks)
    if wrong.any():
        *_, k = at = np.argwhere(wrong)[0]
        shown = f"the value {picks[tuple(at)]} at index {k}"
        raise Mismatch(shown, f"integers {starts[k]} to {starts[k] + sizes[k] - 1} there")
    return (picks - starts).astype(np.int64)


def _binary(shape: tuple[int, ...]) -> Write:
    flat = _flat(shape)

    def write(place: np.ndarray, value: Any) -> None:
        flat(place, value)
        require_binary(place)

    return write


def require_binary(values: np.ndarray) -> None:
    """Raises Mismatch unless all values are 0 or 1."""
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        raise Mismatch(f"the number {values[wrong].flat[0]:g}", "0 or 1")


def _side_by_side(parts: list[Entry]) -> Write:
    leaves = [writer(part) for part in parts]
    stops = np.cumsum([encoded_size(part) for part in parts]).tolist()
    places = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]

    def write(place: np.ndarray, value: Any) -> None:
        if not isinstance(value, tuple | list | np.ndarray) or len(value) != len(leaves):
            raise Mismatch(f"the value {shortened(value)}", f"a tuple of {len(leaves)} parts")
        for one, where, part in zip(leaves, places, value, strict=True):
            one(place[where], part)

    return write


def gray(image: np.ndarray) -> np.ndarray:
    """Returns an image [H, W, 3] of 0 to 255 as one of brightness [H, W, 1] int64, as Pillow does."""
    return ((image.astype(np.int64) @ np.array([19595, 38470, 7471]) + (1 << 15)) >> 16)[..., None]


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns an image [H, W, C] of 0 to 255 in another size [H', W', C] int64, as Pillow does.

    A pixel is the mean of those whose centers it covers, or the nearest one. It is rounded once if both sides are
    divided by integers, otherwise first along the width, and then along the height.
    """
    image = image.astype(np.int64)
    height, width = size
    (rows, more), (columns, others) = divmod(image.shape[0], height), divmod(image.shape[1], width)
    if image.shape[:2] == size:
        return image
    if not more and not others:
        count = rows * columns
        sums = image.reshape(height, rows, width, columns, -1).sum((1, 3))
        return ((sums + count // 2) * int(np.float32(2**32) / np.float32(256 * count))) >> 24
    return _averaged(_averaged(image.swapaxes(0, 1), width).swapaxes(0, 1), height)


def _averaged(image: np.ndarray, size: int) -> np.ndarray:
    """Resizes the first axis, in the floating-point arithmetic of Pillow."""
    if len(image) == size:
        return image
    scale = len(image) / size
    centers, old = ((np.arange(size) + 0.5) * scale)[:, None], np.arange(len(image))
    width = max(scale, 1.0)
    offset = (old - centers + 0.5) * (1 / width)
    first, after = ((centers + side * width / 2 + 0.5).astype(np.int64) for side in (-1, 1))
    covered = (offset > -0.5) & (offset <= 0.5) & (old >= first) & (old < after)
    starts, counts = covered.argmax(1), covered.sum(1)
    sums = np.concatenate([np.zeros_like(image[:1]), image.cumsum(0)])
    weights = (0.5 + (1 << 22) / counts).astype(np.int64)
    found = ((sums[starts + counts] - sums[starts]) * weights[:, None, None] + (1 << 21)) >> 22
    return np.minimum(found, 255)


def stacked(frame: np.ndarray, before: np.ndarray | None, frames: int) -> np.ndarray:
    """Returns the latest frames along the last axis, oldest first.

    Args:
        frame: The latest one.
        before: The latest frames before it; None if it is the first, which is repeated.
        frames: Their number.
    """
    return np.concatenate([frame] * frames if before is None else [before[..., frame.shape[-1] :], frame], -1)

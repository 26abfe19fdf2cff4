"""Conversion of native observations to arrays of fixed shape, and of actions to native ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec

Arrays = dict[str, np.ndarray]
"""Observations of a role by sensor [n, ...]; a single sensor has the empty name."""

_Write = Callable[[np.ndarray, Any], None]


@dataclass(frozen=True)
class Sensor:
    """One array of an observation: its Box and a function that writes a native value into it."""

    name: str
    space: spaces.Box
    write: _Write


class Observer:
    """Converts native observations of one agent to arrays of float32 [D], or uint8 [H, W, C] for images.

    Discrete values are one-hot encoded, multi-dimensional arrays are flattened, the parts of a Tuple are concatenated
    unless one is an image. Each part of a Dict (or of a Tuple with images) is a separate sensor, named `outer.inner` if
    nested.

    Raises:
        TypeError: For spaces without a fixed shape.
    """

    def __init__(self, space: spaces.Space):
        self.sensors = tuple(_sensors(space))
        self.space: spaces.Space = (
            spaces.Dict({sensor.name: sensor.space for sensor in self.sensors})
            if self.sensors[0].name
            else self.sensors[0].space
        )


def _sensors(space: spaces.Space, name: str = "", get: Callable[[Any], Any] | None = None) -> list[Sensor]:
    """Leaves of a space; `get` extracts the part `name` from a complete observation."""
    parts = parts_of(space)
    if not parts:
        shown, write = _leaf(space)
        if get is not None:
            write = _within(write, get)
        return [Sensor(name, shown, write)]
    found = []
    for key, part in parts.items():
        inner = (lambda value, key=key: value[key]) if get is None else lambda value, key=key: get(value)[key]
        found += _sensors(part, f"{name}.{key}" if name else str(key), inner)
    return found


def parts_of(space: spaces.Space) -> Mapping[Any, spaces.Space]:
    """Parts of a space that are separate sensors; empty if the space is a single sensor."""
    if isinstance(space, spaces.Dict):
        return space.spaces
    if isinstance(space, spaces.Tuple) and any(_separate_sensor(part) for part in space.spaces):
        return dict(enumerate(space.spaces))
    return {}


def _within(write: _Write, get: Callable[[Any], Any]) -> _Write:
    return lambda place, value: write(place, get(value))


def _separate_sensor(space: spaces.Space) -> bool:
    return (
        isinstance(space, spaces.Dict)
        or _is_image(space)
        or (isinstance(space, spaces.Tuple) and any(_separate_sensor(part) for part in space.spaces))
    )


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def _leaf(space: spaces.Space) -> tuple[spaces.Box, _Write]:
    """Box and writer of a space without named parts."""
    if isinstance(space, spaces.Box) and _is_image(space):
        shape = space.shape if len(space.shape) == 3 else (*space.shape, 1)
        shown = spaces.Box(space.low.reshape(shape), space.high.reshape(shape), dtype=np.uint8)
        return shown, _copy if len(space.shape) == 3 else lambda place, value: _copy(place[..., 0], value)
    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):  # bounds beyond float32 are infinite
            low, high = (bound.astype(np.float32).reshape(-1) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32), _copy if len(space.shape) == 1 else _flat
    if isinstance(space, spaces.Discrete):
        return _zero_one(int(space.n)), _one_hot(int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1)
        return _zero_one(int(sizes.sum())), _one_hots(np.cumsum(sizes) - sizes - space.start.reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        return _zero_one(int(np.prod(space.shape))), _flat
    if isinstance(space, spaces.Tuple) and space.spaces:
        leaves = [_leaf(part) for part in space.spaces]
        low, high = (np.concatenate([getattr(box, side) for box, _ in leaves]) for side in ("low", "high"))
        return spaces.Box(low, high, dtype=np.float32), _side_by_side(leaves)
    raise TypeError(
        f"the observation space {space} has no fixed shape. Use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict "
        "or Tuple of these."
    )


def _zero_one(size: int) -> spaces.Box:
    return spaces.Box(0, 1, (size,), np.float32)


def _copy(place: np.ndarray, value: Any) -> None:
    # NumPy would broadcast a single number.
    if getattr(value, "shape", None) != place.shape and np.shape(value) != place.shape:
        raise unlike(f"shape {np.shape(value)}", f"{place.shape}")
    place[...] = value


def _flat(place: np.ndarray, value: Any) -> None:
    numbers = np.ravel(value)
    if numbers.shape != place.shape:
        raise unlike(f"{numbers.size} numbers", f"{place.size}")
    place[...] = numbers


def unlike(shown: str, expected: str) -> UserError:
    """Error for an observation outside of its space."""
    return UserError(
        f"the environment returned an observation of {shown}, but its space declares {expected}. "
        "Fix observation_space or the observation."
    )


def _one_hot(start: int) -> _Write:
    def write(place: np.ndarray, value: Any) -> None:
        place[...] = 0
        k = int(value) - start
        if not 0 <= k < len(place):
            raise unlike(f"the number {value}", f"{start} to {start + len(place) - 1}")
        place[k] = 1

    return write


def _one_hots(offsets: np.ndarray) -> _Write:
    def write(place: np.ndarray, value: Any) -> None:
        place[...] = 0
        place[np.ravel(value) + offsets] = 1

    return write


def _side_by_side(leaves: list[tuple[spaces.Box, _Write]]) -> _Write:
    stops = np.cumsum([box.shape[0] for box, _ in leaves]).tolist()
    places = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]

    def write(place: np.ndarray, value: Any) -> None:
        for (_, one), where, part in zip(leaves, places, value, strict=True):
            one(place[where], part)

    return write


class Actuator:
    """Converts actions to those of an agent's own space. TypeError for unsupported spaces."""

    def __init__(self, space: spaces.Space):
        self.spec = ActionSpec.of(space)
        self._native = _native(space)
        self._low = np.array(self.spec.low, np.float32)
        self._half = (np.array(self.spec.high, np.float32) - self._low) / 2

    def __call__(self, discrete: np.ndarray | None, continuous: np.ndarray | None) -> list[Any]:
        """Returns n native actions for discrete [n, K] and continuous [n, C] components (None if absent).

        Types are those of `space.sample()`: a NumPy integer (Discrete), an array within the bounds (MultiDiscrete,
        Box), or a tuple of these.
        """
        picks = _NOTHING if discrete is None else discrete
        return self._native(picks, _NOTHING if continuous is None else self._to_bounds(continuous))

    def _to_bounds(self, continuous: np.ndarray) -> np.ndarray:
        """Bit-identical to `coterie.core.specs.to_bounds`, without the overhead of small tensors."""
        numbers = np.maximum(continuous, -1)
        np.minimum(numbers, 1, out=numbers)
        numbers += 1
        numbers *= self._half
        numbers += self._low
        return numbers


_Native = Callable[[np.ndarray, np.ndarray], list[Any]]
_NOTHING = np.zeros((0, 0))


def _native(space: spaces.Space) -> _Native:
    """Function that converts components [n, K] and bounded values [n, C] to n actions of `space`."""
    if isinstance(space, spaces.Tuple):
        return _tuples(space)
    if isinstance(space, spaces.Box):
        low, high, dtype = space.low, space.high, space.dtype
        if dtype == np.float32 and (low + (high - low) / 2 * 2 <= high).all():
            return lambda _, numbers: list(numbers)
        # Rounding may have exceeded the bounds.
        return lambda _, numbers: list(np.minimum(np.maximum(numbers.astype(dtype), low), high))
    if isinstance(space, spaces.Discrete):
        return lambda picks, _: list((picks[:, 0] + space.start).astype(space.dtype))
    assert isinstance(space, spaces.MultiDiscrete)
    return lambda picks, _: list(space.start + picks.astype(space.dtype))


def _tuples(space: spaces.Tuple) -> _Native:
    parts: list[tuple[_Native, slice, slice]] = []
    k = c = 0
    for part in space.spaces:
        spec = ActionSpec.of(part)
        parts.append((_native(part), slice(k, k + len(spec.choices)), slice(c, c + spec.continuous)))
        k, c = k + len(spec.choices), c + spec.continuous
    return lambda picks, numbers: list(zip(*(one(picks[:, i], numbers[:, j]) for one, i, j in parts), strict=True))

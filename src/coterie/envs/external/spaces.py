"""Conversion of native observations to arrays of fixed shape, and of actions to native ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.observations import Entry, Mismatch, Write, shortened, writer
from coterie.core.specs import ActionSpec, NativeSensor, leaf_specs

Arrays = dict[str, np.ndarray]
"""Observations of a role by sensor [n, ...]; a single sensor has the empty name."""


class ObservationError(UserError):
    """An observation that is not in its space.

    Args:
        shown: The observation, such as `the number 3`.
        expected: Values that the space declares.
        place: Sensor, agent or environment, such as ` of the sensor 'camera'`.
    """

    def __init__(self, shown: str, expected: str, place: str = ""):
        super().__init__(
            f"the environment returned an observation{place} with {shown}, but its space declares {expected}. "
            "Fix observation_space or the observation."
        )


@dataclass(frozen=True)
class Sensor:
    """One array of an observation: its Box and a function that writes a native value into it.

    The function raises an ObservationError for values that are not in the native space.
    """

    name: str
    space: spaces.Box
    write: Write


class Observer:
    """Converts native observations of one agent to arrays of float32 [D], or uint8 [H, W, C] for images.

    Discrete values are one-hot encoded, multi-dimensional arrays are flattened, the parts of a Tuple are concatenated
    unless one is an image. Each part of a Dict (or of a Tuple with images) is a separate sensor, named `outer.inner` if
    nested.

    Attributes:
        sensors: The arrays.
        native: Places and spaces of the same sensors in a native observation.
        space: Space of the arrays: a Box, or a Dict of them by the name of the sensor.

    Raises:
        TypeError: For spaces without a fixed shape.
    """

    def __init__(self, space: spaces.Space):
        parts = sensor_parts(space)
        self.sensors = tuple(_sensor(*part) for part in parts)
        self.native = tuple(NativeSensor(path.name, path.keys, leaf) for path, leaf in parts)
        self.space: spaces.Space = (
            spaces.Dict({sensor.name: sensor.space for sensor in self.sensors})
            if parts_of(space)
            else self.sensors[0].space
        )


@dataclass(frozen=True)
class PartPath:
    """Place of a sensor in an observation.

    Attributes:
        name: Name of the sensor; empty if it is the whole observation.
        keys: Keys that lead to it.
        parts: Keys of the Dict or Tuple at each of these places.
    """

    name: str
    keys: tuple[Any, ...]
    parts: tuple[tuple[Any, ...], ...]

    def extract(self, value: Any) -> Any:
        """Returns the sensor's part of an observation. Mismatch if there is none."""
        for key, parts in zip(self.keys, self.parts, strict=True):
            value = _part(value, key, parts)
        return value


def sensor_parts(space: spaces.Space) -> list[tuple[PartPath, spaces.Space]]:
    """Returns place and space of every sensor. Their names differ, whatever the keys are.

    Raises:
        TypeError: For a Dict or Tuple without parts.
    """
    leaves = list(_leaves(space, (), ()))
    if not leaves:
        raise TypeError(f"the observation space {space} has no parts")
    names = [".".join(map(str, keys)) for keys, _, _ in leaves]
    taken: set[str] = set()
    found = []
    for name, (keys, parts, leaf) in zip(names, leaves, strict=True):
        ambiguous = names.count(name) > 1 and any("." in str(key) for key in keys)
        if keys and (ambiguous or not name):
            name = ".".join(f"'{key}'" if "." in str(key) or key == "" else str(key) for key in keys)
        while name in taken:
            name += "'"
        taken.add(name)
        found.append((PartPath(name, keys, parts), leaf))
    return found


def _leaves(
    space: spaces.Space, keys: tuple[Any, ...], parts: tuple[tuple[Any, ...], ...]
) -> Iterator[tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...], spaces.Space]]:
    """Yields keys, parts at each of them, and space of everything that is a sensor."""
    if not isinstance(space, spaces.Dict) and not parts_of(space):
        yield keys, parts, space
        return
    own = parts_of(space)
    for key, part in own.items():
        yield from _leaves(part, (*keys, key), (*parts, tuple(own)))


def _sensor(path: PartPath, space: spaces.Space) -> Sensor:
    return Sensor(path.name, _box(space), _within(writer(space_entry(space)), path))


def parts_of(space: spaces.Space) -> Mapping[Any, spaces.Space]:
    """Parts of a space that are separate sensors; empty if the space is a single sensor."""
    if isinstance(space, spaces.Dict):
        return space.spaces
    if isinstance(space, spaces.Tuple) and any(_separate_sensor(part) for part in space.spaces):
        return dict(enumerate(space.spaces))
    return {}


def _part(whole: Any, key: Any, parts: tuple[Any, ...]) -> Any:
    try:
        return whole[key]
    except (KeyError, IndexError, TypeError):
        raise Mismatch(_shown_parts(whole), f"the parts {list(parts)}") from None


def _shown_parts(whole: Any) -> str:
    return f"the parts {list(whole)}" if isinstance(whole, Mapping) else shortened(whole)


def of_sensor(name: str) -> str:
    """Returns the place of an observation, ` of the sensor 'camera'`; empty for a single sensor without a name."""
    return f" of the sensor '{name}'" if name else ""


def _within(write: Write, path: PartPath) -> Write:
    """Conversion of a sensor within an observation."""
    place_of_sensor, is_whole = of_sensor(path.name), not path.keys

    def write_part(place: np.ndarray, value: Any) -> None:
        try:
            write(place, value if is_whole else path.extract(value))
        except Mismatch as error:
            raise ObservationError(error.shown, error.expected, place_of_sensor) from None

    return write_part


def _separate_sensor(space: spaces.Space) -> bool:
    return (
        isinstance(space, spaces.Dict)
        or is_image(space)
        or (isinstance(space, spaces.Tuple) and any(_separate_sensor(part) for part in space.spaces))
    )


def is_image(space: spaces.Space) -> bool:
    """True for a Box of images, uint8 of two or three axes."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def space_entry(space: spaces.Space, *, bounds: bool = False) -> Entry:
    """Describes a space for `coterie.core.observations`, and for players of exports, as JSON can hold it.

    Args:
        space: Space of a sensor or of actions.
        bounds: Include types and bounds, which actions need.

    Raises:
        TypeError: For other spaces than Box, Discrete, MultiDiscrete, MultiBinary, Tuple and Dict.
    """
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "parts": [space_entry(part, bounds=bounds) for part in space.spaces]}
    if isinstance(space, spaces.Dict):
        parts = [space_entry(part, bounds=bounds) for part in space.spaces.values()]
        return {"kind": "dict", "keys": list(space.spaces), "parts": parts}
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    shape, dtype = list(space.shape or ()), str(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multi_binary", "shape": shape, "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (values.tolist() for values in sizes_and_starts(space))
        return {"kind": "multi_discrete", "nvec": nvec, "start": start, "shape": shape, "dtype": dtype}
    if not isinstance(space, spaces.Box):
        raise _without_shape(space)
    entry: Entry = {"kind": "box", "shape": shape, "dtype": dtype}
    if bounds:  # of integers, exact
        entry |= {"low": space.low.reshape(-1).tolist(), "high": space.high.reshape(-1).tolist()}
    return entry


def _box(space: spaces.Space) -> spaces.Box:
    """Box of the array that observations of a sensor are converted to."""
    if isinstance(space, spaces.Box) and is_image(space):
        if not space.low.size:
            raise TypeError(f"the observation space {space} has images without pixels")
        shape = space.shape if len(space.shape) == 3 else (*space.shape, 1)
        return spaces.Box(space.low.reshape(shape), space.high.reshape(shape), dtype=np.uint8)
    if isinstance(space, spaces.Box):
        with np.errstate(over="ignore"):  # bounds beyond float32 are infinite
            low, high = (bound.astype(np.float32).reshape(-1) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)
    if isinstance(space, spaces.Discrete):
        return _zero_one(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return _zero_one(int(sizes_and_starts(space)[0].sum()))
    if isinstance(space, spaces.MultiBinary):
        return _zero_one(int(np.prod(space.shape)))
    if isinstance(space, spaces.Tuple) and space.spaces:
        boxes = [_box(part) for part in space.spaces]
        low, high = (np.concatenate([getattr(box, side) for box in boxes]) for side in ("low", "high"))
        return spaces.Box(low, high, dtype=np.float32)
    raise _without_shape(space)


def _without_shape(space: spaces.Space) -> TypeError:
    return TypeError(
        f"the observation space {space} has no fixed shape. Use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict "
        "or Tuple of these."
    )


def _zero_one(size: int) -> spaces.Box:
    return spaces.Box(0, 1, (size,), np.float32)


def sizes_and_starts(space: spaces.MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of choices and first values of all components, int64 [K]. The type of the space may be too
    small for sums of them.
    """
    return space.nvec.reshape(-1).astype(np.int64), space.start.reshape(-1).astype(np.int64)


# -------------------------------------------------------------------------------------------------------------- actions

Native = Callable[[np.ndarray, np.ndarray], Any]
"""Converts choices [M, K] and numbers [M, C] in [-1, 1] to M native actions: an array [M, ...], or a tuple or dict of
them."""


class Actuator:
    """Converts actions to those of an agent's own space.

    Raises:
        TypeError: For unsupported spaces.
    """

    def __init__(self, space: spaces.Space):
        self.spec = ActionSpec.of(space)
        self._native, self._split = native_batch(space), _splitter(space)

    def __call__(self, discrete: np.ndarray | None, continuous: np.ndarray | None) -> list[Any]:
        """Returns n native actions for discrete [n, K] and continuous [n, C] components (None if absent).

        Types are those of `space.sample()`: a NumPy integer (Discrete), an array within the bounds (MultiDiscrete,
        MultiBinary, Box), or a tuple or dict of these.
        """
        if discrete is None:
            discrete = np.zeros((0 if continuous is None else len(continuous), 0), np.int64)
        if continuous is None:
            continuous = np.zeros((len(discrete), 0), np.float32)
        return self._split(self._native(discrete, continuous))


def native_batch(space: spaces.Space) -> Native:
    """Returns the function that converts a batch of actions to those of a space."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return _composite(space)
    if isinstance(space, spaces.Box):
        return _integers_within(space) if _is_integer(space) else _reals_within(space)
    if isinstance(space, spaces.Discrete):
        return lambda picks, _: (picks[:, 0] + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return lambda picks, _: picks.astype(space.dtype).reshape(len(picks), *space.shape)
    assert isinstance(space, spaces.MultiDiscrete)
    return lambda picks, _: space.start + picks.astype(space.dtype).reshape(len(picks), *space.shape)


def _splitter(space: spaces.Space) -> Callable[[Any], list[Any]]:
    """Returns the function that divides a batch of actions into a list."""
    if isinstance(space, spaces.Tuple):
        parts = [_splitter(part) for part in space.spaces]
        return lambda batch: list(zip(*(split(x) for split, x in zip(parts, batch, strict=True)), strict=True))
    if isinstance(space, spaces.Dict):
        by_key = {key: _splitter(part) for key, part in space.spaces.items()}
        return lambda batch: [
            dict(zip(by_key, values, strict=True))
            for values in zip(*(split(batch[key]) for key, split in by_key.items()), strict=True)
        ]
    if isinstance(space, spaces.Discrete) or space.shape:
        return list
    return lambda batch: [np.array(x) for x in batch]  # rows without axes would be scalars


def _composite(space: spaces.Tuple | spaces.Dict) -> Native:
    by_key = space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
    parts: dict[Any, tuple[Native, slice, slice]] = {}
    k = c = 0
    for key, part in by_key.items():
        leaves = list(leaf_specs(part))
        after = k + sum(len(leaf.choices) for leaf in leaves), c + sum(leaf.continuous for leaf in leaves)
        parts[key] = (native_batch(part), slice(k, after[0]), slice(c, after[1]))
        k, c = after

    def convert(picks: np.ndarray, numbers: np.ndarray) -> Any:
        found = {key: one(picks[:, i], numbers[:, j]) for key, (one, i, j) in parts.items()}
        return found if isinstance(space, spaces.Dict) else tuple(found.values())

    return convert


def _is_integer(space: spaces.Box) -> bool:
    return space.dtype is not None and space.dtype.kind in "biu"


def _reals_within(space: spaces.Box) -> Native:
    """Bit-identical to `coterie.core.specs.to_bounds`, without the overhead of small tensors."""
    low, high, dtype = space.low, space.high, space.dtype
    lowest = low.reshape(-1).astype(np.float32)
    half = (high.reshape(-1).astype(np.float32) - lowest) / 2
    is_flat = len(space.shape) == 1
    exact = dtype == np.float32 and (low + (high - low) / 2 * 2 <= high).all()

    def convert(_: np.ndarray, values: np.ndarray) -> np.ndarray:
        numbers = np.maximum(values, -1)
        np.minimum(numbers, 1, out=numbers)
        numbers += 1
        numbers *= half
        numbers += lowest
        if not is_flat:
            numbers = numbers.reshape(len(values), *space.shape)
        # Rounding may have exceeded the bounds.
        return numbers if exact else np.minimum(np.maximum(numbers.astype(dtype), low), high)

    return convert


def _integers_within(space: spaces.Box) -> Native:
    """Gives each integer an equal share of [-1, 1]. Integers are exact, although float64 cannot hold all of int64."""
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    widths = [int(b) - int(a) for a, b in zip(low, high, strict=True)]
    levels, width = np.array([n + 1 for n in widths], np.float64), np.array(widths, np.uint64)
    lowest = low.astype(np.uint64 if space.dtype == np.uint64 else np.int64).view(np.uint64)  # sums are modulo 2**64

    def convert(_: np.ndarray, values: np.ndarray) -> np.ndarray:
        share = (np.clip(values.astype(np.float64), -1, 1) + 1) / 2
        level = np.floor(np.where(share < 1, share, 0) * levels).astype(np.uint64)
        numbers = lowest + np.where(share < 1, np.minimum(level, width), width)
        return numbers.view(np.int64).astype(space.dtype).reshape(len(values), *space.shape)

    return convert


Components = Callable[[Any, int], tuple[np.ndarray, np.ndarray]]
"""Converts a batch of M native actions, and M, to choices [M, K] int64 and numbers [M, C] in [-1, 1]."""


def components(space: spaces.Space) -> Components:
    """Returns the inverse of `native_batch(space)`, which raises ValueError for actions that are not in the space."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        by_key = space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        parts = {key: components(part) for key, part in by_key.items()}

        def of_parts(batch: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
            try:
                found = [convert(batch[key], count) for key, convert in parts.items()]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"{shortened(batch)}, expected the parts {list(parts)}") from None
            picks, numbers = zip(*found, strict=True)
            return np.concatenate(picks, 1), np.concatenate(numbers, 1)

        return of_parts
    if isinstance(space, spaces.Box):
        return lambda batch, count: (np.zeros((count, 0), np.int64), _shares(space, batch, count))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = sizes_and_starts(space)
    elif isinstance(space, spaces.Discrete):
        sizes, starts = np.array([int(space.n)]), np.array([int(space.start)])
    else:
        assert isinstance(space, spaces.MultiBinary)
        sizes, starts = np.full(math.prod(space.shape), 2), np.zeros(math.prod(space.shape), np.int64)

    def of_choices(batch: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        picks = _rows(batch, count, len(sizes), space)
        wrong = ~((picks >= starts) & (picks < starts + sizes) & (picks == np.floor(picks)))
        if wrong.any():
            raise ValueError(f"{picks[wrong].flat[0]:g} is not in {space}")
        return picks.astype(np.int64) - starts, np.zeros((count, 0), np.float32)

    return of_choices


def _rows(batch: Any, count: int, size: int, space: spaces.Space) -> np.ndarray:
    """Returns a batch of arrays as [M, size]."""
    array = np.asarray(batch)
    if array.dtype.kind not in "fiub" or array.shape[:1] != (count,) or array.size != count * size:
        raise ValueError(f"{shortened(batch)} is not in {space}")
    return array.reshape(count, size)


def _shares(space: spaces.Box, batch: Any, count: int) -> np.ndarray:
    """Returns the numbers of a batch of actions of a Box, mapped to [-1, 1]."""
    low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
    numbers = _rows(batch, count, len(low), space).astype(np.float64)
    wrong = ~((numbers >= low - 1e-6) & (numbers <= high + 1e-6))
    if wrong.any():
        raise ValueError(f"{numbers[wrong].flat[0]:g} is not in {space}")
    half = 0.5 if _is_integer(space) else 0.0
    width = high - low + 2 * half
    return (2 * (numbers - low + half) / np.where(width > 0, width, 1) - 1).astype(np.float32)


def accepts_booleans(space: spaces.Space) -> bool:
    """True for observations and masks of zeros and ones, which may be booleans."""
    if isinstance(space, spaces.MultiBinary):
        return True
    return isinstance(space, spaces.Box) and bool((space.low == 0).all() and (space.high == 1).all())

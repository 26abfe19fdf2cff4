"""Conversion of batched native observations and actions without loops over environments; see also `spaces`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from coterie.core.specs import ActionSpec
from coterie.envs.external.spaces import (
    ObservationError,
    Observer,
    PartPath,
    codes,
    native_batch,
    numeric,
    require_binary,
    sensor_parts,
    shortened,
    sizes_and_starts,
    unlike,
)

_Read = Callable[[Any], np.ndarray]


class BatchObserver:
    """Converts batched native observations to arrays by sensor [B, ...]; a single sensor has the empty name.

    Raises:
        TypeError: For spaces without a fixed shape.
    """

    def __init__(self, space: spaces.Space):
        shown = Observer(space)
        self.space = shown.space
        boxes = {sensor.name: sensor.space for sensor in shown.sensors}
        self._readers = [(path, boxes[path.name], _leaf(part)) for path, part in sensor_parts(space)]

    def __call__(self, seen: Any, num_envs: int) -> dict[str, np.ndarray]:
        """Returns freshly allocated arrays for observations of `num_envs` environments.

        Raises:
            ObservationError: For unexpected shapes and types, and for values outside of a discrete range.
        """
        return {path.name: self._array(path, box, read, seen, num_envs) for path, box, read in self._readers}

    @staticmethod
    def _array(path: PartPath, box: spaces.Box, read: _Read, seen: Any, num_envs: int) -> np.ndarray:
        try:
            array = read(path.extract(seen))
            if len(array) != num_envs:
                raise unlike(f"{len(array)} environments", str(num_envs))
        except ObservationError as error:
            raise error.at(f" of the sensor '{path.name}'" if path.name else "") from None
        return array.astype(box.dtype).reshape(num_envs, *box.shape)


def _leaf(space: spaces.Space) -> _Read:
    """Function that reads a batch of a leaf space as [B, ...]."""
    if isinstance(space, spaces.Discrete):
        return _one_hots(np.array([space.n], np.int64), np.array([space.start], np.int64))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hots(*sizes_and_starts(space))
    if isinstance(space, spaces.Tuple):
        leaves = [_leaf(part) for part in space.spaces]

        def side_by_side(seen: Any) -> np.ndarray:
            if not isinstance(seen, tuple | list) or len(seen) != len(leaves):
                raise unlike(f"the value {shortened(seen)}", f"a tuple of {len(leaves)} parts")
            read = [one(part) for one, part in zip(leaves, seen, strict=True)]
            return np.concatenate([part.reshape(len(part), -1) for part in read], -1)

        return side_by_side
    shape, dtype = space.shape or (), space.dtype
    target = np.dtype(np.uint8 if dtype == np.uint8 and len(shape) in (2, 3) else np.float32)

    def numbers(seen: Any) -> np.ndarray:
        array = on_host(seen)
        if array.shape[1:] != shape:
            raise unlike(f"shape {array.shape[1:]}", f"{shape}")
        if array.dtype != target:
            array = numeric(array, target)
        if isinstance(space, spaces.MultiBinary):
            require_binary(array)
        return array

    return numbers


def _one_hots(sizes: np.ndarray, starts: np.ndarray) -> _Read:
    offsets = np.cumsum(sizes) - sizes

    def read(seen: Any) -> np.ndarray:
        picks = on_host(seen)
        picks = codes(picks.reshape(len(picks), -1) if picks.ndim else picks, sizes, starts)
        shown = np.zeros((len(picks), int(sizes.sum())), np.float32)
        np.put_along_axis(shown, picks + offsets, 1, -1)
        return shown

    return read


class BatchActuator:
    """Converts actions to a batch of native actions.

    Raises:
        TypeError: For unsupported spaces.
    """

    def __init__(self, space: spaces.Space):
        self.spec = ActionSpec.of(space)
        self._native = native_batch(space)

    def __call__(self, discrete: np.ndarray, continuous: np.ndarray) -> Any:
        """Returns native actions for discrete [B, K] and continuous [B, C] components (K or C may be 0): an array, or a
        tuple or dict of arrays for a Tuple or Dict space. Continuous values are clipped to [-1, 1].
        """
        return self._native(discrete, continuous)


def on_host(value: Any) -> np.ndarray:
    """Converts to a NumPy array, whatever array library it comes from."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)

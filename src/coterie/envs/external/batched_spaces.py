"""Conversion of batched native observations and actions without loops over environments; see also `spaces`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from coterie.core.specs import ActionSpec
from coterie.envs.external.spaces import Observer, parts_of, unlike

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
        self._readers = [(name, boxes[name], read) for name, read in _sensors(space)]

    def __call__(self, seen: Any, num_envs: int) -> dict[str, np.ndarray]:
        """Returns freshly allocated arrays for observations of `num_envs` environments.

        Raises:
            UserError: For unexpected shapes and discrete values outside of their range.
        """
        return {name: self._array(read(seen), box, num_envs) for name, box, read in self._readers}

    @staticmethod
    def _array(read: np.ndarray, box: spaces.Box, num_envs: int) -> np.ndarray:
        if len(read) != num_envs:
            raise unlike(f"{len(read)} environments", str(num_envs))
        return read.astype(box.dtype).reshape(num_envs, *box.shape)


def _sensors(space: spaces.Space, name: str = "", get: Callable[[Any], Any] = lambda seen: seen) -> list:
    """Leaves of a space by name, as in `Observer`, each with a function that extracts it from a batch."""
    parts = parts_of(space)
    if not parts:
        read = _leaf(space)
        return [(name, lambda seen: read(get(seen)))]
    found = []
    for key, part in parts.items():
        found += _sensors(part, f"{name}.{key}" if name else str(key), lambda seen, key=key: get(seen)[key])
    return found


def _leaf(space: spaces.Space) -> _Read:
    """Function that reads a batch of a leaf space as [B, ...]."""
    if isinstance(space, spaces.Discrete):
        return _one_hots(np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hots(space.nvec.reshape(-1), space.start.reshape(-1))
    if isinstance(space, spaces.Tuple):
        leaves = [_leaf(part) for part in space.spaces]

        def side_by_side(seen: Any) -> np.ndarray:
            read = [one(part) for one, part in zip(leaves, seen, strict=True)]
            return np.concatenate([part.reshape(len(part), -1) for part in read], -1)

        return side_by_side
    shape = space.shape

    def numbers(seen: Any) -> np.ndarray:
        array = on_host(seen)
        if array.shape[1:] != shape:
            raise unlike(f"shape {array.shape[1:]}", f"{shape}")
        return array

    return numbers


def _one_hots(sizes: np.ndarray, starts: np.ndarray) -> _Read:
    offsets = np.cumsum(sizes) - sizes

    def read(seen: Any) -> np.ndarray:
        picks = on_host(seen)
        picks = picks.reshape(len(picks), -1) - starts
        if picks.shape[1:] != sizes.shape:
            raise unlike(f"{picks.shape[1]} choices", str(len(sizes)))
        if ((picks < 0) | (picks >= sizes)).any():
            raise unlike(
                "a value outside of the discrete range", f"{starts.tolist()} to {(starts + sizes - 1).tolist()}"
            )
        shown = np.zeros((len(picks), int(sizes.sum())), np.float32)
        np.put_along_axis(shown, (picks + offsets).astype(np.int64), 1, -1)
        return shown

    return read


class BatchActuator:
    """Converts actions to a batch of native actions. TypeError for unsupported spaces."""

    def __init__(self, space: spaces.Space):
        self.spec = ActionSpec.of(space)
        self._native = _native(space)
        self._low = np.array(self.spec.low, np.float32)
        self._half = (np.array(self.spec.high, np.float32) - self._low) / 2

    def __call__(self, discrete: np.ndarray, continuous: np.ndarray) -> Any:
        """Returns native actions for discrete [B, K] and continuous [B, C] components (K or C may be 0): an array, or a
        tuple of arrays for a Tuple space. Continuous values are clipped to [-1, 1].
        """
        if self.spec.continuous:
            continuous = (np.clip(continuous, -1, 1) + 1) * self._half + self._low
        return self._native(discrete, continuous)


def _native(space: spaces.Space) -> Callable[[np.ndarray, np.ndarray], Any]:
    if isinstance(space, spaces.Discrete):
        return lambda picks, _: (picks[:, 0] + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return lambda picks, _: space.start + picks.astype(space.dtype)
    if isinstance(space, spaces.Box):  # rounding may have exceeded the bounds
        return lambda _, numbers: np.clip(numbers.astype(space.dtype), space.low, space.high)
    assert isinstance(space, spaces.Tuple)
    parts, k, c = [], 0, 0
    for part in space.spaces:
        spec = ActionSpec.of(part)
        parts.append((_native(part), slice(k, k + len(spec.choices)), slice(c, c + spec.continuous)))
        k, c = k + len(spec.choices), c + spec.continuous
    return lambda picks, numbers: tuple(one(picks[:, i], numbers[:, j]) for one, i, j in parts)


def on_host(value: Any) -> np.ndarray:
    """Converts to a NumPy array, whatever array library it comes from."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)

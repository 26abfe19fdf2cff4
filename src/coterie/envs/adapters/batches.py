"""Batches of native observations and actions, without a loop over copies: what `adapters.spaces` turns one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from coterie.envs.adapters.spaces import Observer, parts_of, unlike
from coterie.types import ActionSpec

_Read = Callable[[Any], np.ndarray]


class BatchObserver:
    """Native observations of many copies as `Observer` shows those of one: by sensor [B, ...]; the only one bears the
    empty name. TypeError for spaces without a fixed shape.
    """

    def __init__(self, space: spaces.Space):
        shown = Observer(space)
        self.space = shown.space
        boxes = {sensor.name: sensor.space for sensor in shown.sensors}
        self._readers = [(name, boxes[name], read) for name, read in _sensors(space)]

    def __call__(self, seen: Any, copies: int) -> dict[str, np.ndarray]:
        """Arrays that nobody else has, of observations as the space of `copies` copies has them. UserError for other
        shapes, and numbers that are no choices.
        """
        return {name: self._array(read(seen), box, copies) for name, box, read in self._readers}

    @staticmethod
    def _array(read: np.ndarray, box: spaces.Box, copies: int) -> np.ndarray:
        if len(read) != copies:
            raise unlike(f"{len(read)} copies", str(copies))
        return read.astype(box.dtype).reshape(copies, *box.shape)


def _sensors(space: spaces.Space, name: str = "", get: Callable[[Any], Any] = lambda seen: seen) -> list:
    """The leaves of a space by name, as `Observer` has them, with what reads them out of a batch of the whole."""
    parts = parts_of(space)
    if not parts:
        read = _leaf(space)
        return [(name, lambda seen: read(get(seen)))]
    found = []
    for key, part in parts.items():
        found += _sensors(part, f"{name}.{key}" if name else str(key), lambda seen, key=key: get(seen)[key])
    return found


def _leaf(space: spaces.Space) -> _Read:
    """What reads a batch of a space without named parts as [B, ...]."""
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
            raise unlike("a number that is no choice", f"{starts.tolist()} to {(starts + sizes - 1).tolist()}")
        shown = np.zeros((len(picks), int(sizes.sum())), np.float32)
        np.put_along_axis(shown, (picks + offsets).astype(np.int64), 1, -1)
        return shown

    return read


class BatchActuator:
    """Actions of the contract as the batch of an agent's own space has them. TypeError for spaces that the contract
    has not.
    """

    def __init__(self, space: spaces.Space):
        self.spec = ActionSpec.of(space)
        self._native = _native(space)
        self._low = np.array(self.spec.low, np.float32)
        self._half = (np.array(self.spec.high, np.float32) - self._low) / 2

    def __call__(self, discrete: np.ndarray, continuous: np.ndarray) -> Any:
        """Native actions of discrete [B, K] and continuous [B, C] components, K or C 0 where there are none: an array,
        or a tuple of them where the space is one. Numbers outside of [-1, 1] act like the nearest inside.
        """
        if self.spec.continuous:
            continuous = (np.clip(continuous, -1, 1) + 1) * self._half + self._low
        return self._native(discrete, continuous)


def _native(space: spaces.Space) -> Callable[[np.ndarray, np.ndarray], Any]:
    if isinstance(space, spaces.Discrete):
        return lambda picks, _: (picks[:, 0] + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return lambda picks, _: space.start + picks.astype(space.dtype)
    if isinstance(space, spaces.Box):  # rounding may have left the bounds
        return lambda _, numbers: np.clip(numbers.astype(space.dtype), space.low, space.high)
    assert isinstance(space, spaces.Tuple)
    parts, k, c = [], 0, 0
    for part in space.spaces:
        spec = ActionSpec.of(part)
        parts.append((_native(part), slice(k, k + len(spec.choices)), slice(c, c + spec.continuous)))
        k, c = k + len(spec.choices), c + spec.continuous
    return lambda picks, numbers: tuple(one(picks[:, i], numbers[:, j]) for one, i, j in parts)


def on_host(value: Any) -> np.ndarray:
    """Numbers as a numpy array, whoever's arrays they are."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)

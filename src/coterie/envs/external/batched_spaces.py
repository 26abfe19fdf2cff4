"""Conversion of the batched native observations, actions and action masks of Gymnasium's vector environments, without
loops over environments; see also `spaces` and `mask_sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from coterie.core.observations import Mismatch, codes, numeric, require_binary, shortened
from coterie.core.specs import ActionSpec
from coterie.envs.external.agents import Choices, Part
from coterie.envs.external.mask_sources import MASK, MaskSource, find_masks
from coterie.envs.external.spaces import (
    ObservationError,
    Observer,
    PartPath,
    native_batch,
    of_sensor,
    sensor_parts,
    sizes_and_starts,
)

_Read = Callable[[Any], np.ndarray]


class BatchObserver:
    """Converts batched native observations to arrays by sensor [B, ...]; a single sensor has the empty name.

    Raises:
        TypeError: For spaces without a fixed shape.
    """

    def __init__(self, space: spaces.Space):
        shown = Observer(space)
        self.space, self.native = shown.space, shown.native
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
                raise Mismatch(f"{len(array)} environments", str(num_envs))
        except Mismatch as error:
            raise ObservationError(error.shown, error.expected, of_sensor(path.name)) from None
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
                raise Mismatch(f"the value {shortened(seen)}", f"a tuple of {len(leaves)} parts")
            read = [one(part) for one, part in zip(leaves, seen, strict=True)]
            return np.concatenate([part.reshape(len(part), -1) for part in read], -1)

        return side_by_side
    shape, dtype = space.shape or (), space.dtype
    target = np.dtype(np.uint8 if dtype == np.uint8 and len(shape) in (2, 3) else np.float32)

    def numbers(seen: Any) -> np.ndarray:
        array = on_host(seen)
        if array.shape[1:] != shape:
            raise Mismatch(f"shape {array.shape[1:]}", f"{shape}")
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


_ReadMasks = Callable[[Any, Mapping[str, Any]], Any]


def find_batched_masks(env: Any, info: Mapping[str, Any]) -> MaskSource | None:
    """Finds the masks of a vector environment, as `find_masks` does.

    Args:
        env: The vector environment, which has just been reset.
        info: Infos of the reset.
    """
    observes, acts = env.single_observation_space, env.single_action_space
    source = find_masks(env, observes, acts, info)
    inner = env.unwrapped
    if source is None and isinstance(inner, SyncVectorEnv):
        return find_masks(inner.envs[0], observes, acts, {})
    if source is None and isinstance(inner, AsyncVectorEnv):  # asking its workers for what they lack would end them
        one = inner.env_fns[0]()
        try:
            return find_masks(one, observes, acts, {})
        finally:
            one.close()
    return source


@final
class BatchMasks:
    """Reads the masks of all environments.

    Args:
        env: The vector environment.
        part: Its role.
        source: Place of the masks.

    Attributes:
        in_observation: Observations contain the masks.
        by_method: A method returns the masks.
    """

    def __init__(self, env: Any, part: Part, source: MaskSource):
        self._choices, self._size = Choices(part), part.role.action.mask_size
        stops = np.cumsum(part.role.action.choices, dtype=int).tolist()
        self._components = [slice(a, b) for a, b in zip([0, *stops], stops, strict=False)]
        self.in_observation, self.by_method = source.kind == "observation", source.kind == "method"
        self._split = self.in_observation and _is_split(part.observes)
        self._read = _reader(env, source)

    def __call__(self, observation: Any, info: Mapping[str, Any], num_envs: int) -> np.ndarray:
        """Returns the masks, bool [B, sum A]; all True in environments without one.

        Raises:
            UserError: For masks of another size, and values other than 0 and 1.
        """
        given = self._read(observation, info)
        if given is None:
            return np.ones((num_envs, self._size), np.bool_)
        if self._split:  # one array per component
            given = np.concatenate([on_host(part).reshape(num_envs, -1) for part in given], 1)
        shown = info.get(f"_{MASK}")
        has = np.ones(num_envs, np.bool_) if shown is None else on_host(shown).astype(np.bool_)
        array = None if isinstance(given, tuple | list) else on_host(given)
        if array is not None and array.dtype != object and array.reshape(num_envs, -1).shape[1] == self._size:
            array = array.reshape(num_envs, -1)
            if ((array == 0) | (array == 1))[has].all():
                return self._with_an_action(np.where(has[:, None], array, 1) != 0)
        masks = np.ones((num_envs, self._size), np.bool_)
        for index in np.flatnonzero(has):
            self._choices.write(masks[index], _of_env(given, int(index), self.in_observation))
        return masks

    def _with_an_action(self, masks: np.ndarray) -> np.ndarray:
        """Allows the first choice of components without a legal one."""
        for component in self._components:
            masks[:, component.start] |= ~masks[:, component].any(1)
        return masks

    def first_actions(self, masks: np.ndarray) -> np.ndarray:
        """Returns the first legal choices [B, K]."""
        return np.stack([masks[:, component].argmax(1) for component in self._components], 1)


def _of_env(given: Any, index: int, in_observation: bool) -> Any:
    """The mask of one environment. Infos hold dicts of arrays, with flags of the environments that have one."""
    if isinstance(given, Mapping):
        flags = {key: f"_{key}" for key in given if f"_{key}" in given}
        return {
            key: _of_env(part, index, in_observation)
            for key, part in given.items()
            if key not in flags.values() and (key not in flags or given[flags[key]][index])
        }
    if in_observation and isinstance(given, tuple):
        return tuple(_of_env(part, index, in_observation) for part in given)
    return given[index]


def _is_split(space: spaces.Space) -> bool:
    """True if observations hold one array per component."""
    mask = space.spaces.get(MASK) if isinstance(space, spaces.Dict) else None
    return isinstance(mask, spaces.Tuple) and all(part.shape is not None for part in mask.spaces)


def _reader(env: Any, source: MaskSource) -> _ReadMasks:
    inner = env.unwrapped
    if source.kind == "method" and isinstance(inner, SyncVectorEnv | AsyncVectorEnv):
        return lambda observation, info: inner.call(source.method)
    return source.reader(env)

"""Action masks of Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from coterie.envs.external.agents import Choices, Part
from coterie.envs.external.batched_spaces import on_host
from coterie.envs.external.mask_sources import MASK, MaskSource, find_masks

_Read = Callable[[Any, Mapping[str, Any]], Any]


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


def _reader(env: Any, source: MaskSource) -> _Read:
    inner = env.unwrapped
    if source.kind == "method" and isinstance(inner, SyncVectorEnv | AsyncVectorEnv):
        return lambda observation, info: inner.call(source.method)
    return source.reader(env)

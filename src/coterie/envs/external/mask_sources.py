"""The place where an environment returns its action masks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec, leaf_specs

MASK = "action_mask"

_METHODS = ("action_masks", "action_mask")
"""Methods that return the current mask, by convention of sb3-contrib's MaskablePPO."""

_SIMILAR = frozenset({
    *("action_masks", "avail_actions", "available_actions", "legal_actions", "legal_moves", "valid_actions"),
    *("valid_action_mask", "legal_action_mask", "invalid_action_mask", "actions_mask", "valid_mask"),
})  # fmt: skip
"""Keys of infos and observations that look like a mask and are not read."""


@final
@dataclass(frozen=True)
class MaskSource:
    """Place of the masks.

    Attributes:
        kind: In the observation, in the info, or returned by a method.
        method: Name of the method.
    """

    kind: Literal["observation", "info", "method"]
    method: str = ""

    def __str__(self) -> str:
        if self.kind == "method":
            return f"{self.method}()"
        return f"{self.kind}['{MASK}']"

    def reader(self, env: Any) -> Callable[[Any, Mapping[Any, Any]], Any]:
        """Returns a function of an observation and an info that returns the mask in the environment's format."""
        if self.kind == "observation":
            return lambda observation, info: observation[MASK]
        if self.kind == "info":
            return lambda observation, info: info.get(MASK)
        read = _mask_method(env, self.method)
        assert read is not None
        return lambda observation, info: read()


def find_masks(env: Any, observation_space: spaces.Space, action_space: spaces.Space, info: Any) -> MaskSource | None:
    """Finds the masks of an environment that has just been reset. An observation comes before an info and a method.

    Args:
        env: The environment, possibly wrapped.
        observation_space: Its observation space, with the mask.
        action_space: Its action space.
        info: Info of the reset.

    Returns:
        The place; None for an environment without masks, or without discrete actions.
    """
    if not ActionSpec.of(action_space).choices:
        return None
    if holds_mask(observation_space):
        return MaskSource("observation")
    if MASK in info:
        return MaskSource("info")
    found = next((name for name in _METHODS if _mask_method(env, name) is not None), None)
    return None if found is None else MaskSource("method", found)


def holds_mask(space: spaces.Space) -> bool:
    """True if observations of a space contain the action mask next to the observation."""
    return isinstance(space, spaces.Dict) and MASK in space.spaces and len(space.spaces) > 1


def without_mask(space: spaces.Space) -> spaces.Space:
    """The observation space without the mask."""
    if not holds_mask(space):
        return space
    assert isinstance(space, spaces.Dict)
    rest = {name: part for name, part in space.spaces.items() if name != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)


def as_mask(values: Any) -> np.ndarray:
    """Returns a mask of 0 and 1, or of False and True, as an array of bool.

    Raises:
        UserError: For other values, such as logits.
    """
    array = np.asarray(values)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf":
        raise UserError(f"an action mask of type {array.dtype}, expected 1 for available actions and 0 for others")
    legal = array == 1
    if np.count_nonzero(legal) != np.count_nonzero(array):
        wrong = array[~(legal | (array == 0))].flat[0]
        raise UserError(f"an action mask holds {wrong:g}, expected 1 for available actions and 0 for others")
    return legal


@final
class MaskForm:
    """Structure of the masks of an action space.

    Args:
        space: The action space; None for what is within a component.

    Attributes:
        size: Length of a flat mask, `sum A`.
    """

    def __init__(self, space: spaces.Space | None):
        parts = space.spaces if isinstance(space, spaces.Dict | spaces.Tuple) else ()
        by_key = parts if isinstance(parts, Mapping) else dict(enumerate(parts))
        self._parts = {key: MaskForm(part) for key, part in by_key.items()}
        self._has_keys = isinstance(parts, Mapping)
        self.size = 0 if space is None else sum(sum(leaf.choices) for leaf in leaf_specs(space))

    def flat(self, mask: Any) -> np.ndarray:
        """Returns a mask as one array.

        The mask is flat, has one array per component, or the structure of the space: a dict for a Dict, and a sequence
        for a Tuple. In these, None allows everything, and parts without choices need no entry.

        Raises:
            UserError: For a dict with other keys than those of the space.
        """
        array = _regular(mask)
        if array is not None:
            return array.reshape(-1)
        found = self._joined(mask)
        return found if found.size == self.size or isinstance(mask, Mapping) else _COMPONENT._joined(mask)

    def _joined(self, mask: Any) -> np.ndarray:
        leaves = [np.ravel(leaf) for leaf in self._leaves(mask)]
        return np.concatenate(leaves) if leaves else np.zeros(0, np.bool_)

    def _leaves(self, mask: Any) -> Iterator[Any]:
        array = _regular(mask)
        if array is not None:
            yield array
        elif mask is None and self.size:
            yield np.ones(self.size, np.bool_)
        elif isinstance(mask, Mapping):
            needed = [key for key, part in self._parts.items() if part.size and self._has_keys]
            if not needed or not set(needed) <= mask.keys() <= self._parts.keys():
                expected = f"the parts {needed}" if needed else "an array"
                raise UserError(f"an action mask has the parts {list(mask)}, expected {expected}")
            for key in needed:
                yield from self._parts[key]._leaves(mask[key])
        elif isinstance(mask, tuple | list) or (isinstance(mask, np.ndarray) and mask.ndim):
            is_structured = len(self._parts) == len(mask) and not self._has_keys
            for one, part in zip(
                mask, self._parts.values() if is_structured else [_COMPONENT] * len(mask), strict=True
            ):
                if part.size or part is _COMPONENT:
                    yield from part._leaves(one)
        else:
            yield mask


def _regular(mask: Any) -> np.ndarray | None:
    """Returns a mask as an array; None for dicts, objects, and arrays of several lengths."""
    if type(mask) is not np.ndarray:
        try:
            mask = None if isinstance(mask, Mapping) else np.asarray(mask)
        except ValueError:
            return None
    return mask if mask is not None and mask.dtype.kind != "O" else None


_COMPONENT = MaskForm(None)


def structured_mask(space: spaces.Space, mask: np.ndarray) -> Any:
    """Returns a flat mask [sum A] in the form that `space.sample(mask=)` takes, int8.

    It is an array for Discrete, a tuple of arrays for MultiDiscrete, 0, 1 or 2 (both) per bit for MultiBinary, None for
    Box, and a tuple or dict of these for Tuple and Dict.
    """
    if isinstance(space, spaces.Tuple | spaces.Dict):
        by_key = space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        found, start = {}, 0
        for key, part in by_key.items():
            stop = start + sum(sum(leaf.choices) for leaf in leaf_specs(part))
            found[key], start = structured_mask(part, mask[start:stop]), stop
        return found if isinstance(space, spaces.Dict) else tuple(found.values())
    if isinstance(space, spaces.Discrete):
        return mask.astype(np.int8)
    if isinstance(space, spaces.MultiBinary):
        off, on = mask.astype(bool).reshape(-1, 2).T
        return np.where(off & on, 2, on).astype(np.int8).reshape(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        stops = np.cumsum(space.nvec.reshape(-1))[:-1]
        return _by_shape(iter(np.split(mask.astype(np.int8), stops)), space.nvec.shape)
    return None


def _by_shape(parts: Iterator[np.ndarray], shape: tuple[int, ...]) -> Any:
    """Returns arrays as nested tuples of a shape."""
    return tuple(_by_shape(parts, shape[1:]) for _ in range(shape[0])) if shape else next(parts)


def source_note(place: object, roles: Sequence[str] = ()) -> str:
    """Returns a sentence on the place that the masks of roles are read from."""
    of = f" of {', '.join(roles)}" if roles else ""
    return f"action masks{of} are read from {place}; where there is none, all actions are allowed"


def similar_note(observation: Iterable[Any], info: Iterable[Any]) -> Iterator[str]:
    """Yields a sentence on a key of an observation or an info that looks like a mask, although none is read."""
    for place, keys in (("observation", observation), ("info", info)):
        found = next((key for key in keys if key in _SIMILAR), None)
        if found is not None:
            yield f"{place}['{found}'] is not read as an action mask. Name it '{MASK}' if it is one"
            return


def late_mask(source: str) -> UserError:
    """Error for masks that the first reset did not return."""
    return UserError(f"{source} shows '{MASK}' only later. Return it from reset() on.")


def _mask_method(env: Any, name: str) -> Callable[[], Any] | None:
    """The method or array of an environment or of one that it wraps, as a function without arguments."""
    for holder, get in ((env, "get_wrapper_attr"), (getattr(env, "unwrapped", env), "__getattribute__")):
        try:
            found = getattr(holder, get)(name)
        except AttributeError:
            continue
        if isinstance(found, np.ndarray | list | tuple | dict):
            return lambda holder=holder, get=get: getattr(holder, get)(name)
        if callable(found) and _takes_nothing(found):
            return found
    return None


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # compiled functions may have no signature
        pass
    return True

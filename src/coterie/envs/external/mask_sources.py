"""The place where an environment returns its action masks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import ActionSpec

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
    if not (legal | (array == 0)).all():
        wrong = array[~(legal | (array == 0))].flat[0]
        raise UserError(f"an action mask holds {wrong:g}, expected 1 for available actions and 0 for others")
    return legal


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
        if isinstance(found, np.ndarray | list | tuple):
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

"""Observations that contain their action mask, and observations of several sensors, as environments return them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from numpy.typing import ArrayLike

from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec

Obs = Mapping[str, Any] | ArrayLike

_MASK, _OBSERVATION = "action_mask", "observation"


def split_masks(
    obs: Obs, action_mask: Obs | None, roles: Mapping[str, RoleSpec] | None = None
) -> tuple[Obs, Obs | None]:
    """Splits dicts with an action mask into observations and masks.

    Args:
        obs: Observations by agent or role, or of a single agent. Each may be {"observation": array, "action_mask":
            array}, or a dict of sensors and the mask.
        action_mask: Masks in the same form, for observations without a mask of their own; None for none.
        roles: Roles by their own name and by those of their agents.

    Returns:
        Observations, as arrays or by sensor, and the masks, None if there are none.

    Raises:
        UserError: If a mask is given twice, or such a dict has other keys.
    """
    if not isinstance(obs, Mapping):
        return obs, action_mask
    roles = roles or {}
    if is_single(obs, roles):
        observation, mask = _split("obs", obs, next(iter(roles.values()), None))
        if mask is not None and action_mask is not None:
            raise UserError("action_mask: given twice, also in obs. Remove one of them.")
        return observation, action_mask if mask is None else mask
    arrays: dict[str, Any] = {}
    masks: dict[str, Any] = {}
    for name, value in obs.items():
        arrays[name] = value
        if isinstance(value, Mapping) and (name in roles or not roles):
            arrays[name], mask = _split(f"obs of '{name}'", value, roles.get(name))
            if mask is not None:
                masks[name] = mask
    if not masks:
        return arrays, action_mask
    if action_mask is not None and not isinstance(action_mask, Mapping):
        raise UserError("action_mask: one array, but the observations have masks by agent. Remove it.")
    twice = next((name for name in action_mask or {} if name in masks), None)
    if twice is not None:
        raise UserError(f"action_mask of '{twice}': given twice, also in its observation. Remove one of them.")
    return arrays, masks | dict(action_mask or {})


def is_single(obs: Any, roles: Mapping[str, RoleSpec]) -> bool:
    """True if a dict is the observation of a single agent, not a dict by agent or role."""
    if not isinstance(obs, Mapping):
        return True
    if len({id(role) for role in roles.values()}) != 1 or next(iter(roles.values())).n != 1:
        return _OBSERVATION in obs and not isinstance(obs[_OBSERVATION], Mapping)
    parts = {name.partition(".")[0] for name in sensors_of(next(iter(roles.values())))} | set(
        sensors_of(next(iter(roles.values())))
    )
    named = [name for name in obs if name in roles]
    if parts and set(obs) - {_MASK} <= parts and not any(isinstance(obs[name], Mapping) for name in named):
        return True
    return not named and (_OBSERVATION in obs or _MASK in obs or bool(parts & set(obs)))


def sensors_of(role: RoleSpec) -> Mapping[str, spaces.Space]:
    """Returns the spaces of the sensors of a role by name, {} for a role with a single sensor."""
    space = role.observation_space
    return space.spaces if isinstance(space, spaces.Dict) else {}


def accepts_booleans(space: spaces.Space) -> bool:
    """True for observations and masks of zeros and ones, which may be booleans."""
    if isinstance(space, spaces.MultiBinary):
        return True
    return isinstance(space, spaces.Box) and bool((space.low == 0).all() and (space.high == 1).all())


def by_sensor(value: Mapping[str, Any], outer: str = "") -> dict[str, Any]:
    """Returns the parts of nested dicts by name, `outer.inner`."""
    found: dict[str, Any] = {}
    for key, part in value.items():
        name = f"{outer}.{key}" if outer else str(key)
        found |= by_sensor(part, name) if isinstance(part, Mapping) else {name: part}
    return found


def _split(what: str, given: Mapping[str, Any], role: RoleSpec | None) -> tuple[Any, Any]:
    """Returns observation and mask. UserError for other keys or a missing observation."""
    sensors = {} if role is None else sensors_of(role)
    if _MASK in sensors:
        return given, None
    rest = {name: part for name, part in given.items() if name != _MASK}
    if len(rest) == 1 and not sensors.keys() & rest.keys() and (_MASK in given or _OBSERVATION in rest):
        return next(iter(rest.values())), given.get(_MASK)
    if sensors:
        return rest, given.get(_MASK)
    raise UserError(
        f"{what}: a dict with {', '.join(map(str, given)) or 'no keys'}. Pass an array, or a dict with "
        "observation and action_mask."
    )

"""Observations that carry their action mask, as those of PettingZoo's turn-based environments do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from coterie.core.errors import UserError

Obs = Mapping[str, Any] | ArrayLike

_KEYS = {"observation", "action_mask"}


def split_masks(obs: Obs, action_mask: Obs | None) -> tuple[Obs, Obs | None]:
    """Splits {"observation": array, "action_mask": array} into observations and masks.

    Args:
        obs: Observations by agent or role, or of a single agent. Each may be such a dict.
        action_mask: Masks in the same form, for observations without a mask of their own; None for none.

    Returns:
        Observations as arrays, and the masks, None if there are none.

    Raises:
        UserError: If a mask is given twice, or such a dict has other keys.
    """
    if not isinstance(obs, Mapping):
        return obs, action_mask
    if "observation" in obs and not isinstance(obs["observation"], Mapping):
        observation, mask = _split("obs", obs)
        if mask is not None and action_mask is not None:
            raise UserError("action_mask: given twice, also in obs. Remove one of them.")
        return observation, action_mask if mask is None else mask
    arrays: dict[str, Any] = {}
    masks: dict[str, Any] = {}
    for name, value in obs.items():
        arrays[name] = value
        if isinstance(value, Mapping):
            arrays[name], mask = _split(f"obs of '{name}'", value)
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


def _split(what: str, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns observation and mask. UserError for other keys or a missing observation."""
    if "observation" not in given or not set(given) <= _KEYS:
        raise UserError(
            f"{what}: a dict with {', '.join(map(str, given)) or 'no keys'}. Pass an array, or a dict with "
            "observation and action_mask."
        )
    return given["observation"], given.get("action_mask")

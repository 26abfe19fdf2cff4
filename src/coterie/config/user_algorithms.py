"""Checks of algorithms from outside Coterie before they are constructed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from coterie.core.errors import UserError

_PARTS = ("Config", "capabilities", "update", "state_dict", "load_state_dict")
_BASE = "coterie.algos.algorithm.Algorithm"


def require_algorithm(found: Any, what: str) -> None:
    """Checks that an object is the class of an algorithm.

    Args:
        found: The object that the user named.
        what: Its description for error messages.

    Raises:
        UserError: If it is no class, or lacks a part of the interface.
    """
    if not isinstance(found, type):
        raise UserError(f"{what}: expected a class, not a {type(found).__name__}. Derive it from {_BASE}.")
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if missing:
        raise UserError(f"{what}: it has no {', '.join(missing)}. Derive it from {_BASE}.")
    undefined = sorted(getattr(found, "__abstractmethods__", ()))
    if undefined:
        raise UserError(f"{what}: it does not define {', '.join(undefined)}. Add it to class {found.__name__}.")
    parts: Any = found
    config = parts.Config
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise UserError(
            f"{what}: Config is {config!r}, not a settings class. Derive it from "
            "coterie.algos.base_config.LearnerConfig."
        )
    if not hasattr(parts.capabilities, "learns"):
        raise UserError(
            f"{what}: capabilities is {parts.capabilities!r}. Set it to a coterie.algos.algorithm.Capabilities."
        )
    if "rollout_length" not in config.model_fields:
        raise UserError(
            f"{what}: {config.__name__} has no rollout_length. Derive it from "
            "coterie.algos.base_config.LearnerConfig, or add rollout_length: int = 16."
        )

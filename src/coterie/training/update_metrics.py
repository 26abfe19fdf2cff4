"""Check of the metrics that an algorithm's `update` returns."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import UserCodeError


def require_metrics(algorithm: Any, found: Any) -> dict[str, float]:
    """Returns the metrics of an update.

    Args:
        algorithm: The algorithm, for error messages.
        found: Result of its `update`.

    Raises:
        UserCodeError: If it is no dict of numbers by name.
    """
    place = f"{type(algorithm).__module__}:{type(algorithm).__qualname__}: update returned"
    if not isinstance(found, dict):
        raise UserCodeError(f"{place} {type(found).__name__}. Return a dict of metrics by name, which may be empty.")
    for name, value in found.items():
        if not isinstance(name, str) or "/" not in name:
            raise UserCodeError(
                f"{place} a metric named {name!r}. Use a name of the form area/name, such as loss/value."
            )
        if not isinstance(value, int | float):
            raise UserCodeError(f"{place} {name} of type {type(value).__name__}. Return a number, e.g. x.item().")
    return found

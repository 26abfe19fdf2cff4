"""Actions in the form of an environment's space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def native_action(space: dict[str, Any], parts: dict[str, list[Any]]) -> Any:
    """An agent's action in its own space; removes what it uses from the front of `parts`."""
    kind = space["kind"]
    if kind == "tuple":
        return tuple(native_action(part, parts) for part in space["parts"])
    if kind == "dict":
        return {key: native_action(part, parts) for key, part in zip(space["keys"], space["parts"], strict=True)}
    if kind == "discrete":
        return int(parts["discrete"].pop(0)) + space["start"]
    shape = space.get("shape", [-1])  # exports before version 0.2.1 have arrays of one axis only
    size = len(space["low"]) if kind == "box" else len(space["nvec"]) if kind == "multi_discrete" else math.prod(shape)
    source = parts.get("continuous" if kind == "box" else "discrete", [])
    values = np.array([source.pop(0) for _ in range(size)])
    if kind == "multi_binary":
        return values.astype(space["dtype"]).reshape(shape)
    if kind == "multi_discrete":
        return (values + np.array(space["start"])).astype(space["dtype"]).reshape(shape)
    return (_integers if np.dtype(space["dtype"]).kind in "biu" else _reals)(space, values).reshape(shape)


def _reals(space: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Numbers within the bounds of a space for values in [-1, 1], which are clipped."""
    low, high = np.array(space["low"], np.float32), np.array(space["high"], np.float32)
    scaled = low + (np.clip(values.astype(np.float32), -1, 1) + 1) * ((high - low) / 2)
    return np.clip(scaled, low, high).astype(space["dtype"])


def _integers(space: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Integers within the bounds of a space, each of which has an equal share of [-1, 1]."""
    found = []
    for value, low, high in zip(values.astype(np.float64).tolist(), space["low"], space["high"], strict=True):
        share = (min(max(value, -1.0), 1.0) + 1) / 2
        level = int(share * (int(high) - int(low) + 1)) if share < 1 else int(high) - int(low)
        found.append(min(int(low) + level, int(high)))
    return np.array(found, space["dtype"])

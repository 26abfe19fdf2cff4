"""Conversion of NumPy arrays, actions and random generators to tensors that can be saved, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_WORD = 2**64 - 1


def as_tensor(value: Any) -> Any:
    """Returns a number or array as a tensor, the parts of a tuple one by one; None stays None.

    The dtype is kept exactly: some environments compute in float32.
    """
    if isinstance(value, tuple):
        return tuple(as_tensor(part) for part in value)
    return None if value is None else torch.from_numpy(np.array(value))


def from_tensor(saved: Any) -> Any:
    """Returns the NumPy array or number that `as_tensor` converted."""
    if isinstance(saved, tuple | list):
        return tuple(from_tensor(part) for part in saved)
    return None if saved is None else saved.cpu().numpy().copy()[()]


def rng_state(generator: np.random.Generator) -> Tensor:
    """Returns the state of a PCG64 generator as int64 [6]."""
    state: Any = generator.bit_generator.state
    inner = state["state"]
    parts = [inner["state"] >> 64, inner["state"] & _WORD, inner["inc"] >> 64, inner["inc"] & _WORD]
    return torch.from_numpy(np.array([*parts, state["has_uint32"], state["uinteger"]], dtype=np.uint64).view(np.int64))


def set_rng_state(generator: np.random.Generator, saved: Tensor) -> None:
    """Restores the state of a PCG64 generator that `rng_state` returned."""
    high, low, inc_high, inc_low, has_uint32, uinteger = saved.cpu().numpy().view(np.uint64).tolist()
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }

"""Numbers that change between the calls of a captured or traced function, see `coterie.core.graphed` and
`coterie.kernels.tracing`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor


class _Tracing(threading.local):
    """True in a thread that traces a function."""

    on: bool = False


_tracing = _Tracing()


@contextmanager
def as_tensors() -> Iterator[None]:
    """Context manager: operations take numbers as tensors on every device, since this thread traces them."""
    before, _tracing.on = _tracing.on, True
    try:
        yield
    finally:
        _tracing.on = before


@final
class DeviceNumber:
    """A number that CUDA graphs and traces read again in each call.

    Operations on a GPU take it as a tensor [] that is changed in place. The tensor is float64: operations with float32
    tensors round it to float32, and so they do with a Python number. Results with either are equal.

    Args:
        value: The number.
        device: Device of the operations that read it.
    """

    def __init__(self, value: float, device: torch.device):
        self._value = value
        with torch.inference_mode(False):  # so that it can be changed anywhere
            self._tensor = torch.full((), value, dtype=torch.float64, device=device)

    @property
    def value(self) -> float:
        """The number, for the host."""
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        self._value = value
        self._tensor.fill_(value)

    @property
    def operand(self) -> float | Tensor:
        """The number as operations on the device take it."""
        return self._tensor if _tracing.on or self._tensor.device.type == "cuda" else self._value

"""Constants and numbers that operations on a device read without a copy from the host.

Constant tensors are copied to a device once, because a copy per step could not be part of a CUDA graph. Numbers that
change between the calls of a function that is captured as a CUDA graph or traced are tensors there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_made: dict[tuple[Any, torch.device, torch.dtype], Tensor] = {}


def constant(values: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns nested tuples or ranges of numbers as a tensor, which must not be changed."""
    key = (values, device, dtype)
    found = _made.get(key)
    if found is None:
        found = _make(values, device, dtype)
        if not isinstance(found, FakeTensor):  # an export traces with tensors that have no values
            _made[key] = found
    return found


def _make(values: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # the first use may be in acting, and a later one in training
        if isinstance(values, range):  # made on the device, without a copy
            return torch.arange(values.start, values.stop, values.step, dtype=dtype, device=device)
        return torch.tensor(values, dtype=dtype, device=device)


class DeviceConstant:
    """A constant tensor on all devices on which it is used."""

    def __init__(self, tensor: Tensor):
        self._by_device = {tensor.device: tensor}
        self.tensor = tensor

    def on(self, device: torch.device) -> Tensor:
        """Returns the tensor on a device; it must not be changed."""
        found = self._by_device.get(device)
        if found is None:
            with torch.inference_mode(False):
                found = self.tensor.to(device)
            if not isinstance(found, FakeTensor):
                self._by_device[device] = found
        return found


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


def is_tracing() -> bool:
    """True if operations take numbers as tensors since this thread traces them."""
    return _tracing.on


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

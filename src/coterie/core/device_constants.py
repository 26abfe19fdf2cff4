"""Constant tensors, copied to a device once: a copy per step could not be part of a CUDA graph."""

from __future__ import annotations

from typing import Any

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

"""Numbers that change between the calls of a captured function, see `coterie.core.graphed`."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor


@final
class DeviceNumber:
    """A number that a CUDA graph reads again in each replay.

    On a GPU it is a tensor [] that is changed in place. The tensor is float64: operations with float32 tensors round it
    to float32, and so they do with a Python number. Results with either are equal.

    Args:
        value: The number.
        device: Device of the operations that read it.
    """

    def __init__(self, value: float, device: torch.device):
        self._value = value
        self._tensor = None
        if device.type == "cuda":
            self._tensor = torch.full((), value, dtype=torch.float64, device=device)

    @property
    def value(self) -> float:
        """The number, for the host."""
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        self._value = value
        if self._tensor is not None:
            self._tensor.fill_(value)

    @property
    def operand(self) -> float | Tensor:
        """The number as operations on the device take it."""
        return self._value if self._tensor is None else self._tensor

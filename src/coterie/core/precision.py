"""The setting `precision`: the type in which layers multiply. Parameters, activations and losses are float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # configurations use this module without PyTorch
    from torch import Tensor

Setting = Literal["float32", "bfloat16"]

reduced = False
"""True while layers multiply in bfloat16. Only this module assigns to it."""


def configure(setting: Setting) -> None:
    """Sets the type in which the layers of this process multiply."""
    global reduced
    reduced = setting == "bfloat16"


def in_bfloat16(operation: Callable[..., Tensor], *tensors: Tensor, **options: int | tuple[int, int]) -> Tensor:
    """Returns the float32 result of an operation on `tensors` rounded to bfloat16; gradients are float32, too."""
    return operation(*(x.bfloat16() for x in tensors), **options).float()

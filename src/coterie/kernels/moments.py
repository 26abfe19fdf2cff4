"""Moments of data, see `coterie.functional.statistics.update_moments`, as one call."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.kernels import native


def update_moments(
    before: tuple[Tensor, Tensor, Tensor], x: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns count [], mean and summed squared deviation [D] of the old data and of x, float64.

    Args:
        before: The same of the old data.
        x: [.., D].
        valid: [..] bool, True where x counts; None: everywhere.

    Returns:
        None if there is no kernel for the types, the shapes or the device.
    """
    columns = x.shape[-1]
    if native.is_traced(x) or not native.is_supported(x):  # it is not an operator, which could be recorded
        return None
    if any(not y.is_cpu or y.dtype is not torch.float64 for y in before):
        return None
    if not columns or any(y.shape != (columns,) for y in before[1:]):
        return None
    if valid is not None and (valid.shape != x.shape[:-1] or valid.dtype is not torch.bool or not valid.is_cpu):
        return None
    old = [y.contiguous() for y in before]
    count, mean, deviation = after = [torch.empty_like(y) for y in old]
    flags = None if valid is None else valid.contiguous()
    sizes = native.integers(x.numel() // columns, columns)
    native.call("moments", x.dtype, sizes, x.contiguous(), flags, native.pointers([*old, *after]))
    return count, mean, deviation

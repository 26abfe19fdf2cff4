"""Random initialization of weight matrices."""

from __future__ import annotations

import torch
from torch import Tensor, nn

GAINS: dict[str, float] = {"tanh": 5 / 3, "relu": 2**0.5, "elu": 2**0.5, "gelu": 2**0.5, "silu": 2**0.5}
"""Gains of orthogonal weights that preserve the scale of activations."""


def orthogonal(rows: int, columns: int, *, sets: int | None, gain: float, generator: torch.Generator) -> Tensor:
    """Returns orthogonal matrices [rows, columns] or [sets, rows, columns].

    They are drawn on the CPU, so that a seed gives the same weights on every device.
    """
    draws = [torch.empty(rows, columns) for _ in range(sets or 1)]
    for draw in draws:
        nn.init.orthogonal_(draw, gain, generator)
    return draws[0] if sets is None else torch.stack(draws)


def xavier_normal(rows: int, columns: int, *, sets: int | None, generator: torch.Generator) -> Tensor:
    """Returns matrices [rows, columns] or [sets, rows, columns] from a normal distribution of variance
    2 / (rows + columns).

    Source: Glorot and Bengio 2010.
    """
    draws = [nn.init.xavier_normal_(torch.empty(rows, columns), generator=generator) for _ in range(sets or 1)]
    return draws[0] if sets is None else torch.stack(draws)

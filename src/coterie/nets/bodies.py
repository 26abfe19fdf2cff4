"""Bodies: observation in, features out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from coterie.nets.layers import ACTIVATIONS, GAINS, Activation, Init, LayerNorm, Linear


class Mlp(nn.Module):
    """Layers of `hidden` units, each with the activation behind it: [M, in] to [M, hidden[-1]] (or [G, M, ..] with
    sets).

    layer_norm: normalise the input and what each activation gives.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        activation: Activation,
        layer_norm: bool,
        sets: int | None,
        generator: torch.Generator,
        init: Init = "orthogonal",
    ):
        super().__init__()
        sizes = [inputs, *hidden]
        self.features = sizes[-1]
        self.activation = ACTIVATIONS[activation]
        self.layers = nn.ModuleList(Linear(a, b, sets, GAINS[activation], generator, init) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(LayerNorm(size, sets) for size in sizes) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        if self.norms is None:
            for layer in self.layers:
                x = self.activation(layer(x))
            return x
        x = self.norms[0](x)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):  # pyright: ignore[reportIndexIssue, reportArgumentType]
            x = norm(self.activation(layer(x)))
        return x

"""From what a role observes to features: vectors as they are, pictures through convolutions, several sensors joined."""

from __future__ import annotations

from itertools import pairwise

import torch
from gymnasium import spaces
from torch import Tensor, nn

from coterie.nets.layers import GAINS, orthogonal
from coterie.types import Tree

Layer = tuple[int, int, int]
"""Channels, kernel and stride of a convolution."""

NATURE: tuple[Layer, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""For pictures of 36 pixels a side and more. Source: Mnih et al. 2015."""
SMALL: tuple[Layer, ...] = ((16, 3, 1), (32, 3, 2))
"""For smaller ones."""


def layout(space: spaces.Space) -> tuple | None:
    """What a network has to know of an observation space: the shape of a Box, or those of a Dict's sensors by name;
    None for spaces that none reads.
    """
    if isinstance(space, spaces.Box) and len(space.shape) in (1, 3):
        return tuple(space.shape)
    if isinstance(space, spaces.Dict):
        parts = {name: layout(part) for name, part in space.spaces.items()}
        return None if None in parts.values() else tuple(parts.items())
    return None


def together(parts: list[Tree], space: spaces.Space) -> Tree:
    """Observations of one space [.., n, ..] side by side along the agent axis."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(space, spaces.Dict):
        return {name: together([part[name] for part in parts], inner) for name, inner in space.spaces.items()}
    return torch.cat(parts, -1 - len(space.shape or ()))


class Cnn(nn.Module):
    """Convolutions with ReLU behind each, flattened: pictures [M, H, W, C] to [M, D], or [G, M, ..] with `sets` sets.

    8-bit pictures are divided by 255.
    """

    def __init__(self, shape: tuple[int, ...], sets: int | None, generator: torch.Generator):
        super().__init__()
        height, width, channels = shape
        self.layers = NATURE if min(height, width) >= 36 else SMALL
        self.sets = sets
        widths = [channels, *(layer[0] for layer in self.layers)]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for (before, after), (_, kernel, stride) in zip(pairwise(widths), self.layers, strict=True):
            drawn = orthogonal(after, before * kernel * kernel, sets, GAINS["relu"], generator)
            self.weights.append(nn.Parameter(drawn.reshape(-1, before, kernel, kernel)))
            self.biases.append(nn.Parameter(torch.zeros(after * (sets or 1))))
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        self.features = height * width * widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        groups = self.sets or 1
        if self.sets is not None:  # [G, M, H, W, C]: a group of channels is a set
            x = x.permute(1, 0, 4, 2, 3).flatten(1, 2)
        else:
            x = x.permute(0, 3, 1, 2)
        for weight, bias, (_, _, stride) in zip(self.weights, self.biases, self.layers, strict=True):
            x = nn.functional.conv2d(x, weight, bias, stride, groups=groups).relu()
        if self.sets is None:
            return x.flatten(1)
        return x.unflatten(1, (groups, -1)).flatten(2).transpose(0, 1)


class Sensors(nn.Module):
    """Everything that an agent of a role observes as one vector: [.., n, ..] to [.., n, features].

    space: a Box of one axis (as it is), a Box [H, W, C] (convolutions), or a Dict of these (joined in its order). One
    set of convolutions for all agents, or one for each of the n (`sets`).
    """

    def __init__(self, space: spaces.Space, sets: int | None, generator: torch.Generator):
        super().__init__()
        self.space, self.sets = space, sets
        self.parts = nn.ModuleDict()
        self.cnn = None
        if isinstance(space, spaces.Dict):
            self.parts.update({name: Sensors(part, sets, generator) for name, part in space.spaces.items()})
            self.features: int = sum(part.features for part in self.parts.values())  # pyright: ignore
        else:
            shape = space.shape or ()
            if len(shape) == 3:
                self.cnn = Cnn(shape, sets, generator)
            self.features = sum(shape) if self.cnn is None else self.cnn.features

    def forward(self, obs: Tree) -> Tensor:
        if self.parts:
            return torch.cat([part(obs[name]) for name, part in self.parts.items()], -1)
        if self.cnn is None:
            return obs if obs.is_floating_point() else obs.float()
        lead = obs.shape[:-3]
        if self.sets is None:
            return self.cnn(obs.flatten(0, -4)).unflatten(0, lead)
        flat = self.cnn(obs.flatten(0, -5).transpose(0, 1))  # [n, M, D]
        return flat.transpose(0, 1).unflatten(0, lead[:-1])

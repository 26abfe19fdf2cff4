"""Observation encoders: vectors unchanged, images through convolutions, dictionaries of sensors concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from gymnasium import spaces
from torch import Tensor, nn

from coterie.core import precision
from coterie.core.specs import RoleSpec
from coterie.core.tree import Tree
from coterie.nets.by_name import ModulesByName
from coterie.nets.layers import GAINS, VectorEncoder, orthogonal

ConvLayer = tuple[int, int, int]
"""Channels, kernel size and stride of a convolution."""

NATURE_CNN: tuple[ConvLayer, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""For images of at least 36 x 36 pixels. Source: Mnih et al. 2015."""
SMALL_CNN: tuple[ConvLayer, ...] = ((16, 3, 1), (32, 3, 2))
"""For smaller images."""
TINY_CNN: tuple[ConvLayer, ...] = ((32, 1, 1),)
"""For images with a side of less than 5 pixels, which the others would reduce to nothing: features of every pixel."""


def observation_layout(space: spaces.Space) -> tuple | None:
    """Returns the shape of a Box or the shapes of a Dict's sensors by name; None if no network can read the space."""
    if isinstance(space, spaces.Box) and len(space.shape) in (1, 3):
        return tuple(space.shape)
    if isinstance(space, spaces.Dict):
        parts = {name: observation_layout(part) for name, part in space.spaces.items()}
        return None if None in parts.values() else tuple(parts.items())
    return None


def can_share_network(roles: Sequence[RoleSpec]) -> bool:
    """Returns True if one network can read all roles: observations of one shape, actions of one kind."""
    first = roles[0]
    layout = observation_layout(first.observation_space)
    return all(observation_layout(r.observation_space) == layout and r.action == first.action for r in roles)


def concatenate_observations(parts: list[Tree], space: spaces.Space) -> Tree:
    """Concatenates observations of one space [.., n, ..] along the agent axis."""
    if isinstance(space, spaces.Dict):
        return {
            name: concatenate_observations([part[name] for part in parts], inner)
            for name, inner in space.spaces.items()
        }
    return torch.cat(parts, -1 - len(space.shape or ()))


class CNN(nn.Module):
    """Convolutions with ReLU, flattened: images [M, H, W, C] to [M, D], or [G, M, ..] with `sets` sets.

    8-bit images are divided by 255.
    """

    def __init__(self, shape: tuple[int, ...], sets: int | None, generator: torch.Generator):
        super().__init__()
        height, width, channels = shape
        side = min(height, width)
        self.layers = NATURE_CNN if side >= 36 else SMALL_CNN if side >= 5 else TINY_CNN
        self.sets = sets
        widths = [channels, *(layer[0] for layer in self.layers)]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for (in_channels, out_channels), (_, kernel, stride) in zip(pairwise(widths), self.layers, strict=True):
            columns = in_channels * kernel * kernel
            weight = orthogonal(out_channels, columns, sets=sets, gain=GAINS["relu"], generator=generator)
            self.weights.append(nn.Parameter(weight.reshape(-1, in_channels, kernel, kernel)))
            self.biases.append(nn.Parameter(torch.zeros(out_channels * (sets or 1))))
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        self.features = height * width * widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        groups = self.sets or 1
        if self.sets is not None:  # [G, M, H, W, C]: a grouped convolution with one group of channels per set
            x = x.permute(1, 0, 4, 2, 3).flatten(1, 2)
        else:
            x = x.permute(0, 3, 1, 2)
        for weight, bias, (_, _, stride) in zip(self.weights, self.biases, self.layers, strict=True):
            if precision.reduced:
                x = precision.in_bfloat16(nn.functional.conv2d, x, weight, bias, stride=stride, groups=groups).relu()
            else:
                x = nn.functional.conv2d(x, weight, bias, stride, groups=groups).relu()
        if self.sets is None:
            return x.flatten(1)
        return x.unflatten(1, (groups, -1)).flatten(2).transpose(0, 1)


class ImageEncoder(nn.Module):
    """Images [.., n, H, W, C] to features [.., n, D]: one CNN for all agents, or one for each of the n."""

    def __init__(self, shape: tuple[int, ...], sets: int | None, generator: torch.Generator):
        super().__init__()
        self.sets = sets
        self.cnn = CNN(shape, sets, generator)
        self.features = self.cnn.features

    def forward(self, obs: Tensor) -> Tensor:
        lead = obs.shape[:-3]
        if self.sets is None:
            return self.cnn(obs.flatten(0, -4)).unflatten(0, lead)
        features = self.cnn(obs.flatten(0, -5).transpose(0, 1))  # [n, M, D]
        return features.transpose(0, 1).unflatten(0, lead[:-1])


class DictEncoder(nn.Module):
    """Features of all sensors of a Dict space, concatenated in its order."""

    def __init__(self, space: spaces.Dict, sets: int | None, generator: torch.Generator):
        super().__init__()
        self.sensors = ModulesByName(
            {name: build_encoder(part, sets, generator) for name, part in space.spaces.items()}
        )
        self.features: int = sum(part.features for part in self.sensors.values())  # pyright: ignore

    def forward(self, obs: dict[str, Tree]) -> Tensor:
        return torch.cat([sensor(obs[name]) for name, sensor in self.sensors.items()], -1)


Encoder = VectorEncoder | ImageEncoder | DictEncoder


def build_encoder(space: spaces.Space, sets: int | None, generator: torch.Generator) -> Encoder:
    """Returns the encoder of an observation space: [.., n, ..] to [.., n, features].

    Args:
        space: A Box of one axis, a Box [H, W, C], or a Dict of these.
        sets: Number of parameter sets, one for each of the n agents; None for one set that all agents share.
        generator: Source of the initial weights.
    """
    if isinstance(space, spaces.Dict):
        return DictEncoder(space, sets, generator)
    shape = space.shape or ()
    return ImageEncoder(shape, sets, generator) if len(shape) == 3 else VectorEncoder(sum(shape))

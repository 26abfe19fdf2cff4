"""Normalization of observations by running statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.tree import Tree
from coterie.functional.statistics import Moments, Reduction, initial_moments, mean_and_std, update_moments
from coterie.nets.by_name import ModulesByName
from coterie.nets.team import Block


class RunningScale(nn.Module):
    """Scales a vector by running mean and standard deviation, and clips it to [-clip, clip]."""

    def __init__(self, size: int, device: torch.device, clip: float = 10.0):
        super().__init__()
        self._clip = clip
        self.register_buffer("mean", torch.zeros(size, device=device))
        self.register_buffer("std", torch.ones(size, device=device))

    def set(self, moments: Moments) -> None:
        """Sets mean and standard deviation, in place, since CUDA graphs read them where they are."""
        for name, value in zip(("mean", "std"), mean_and_std(moments), strict=True):
            self.get_buffer(name).copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x [.., size] on the scale of the statistics."""
        return ((x - self.get_buffer("mean")) / self.get_buffer("std")).clamp(-self._clip, self._clip)


class ObservationNormalizer:
    """Normalizes vector observations by their running mean and standard deviation and clips them to [-clip, clip].

    Blocks have statistics of their own; images, and observations of roles in no block, are left unchanged.

    Attributes:
        scales: The scale of each block, whose buffers normalization reads.
    """

    def __init__(self, blocks: tuple[Block, ...], device: torch.device, clip: float = 10.0):
        self._blocks = tuple(block for block in blocks if len(obs_shape(block)) == 1)
        self._device, sizes = device, {block.name: obs_shape(block)[0] for block in self._blocks}
        self._moments: dict[str, Moments] = {name: initial_moments(size, device) for name, size in sizes.items()}
        self.scales = ModulesByName({name: RunningScale(size, device, clip) for name, size in sizes.items()})

    def __call__(self, obs: dict[str, Tree]) -> dict[str, Tree]:
        """Returns normalized observations by role [.., n, D]."""
        normalized = dict(obs)
        for block, scale in zip(self._blocks, self.scales.values(), strict=True):
            for role in block.roles:
                normalized[role.name] = scale(obs[role.name])
        return normalized

    def update(self, obs: dict[str, Tree], valid: Tensor, reduction: Reduction | None = None) -> None:
        """Adds observations by role [.., n, D] to the statistics where `valid` [.., N] is True."""
        for block in self._blocks:
            block_valid = valid[..., block.start : block.stop]
            self._moments[block.name] = update_moments(
                self._moments[block.name], block.join_obs(obs), block_valid, reduction
            )
        self._set_scales()

    def _set_scales(self) -> None:
        for moments, scale in zip(self._moments.values(), self.scales.values(), strict=True):
            scale.set(moments)  # pyright: ignore[reportCallIssue]

    def state_dict(self) -> dict[str, Any]:
        return self._moments

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments = {
            block.name: {key: value.to(self._device) for key, value in state[block.name].items()}
            for block in self._blocks
        }
        self._set_scales()


def obs_shape(block: Block) -> tuple[int, ...]:
    """Returns the shape of an agent's observation; () if it is not one array."""
    return block.roles[0].observation_space.shape or ()

"""Normalization of observations by running statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.tree import Tree
from coterie.functional.statistics import Moments, Reduction, initial_moments, mean_and_std, update_moments
from coterie.nets.by_name import key_of
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

    Blocks have statistics of their own; images are left unchanged.

    Attributes:
        buffers: Module with the buffers `mean_<block>` and `std_<block>` that normalization reads.
    """

    def __init__(self, blocks: tuple[Block, ...], device: torch.device, clip: float = 10.0):
        self._blocks = tuple(block for block in blocks if len(obs_shape(block)) == 1)
        self._device, self._clip = device, clip
        self._moments: dict[str, Moments] = {b.name: initial_moments(obs_shape(b)[0], device) for b in self._blocks}
        self.buffers = nn.Module()
        self._update_buffers()

    def _update_buffers(self) -> None:
        buffers = dict(self.buffers.named_buffers())
        for name, moments in self._moments.items():
            for part, value in zip(("mean", "std"), mean_and_std(moments), strict=True):
                key = key_of(f"{part}_{name}")
                if key in buffers:
                    buffers[key].copy_(value)  # in place, since CUDA graphs read it where it is
                else:
                    self.buffers.register_buffer(key, value)

    def __call__(self, obs: dict[str, Tree]) -> dict[str, Tree]:
        """Returns normalized observations by role [.., n, D]."""
        normalized = dict(obs)
        for block in self._blocks:
            mean, std = (self.buffers.get_buffer(key_of(f"{part}_{block.name}")) for part in ("mean", "std"))
            for role in block.roles:
                normalized[role.name] = ((obs[role.name] - mean) / std).clamp(-self._clip, self._clip)
        return normalized

    def update(self, obs: dict[str, Tree], valid: Tensor, reduction: Reduction | None = None) -> None:
        """Adds observations by role [.., n, D] to the statistics where `valid` [.., N] is True."""
        for block in self._blocks:
            block_valid = valid[..., block.start : block.stop]
            self._moments[block.name] = update_moments(
                self._moments[block.name], block.join_obs(obs), block_valid, reduction
            )
        self._update_buffers()

    def state_dict(self) -> dict[str, Any]:
        return self._moments

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments = {
            name: {key: value.to(self._device) for key, value in moments.items()} for name, moments in state.items()
        }
        self._update_buffers()


def obs_shape(block: Block) -> tuple[int, ...]:
    """Returns the shape of an agent's observation; () if it is not one array."""
    return block.roles[0].observation_space.shape or ()

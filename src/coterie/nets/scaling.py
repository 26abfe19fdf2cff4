"""Running statistics of observations, and observations as networks read them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.math.running import Moments, count_scale, count_start, count_update
from coterie.nets.team import Block
from coterie.types import Tree


class ObservationScale:
    """Shifts and scales vectors by their running mean and spread and clips them to [-clip, clip]; pictures stay as
    they are. Blocks of agents that share a network share statistics. Does nothing where `on` is False.
    """

    def __init__(self, blocks: tuple[Block, ...], on: bool, device: torch.device, clip: float = 10.0):
        self._blocks = tuple(block for block in blocks if block.vector) if on else ()
        self._device, self._clip = device, clip
        self._moments: dict[str, Moments] = {b.name: count_start(b.features, device) for b in self._blocks}
        self.read = nn.Module()
        """What the networks' observations are made with, as buffers `mean_<block>` and `scale_<block>`."""
        self._renew()

    def _renew(self) -> None:
        for name, moments in self._moments.items():
            mean, scale = count_scale(moments)
            self.read.register_buffer(f"mean_{name}", mean)
            self.read.register_buffer(f"scale_{name}", scale)

    def __call__(self, obs: dict[str, Tree]) -> dict[str, Tree]:
        """Observations by role [.., n, D] as the networks read them."""
        if not self._blocks:
            return obs
        out = dict(obs)
        for block in self._blocks:
            mean, scale = (self.read.get_buffer(f"{part}_{block.name}") for part in ("mean", "scale"))
            for role in block.roles:
                out[role.name] = ((obs[role.name] - mean) / scale).clamp(-self._clip, self._clip)
        return out

    def observe(self, obs: dict[str, Tree], weight: Tensor) -> None:
        """Takes rows [.., n, D] into the statistics, once, where `weight` [.., N] holds."""
        for block in self._blocks:
            live = weight[..., block.start : block.stop]
            self._moments[block.name] = count_update(self._moments[block.name], block.gather(obs), live)
        self._renew()

    def state_dict(self) -> dict[str, Any]:
        return self._moments

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments = {
            name: {key: value.to(self._device) for key, value in moments.items()} for name, moments in state.items()
        }
        self._renew()

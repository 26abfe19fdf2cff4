"""Rewards divided by the running spread of their discounted sums, so that a strength means the same for long."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.math.curiosity import running_return
from coterie.math.running import count_scale, count_start, count_update

_LEAST = 1e-12
"""Variance below which rewards count as constant."""


class RewardScale:
    """Divides rewards [T, B, N] by the spread of their running returns; 1 before any were observed.

    Does nothing where `on` is False. Rewards are not shifted: their sign stays.
    """

    def __init__(self, on: bool, copies: int, agents: int, gamma: float, device: torch.device):
        self._on, self._gamma = on, gamma
        self._sums = torch.zeros(copies, agents, device=device)
        self._moments = count_start(1, device)

    def __call__(self, reward: Tensor) -> Tensor:
        return reward / count_scale(self._moments, _LEAST)[1] if self._on else reward

    def observe(self, reward: Tensor, live: Tensor) -> None:
        """Takes rewards as they were before the division into the statistics, once, where `live` [T, B, N] holds."""
        if self._on:
            sums = running_return(reward, live, self._sums, self._gamma)
            self._sums = sums[-1].clone()
            self._moments = count_update(self._moments, sums.unsqueeze(-1), live)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums, "moments": self._moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums = state["sums"].to(self._sums.device)
        self._moments = {name: x.to(self._sums.device) for name, x in state["moments"].items()}

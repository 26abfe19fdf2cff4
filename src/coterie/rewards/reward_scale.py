"""Scaling of rewards by the standard deviation of their discounted returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.math.intrinsic_rewards import running_return
from coterie.math.running_moments import initial_moments, mean_and_std, update_moments

_MIN_VARIANCE = 1e-12
"""Variance below which rewards count as constant."""


class RewardScale:
    """Divides rewards by the running standard deviation of their discounted returns.

    A weight thus keeps its meaning throughout a run. Rewards are not shifted, so that their sign is kept. Before the
    first observation they are unchanged.

    Args:
        enabled: False to leave rewards unchanged.
        num_envs: Number of environments.
        num_agents: Number of agents.
        gamma: Discount factor of the returns. None: 0.99.
        device: Device of the rewards.
    """

    def __init__(self, *, enabled: bool, num_envs: int, num_agents: int, gamma: float | None, device: torch.device):
        self._enabled, self._gamma = enabled, 0.99 if gamma is None else gamma
        self._returns = torch.zeros(num_envs, num_agents, device=device)
        self._moments = initial_moments(1, device)

    def __call__(self, reward: Tensor) -> Tensor:
        """Scales rewards [T, B, N]."""
        return reward / mean_and_std(self._moments, _MIN_VARIANCE)[1] if self._enabled else reward

    def observe(self, reward: Tensor, valid: Tensor) -> None:
        """Updates the statistics.

        Args:
            reward: Rewards before scaling, [T, B, N].
            valid: True where rewards count, [T, B, N] bool.
        """
        if self._enabled:
            returns = running_return(reward, valid, self._returns, self._gamma)
            self._returns = returns[-1].clone()
            self._moments = update_moments(self._moments, returns.unsqueeze(-1), valid)

    def state_dict(self) -> dict[str, Any]:
        """Returns the running returns and their moments."""
        return {"returns": self._returns, "moments": self._moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self._returns = state["returns"].to(self._returns.device)
        self._moments = {name: x.to(self._returns.device) for name, x in state["moments"].items()}

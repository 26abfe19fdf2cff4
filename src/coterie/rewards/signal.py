"""What every reward signal is: one team's reward for what it lived through, and a way to learn from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from coterie.types import TeamSpec, Window


class RewardSignal(ABC):
    """One team's signal: owns its networks, optimiser and normaliser.

    A window is first rewarded, before anything has learned from it, and then learned from.
    """

    @abstractmethod
    def __init__(self, team: TeamSpec, config: Any, copies: int, seed: int, device: torch.device) -> None:
        """For `copies` copies; `seed` is the signal's own."""

    @abstractmethod
    def reward(self, window: Window) -> Tensor:
        """The reward of every step [T, B, N] before it is weighted, without gradient; 0 where an agent did not act."""

    @abstractmethod
    def update(self, window: Window) -> dict[str, float]:
        """Learns from the window that `reward` was just asked about, and returns metrics."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that going on needs."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called."""

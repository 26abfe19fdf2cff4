"""What every reward signal is: one team's reward for what it lived through, and a way to learn from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.errors import UserError
from coterie.metrics import Metric
from coterie.nets.team import Share, alike
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


def reward_metrics(name: str, what: str) -> tuple[Metric, ...]:
    """What is logged of the reward `name`, e.g. `icm`; what: it in words."""
    return (
        Metric(f"reward/{name}_mean", "", f"{what} of an agent's step before it is weighted, mean", None, "mean"),
        Metric(f"reward/{name}_std", "", f"{what} of an agent's step before it is weighted, spread", None, "mean"),
        Metric(f"reward/{name}_strength", "", f"weight of {what} among the rewards", None, "last"),
    )


def seen(window: Window) -> Tensor:
    """[T, B, N]: the agent acted and saw what came of it."""
    return window.alive[:-1] & window.alive[1:] & window.acted[:-1, :, None]


def batches(where: Tensor, epochs: int, parts: int, shuffle: torch.Generator) -> Iterator[Tensor]:
    """Places t x B + b of rows in which anybody counts, dealt to so many parts in a new random order every epoch.

    where: [T, B, N] bool; no part is empty.
    """
    rows = where.any(-1).flatten().nonzero().squeeze(-1)
    for _ in range(epochs if len(rows) else 0):
        order = rows[torch.randperm(len(rows), generator=shuffle).to(rows.device)]
        yield from order.chunk(parts)


OBS_CLIP = 5.0
"""Spreads from the mean to which observations are clipped. Source: Burda et al. 2018, section 2.4."""


def reward_of(raw: Tensor, live: Tensor, updates: int) -> Tensor:
    """What is handed out [T, B, N]: nothing where an agent did not act, and nothing before the first update."""
    return torch.where(live, raw, 0.0) if updates else torch.zeros_like(raw)


def require_alike(name: str, team: TeamSpec, share: Share) -> None:
    """UserError if all agents are to share the signal's networks and their roles' spaces differ."""
    if share == "all" and not alike(team.roles):
        raise UserError(
            f"rewards.{name}.share=all needs roles with equal spaces, and those of team '{team.name}' differ: use role"
        )

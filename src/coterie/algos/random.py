"""The baseline that learns nothing: uniform actions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities
from coterie.policy import RandomPolicy
from coterie.types import TeamSpec, Window


class RandomConfig(BaseModel):
    """Settings of a team that acts at random."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    horizon: int = Field(128, ge=1, le=100_000)
    """Rows of a window; nothing is learned from them."""


class Random(Algorithm):
    """Draws uniformly among the available choices and from the range of numbers."""

    Config: ClassVar = RandomConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, learns=False)

    def __init__(
        self, team: TeamSpec, config: RandomConfig, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        self.policy = RandomPolicy(team, device)
        self.horizon = horizon or config.horizon

    def update(self, window: Window, progress: float) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])

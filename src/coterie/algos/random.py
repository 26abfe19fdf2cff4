"""A team that acts uniformly at random, as a baseline."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, AlgorithmContext, Capabilities
from coterie.core.types import Rollout
from coterie.policies.base import RandomPolicy


class RandomConfig(BaseModel):
    """Settings of a team that acts at random."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollout_length: int = Field(128, ge=1, le=100_000)
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class Random(Algorithm):
    """Draws available choices and continuous actions uniformly."""

    Config: ClassVar = RandomConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, learns=False)

    def __init__(self, config: RandomConfig, context: AlgorithmContext) -> None:
        self.policy = RandomPolicy(context.team, context.device)
        self.rollout_length = context.rollout_length or config.rollout_length

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])

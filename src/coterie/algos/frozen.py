"""A team that acts with the policy of another run's checkpoint and does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities
from coterie.borrowed import Borrowed, mismatch
from coterie.errors import UserError
from coterie.policy import Mode, Policy
from coterie.types import TeamSpec, Window


class FrozenConfig(BaseModel):
    """Settings of a team that acts with a trained policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """Folder of the run that the policy comes from."""
    team: str | None = None
    """The team of that run; the one of the same name if not given."""
    checkpoint: str = Field(default="best", pattern=r"^(best|last|\d+)$")
    """Which of the run's checkpoints: best, last, or one of so many steps."""
    horizon: int = Field(default=128, ge=1, le=100_000)
    """Rows of a window; nothing is learned from them."""


class Frozen(Algorithm):
    """Acts with a policy that whoever builds the run has loaded into `policy`."""

    Config: ClassVar = FrozenConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, learns=False)

    def __init__(
        self, team: TeamSpec, config: FrozenConfig, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        self.team, self.config, self.horizon = team, config, horizon or config.horizon
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The loaded policy. UserError before there is one."""
        if self._policy is None:
            raise UserError(f"team '{self.team.name}' is frozen and has no policy: give teams.{self.team.name}.run=RUN")
        return self._policy

    def adopt(self, policy: Policy, mode: Mode) -> None:
        """Acts with a policy of a team that has the same roles but for their names, picking actions by `mode`.
        UserError where spaces or numbers of agents differ.
        """
        found = mismatch(self.team, policy.team)
        if found is not None:
            raise UserError(
                f"team '{self.team.name}': {found}: choose a run of this environment with these settings, or name the "
                f"right one with teams.{self.team.name}.algo.team"
            )
        self._policy = Borrowed(self.team, policy, mode)

    def update(self, window: Window, progress: float) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])

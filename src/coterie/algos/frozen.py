"""A team that acts with the policy of another run's checkpoint and does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities
from coterie.errors import UserError
from coterie.policy import Policy
from coterie.types import RoleSpec, TeamSpec, Window


class FrozenConfig(BaseModel):
    """Settings of a team that acts with a trained policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """Folder of the run that the policy comes from."""
    team: str | None = None
    """The team of that run; the one of the same name if not given."""
    checkpoint: Literal["best", "last"] = "best"
    """Which of the run's checkpoints."""
    horizon: int = Field(128, ge=1, le=100_000)
    """Rows of a window; nothing is learned from them."""


def _needs(role: RoleSpec) -> str:
    """What a policy of the role depends on, in words."""
    return f"{role.n} agents that observe {role.observation_space.shape} and act in {role.action_space}"


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

    def adopt(self, policy: Policy) -> None:
        """Takes a policy of a team with the same roles. UserError where spaces or numbers of agents differ."""
        mine, other = ([role.name for role in team.roles] for team in (self.team, policy.team))
        if mine != other:
            raise UserError(
                f"team '{self.team.name}' has the roles {mine}, team '{policy.team.name}' of the frozen run {other}: "
                f"name the right one with teams.{self.team.name}.algo.team"
            )
        for role, trained in zip(self.team.roles, policy.team.roles, strict=True):
            if _needs(role) != _needs(trained):
                raise UserError(
                    f"team '{self.team.name}': role '{role.name}' has {_needs(role)}, and the frozen run was trained "
                    f"with {_needs(trained)}: choose a run of this environment with these settings"
                )
        self._policy = policy

    def update(self, window: Window, progress: float) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])

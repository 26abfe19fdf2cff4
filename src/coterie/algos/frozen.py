"""A team that acts with the policy of another run's checkpoint and does not learn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, AlgorithmContext, Capabilities
from coterie.config.schema import CheckpointName
from coterie.core.errors import UserError
from coterie.core.types import Rollout
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import RemappedPolicy, team_mismatch


class FrozenConfig(BaseModel):
    """Settings of a team that acts with a trained policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """Folder of the run that the policy comes from."""
    team: str | None = None
    """Name of the team in that run; null: the same name."""
    checkpoint: CheckpointName = "auto"
    """Checkpoint of that run: auto (the team's best), best, best:TEAM, last, or a number of steps, which takes the
    nearest one at or below it.
    """
    rollout_length: int = Field(default=128, ge=1, le=100_000)
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class Frozen(Algorithm):
    """Acts with the policy of `set_policy`."""

    Config: ClassVar = FrozenConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, learns=False)

    def __init__(self, config: FrozenConfig, context: AlgorithmContext) -> None:
        self.team, self.config = context.team, config
        self.rollout_length = context.rollout_length or config.rollout_length
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The policy. Raises UserError before `set_policy`."""
        if self._policy is None:
            raise UserError(
                f"team '{self.team.name}': it is frozen and has no policy. Set teams.{self.team.name}.run=RUN."
            )
        return self._policy

    def set_policy(self, policy: Policy, mode: Mode) -> None:
        """Sets the policy, which may be that of a team whose roles have other names.

        Args:
            policy: The policy.
            mode: Mode in which it acts.

        Raises:
            UserError: If spaces or numbers of agents differ.
        """
        found = team_mismatch(self.team, policy.team)
        if found is not None:
            raise UserError(
                f"team '{self.team.name}': {found}. Use a run of this environment with these settings, or name the "
                f"right team with teams.{self.team.name}.algo.team=TEAM."
            )
        self._policy = RemappedPolicy(self.team, policy, mode)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])

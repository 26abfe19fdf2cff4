"""Teams that learn nothing: they act at random, by the policy of another run (frozen), or by a script, which the
environment provides or the user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, AlgorithmContext, Capabilities
from coterie.config.schema import CheckpointName
from coterie.core.errors import UserError, one_line
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Rollout, Timestep
from coterie.policies.base import Mode, Policy, RandomPolicy
from coterie.policies.remapped import RemappedPolicy, team_mismatch


class _Unlearned(Algorithm):
    """Base class of algorithms that learn nothing, and whose policy has the only state."""

    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, learns=False)

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])


class RandomConfig(BaseModel):
    """Settings of a team that acts at random."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollout_length: int = Field(128, ge=1, le=10**6)
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class Random(_Unlearned):
    """Draws available choices and continuous actions uniformly."""

    Config: ClassVar = RandomConfig

    def __init__(self, config: RandomConfig, context: AlgorithmContext) -> None:
        self.policy = RandomPolicy(context.team, context.device)
        self.rollout_length = context.rollout_length or config.rollout_length


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
    rollout_length: int = Field(default=128, ge=1, le=10**6)
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class Frozen(_Unlearned):
    """Acts with the policy of `set_policy`."""

    Config: ClassVar = FrozenConfig

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


Script = Callable[[Timestep], dict[str, Action]]
"""Maps a timestep of the team to the actions of each role. Has no state and draws no random numbers."""


class ScriptedConfig(BaseModel):
    """Settings of a team that acts by a script."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    script: str | None = None
    """Name of a script of the environment (see `coterie list envs`), or your own as package.module:make; null: the
    first script of each role.
    """
    rollout_length: int = Field(128, ge=1, le=10**6)
    """Steps per environment between updates, including the reset step after each episode; nothing is learned."""


class ScriptedPolicy(Policy):
    """Acts by a script, equally in all modes.

    Args:
        team: The team.
        script: Computes the actions.
        name: Name of the script in error messages.
        checked: Check the script's actions at each timestep, as for a user's own script.
        device: Device of timesteps and actions.
    """

    def __init__(self, team: TeamSpec, script: Script, name: str, checked: bool, device: torch.device):
        self.team, self.device = team, device
        self._script, self._name, self._checked = script, name, checked

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        return {}

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        return [{} for _ in range(steps)]

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        if not self._checked:
            return self._script(timestep), hidden_state, {}
        try:
            given = self._script(timestep)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self._place()} failed: {one_line(error)}. Fix the script.") from error
        self._check(given, timestep)
        return given, hidden_state, {}

    def _place(self) -> str:
        return f"team '{self.team.name}': script '{self._name}'"

    def _check(self, given: Any, timestep: Timestep) -> None:
        """Raises UserError if the script's actions do not fit the team."""
        names = [role.name for role in self.team.roles]
        if not isinstance(given, dict) or set(given) != set(names):
            found = f"the roles {list(given)}" if isinstance(given, dict) else f"a {type(given).__name__}"
            raise UserError(f"{self._place()} returned {found}. Return a dict with an Action for each of {names}.")
        for role in self.team.roles:
            self._check_action(role, given[role.name], timestep)

    def _check_action(self, role: RoleSpec, action: Any, timestep: Timestep) -> None:
        if not isinstance(action, Action):
            raise UserError(
                f"{self._place()} returned a {type(action).__name__} for role '{role.name}'. "
                "Return a coterie.core.types.Action."
            )
        num_envs = len(timestep.acted)
        for part, found, size, dtype in (
            ("discrete", action.discrete, len(role.action.choices), torch.int64),
            ("continuous", action.continuous, role.action.continuous, torch.float32),
        ):
            wanted = f"{dtype} [{num_envs}, {role.n}, {size}] on {timestep.acted.device}".removeprefix("torch.")
            if size == 0:
                if found is not None:
                    raise UserError(
                        f"{self._place()} returned {part} actions for role '{role.name}', which has none. "
                        "Leave them None."
                    )
            elif not isinstance(found, Tensor):
                raise UserError(f"{self._place()} returned no {part} actions for role '{role.name}'. Return {wanted}.")
            elif (tuple(found.shape), found.dtype) != ((num_envs, role.n, size), dtype) or (
                found.device != timestep.acted.device
            ):
                form = f"{found.dtype} {list(found.shape)} on {found.device}".removeprefix("torch.")
                raise UserError(
                    f"{self._place()} returned {form} as {part} actions of role '{role.name}'. Return {wanted}, by "
                    "environment, agent and component."
                )
        if action.discrete is not None:
            self._check_choices(role, action.discrete, timestep.action_mask.get(role.name))

    def _check_choices(self, role: RoleSpec, chosen: Tensor, mask: Tensor | None) -> None:
        """Raises UserError for a choice that does not exist or is masked."""
        counts = torch.tensor(role.action.choices, device=chosen.device)
        outside = (chosen < 0) | (chosen >= counts)
        if bool(outside.any()):
            env, agent, part = outside.nonzero()[0].tolist()
            raise UserError(
                f"{self._place()} chose {int(chosen[env, agent, part])} for agent '{role.agents[agent]}' in "
                f"environment {env}. Choose 0 to {role.action.choices[part] - 1}."
            )
        if mask is None:
            return
        index = chosen + (counts.cumsum(0) - counts)
        masked = ~mask.gather(-1, index)
        if bool(masked.any()):
            env, agent, part = masked.nonzero()[0].tolist()
            raise UserError(
                f"{self._place()} chose {int(chosen[env, agent, part])} for agent '{role.agents[agent]}' in "
                f"environment {env}, which is masked. Choose where timestep.action_mask['{role.name}'] is True."
            )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Scripted(_Unlearned):
    """Acts by the script of `set_script`."""

    Config: ClassVar = ScriptedConfig

    def __init__(self, config: ScriptedConfig, context: AlgorithmContext) -> None:
        self.team, self.config = context.team, config
        self.rollout_length = context.rollout_length or config.rollout_length
        self._device = context.device
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The script as a policy. Raises UserError before `set_script`."""
        if self._policy is None:
            raise UserError(f"team '{self.team.name}': it is scripted and has no script. Set algo.script=NAME.")
        return self._policy

    def set_script(self, script: Script, name: str, checked: bool) -> None:
        """Sets the script; arguments as in `ScriptedPolicy`."""
        self._policy = ScriptedPolicy(self.team, script, name, checked, device=self._device)

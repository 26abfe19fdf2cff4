"""A team that acts by a rule: one that its environment brings, or a user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.algos.algorithm import ALL_ACTIONS, Algorithm, Capabilities
from coterie.errors import UserError, one_line
from coterie.nets.memory import Carry
from coterie.policy import Mode, Policy
from coterie.types import Action, RoleSpec, Row, TeamSpec, Tree, Window

Script = Callable[[Row], dict[str, Action]]
"""What every role of a team does on a row of the team's: a function without memory and noise of its own."""


class ScriptedConfig(BaseModel):
    """Settings of a team that acts by a rule."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    script: str | None = None
    """The rule: a script of the environment (`coterie list envs` shows them), or your own as package.module:make; by
    default each role's first one in the environment.
    """
    horizon: int = Field(128, ge=1, le=100_000)
    """Rows of a window; nothing is learned from them."""


class ScriptedPolicy(Policy):
    """Acts by a script, the same in every mode.

    name: the script's, for messages; checked: what the script gives is looked at on every row, as a user's own is.
    """

    def __init__(self, team: TeamSpec, script: Script, name: str, checked: bool, device: torch.device):
        self.team, self.device = team, device
        self._script, self._name, self._checked = script, name, checked

    def start(self, copies: int) -> Carry:
        return {}

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        return [{} for _ in range(steps)]

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        if not self._checked:
            return self._script(row), carry, {}
        try:
            given = self._script(row)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self._who()} failed: {one_line(error)}; mend the script") from error
        return self._fitting(given, row), carry, {}

    def _who(self) -> str:
        return f"team '{self.team.name}': script '{self._name}'"

    def _fitting(self, given: Any, row: Row) -> dict[str, Action]:
        """What the script gave. UserError if the environment could make nothing of it."""
        names = [role.name for role in self.team.roles]
        if not isinstance(given, dict) or set(given) != set(names):
            found = f"the roles {list(given)}" if isinstance(given, dict) else f"a {type(given).__name__}"
            raise UserError(f"{self._who()} gave {found}: expected a dict with an Action for each of {names}")
        for role in self.team.roles:
            self._check(role, given[role.name], row)
        return given

    def _check(self, role: RoleSpec, action: Any, row: Row) -> None:
        if not isinstance(action, Action):
            raise UserError(
                f"{self._who()} gave a {type(action).__name__} for role '{role.name}': expected a coterie.types.Action"
            )
        copies = len(row.acted)
        for part, size, dtype in (
            ("discrete", len(role.action.choices), torch.int64),
            ("continuous", role.action.continuous, torch.float32),
        ):
            found = getattr(action, part)
            wanted = f"{dtype} [{copies}, {role.n}, {size}] on {row.acted.device}".removeprefix("torch.")
            if size == 0:
                if found is not None:
                    raise UserError(f"{self._who()} gave {part} actions for role '{role.name}', which has none")
            elif not isinstance(found, Tensor):
                raise UserError(f"{self._who()} gave no {part} actions for role '{role.name}': expected {wanted}")
            elif (tuple(found.shape), found.dtype) != ((copies, role.n, size), dtype) or (
                found.device != row.acted.device
            ):
                form = f"{found.dtype} {list(found.shape)} on {found.device}".removeprefix("torch.")
                raise UserError(
                    f"{self._who()} gave {form} as {part} actions of role '{role.name}': expected {wanted}, by copy, "
                    "agent and component"
                )
        if action.discrete is not None:
            self._check_choices(role, action.discrete, row.action_mask.get(role.name))

    def _check_choices(self, role: RoleSpec, chosen: Tensor, mask: Tensor | None) -> None:
        """UserError for a choice that there is not, or that the row's mask closes."""
        counts = torch.tensor(role.action.choices, device=chosen.device)
        outside = (chosen < 0) | (chosen >= counts)
        if bool(outside.any()):
            copy, agent, part = outside.nonzero()[0].tolist()
            raise UserError(
                f"{self._who()} chose {int(chosen[copy, agent, part])} for agent '{role.agents[agent]}' in copy {copy}:"
                f" expected 0 to {role.action.choices[part] - 1}"
            )
        if mask is None:
            return
        place = chosen + (counts.cumsum(0) - counts)
        closed = ~mask.gather(-1, place)
        if bool(closed.any()):
            copy, agent, part = closed.nonzero()[0].tolist()
            raise UserError(
                f"{self._who()} chose {int(chosen[copy, agent, part])} for agent '{role.agents[agent]}' in copy {copy},"
                f" which is closed to it there: choose where row.action_mask['{role.name}'] is True"
            )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Scripted(Algorithm):
    """Acts with a script that whoever builds the run has put into `policy`."""

    Config: ClassVar = ScriptedConfig
    capabilities: ClassVar = Capabilities(actions=ALL_ACTIONS, images=True, learns=False)

    def __init__(
        self, team: TeamSpec, config: ScriptedConfig, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        self.team, self.config, self.horizon = team, config, horizon or config.horizon
        self._device = device
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What acts. UserError before there is a script."""
        if self._policy is None:
            raise UserError(f"team '{self.team.name}' is scripted and has no script: give algo.script=NAME")
        return self._policy

    def adopt(self, script: Script, name: str, checked: bool) -> None:
        """Takes the script of that name; checked: what it gives is looked at on every row."""
        self._policy = ScriptedPolicy(self.team, script, name, checked, self._device)

    def update(self, window: Window, progress: float) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])

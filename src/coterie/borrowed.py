"""A policy that was made for another team, or in another run, acting for this one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.errors import UserError
from coterie.nets.memory import Carry
from coterie.policy import Inspectable, Mode, Policy, Thought
from coterie.types import Action, RoleSpec, Row, TeamSpec, Tree


def _needs(role: RoleSpec) -> str:
    """What a policy of the role depends on, in words."""
    return f"{role.n} agents that observe {role.observation_space.shape} and act in {role.action_space}"


def mismatch(team: TeamSpec, other: TeamSpec) -> str | None:
    """Why a policy of `other` cannot act for `team`, role by role in their order, in words; None if it can."""
    if len(team.roles) != len(other.roles):
        names = [", ".join(role.name for role in spec.roles) for spec in (team, other)]
        return f"team '{team.name}' has the roles {names[0]}, and team '{other.name}' {names[1]}"
    for mine, its in zip(team.roles, other.roles, strict=True):
        if _needs(mine) != _needs(its):
            return f"role '{mine.name}' has {_needs(mine)}, and the policy was trained with {_needs(its)}"
    return None


class Borrowed(Inspectable):
    """Acts for `team` with the policy of a team of the same spaces, role by role in their order whatever their names.

    mode: how actions are picked, whoever asks.
    """

    def __init__(self, team: TeamSpec, policy: Policy, mode: Mode):
        found = mismatch(team, policy.team)
        if found is not None:
            raise UserError(f"team '{team.name}' cannot act as team '{policy.team.name}' does: {found}")
        self.team, self.inner, self.networks = team, policy, policy.networks
        self._mode: Mode = mode
        self._names = [(mine.name, its.name) for mine, its in zip(team.roles, policy.team.roles, strict=True)]

    def start(self, copies: int) -> Carry:
        return self.inner.start(copies)

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        return self.inner.noise(steps, copies, generator)

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        action, carry, record = self.inner.act(self._seen(row), carry, noise, self._mode)
        return {mine: action[its] for mine, its in self._names}, carry, record

    def inspect(self, row: Row, carry: Carry, mode: Mode) -> dict[str, Thought]:
        """What the policy would draw from; nothing of one that does not show it."""
        if not isinstance(self.inner, Inspectable):
            return {mine: Thought() for mine, _ in self._names}
        shown = self.inner.inspect(self._seen(row), carry, self._mode)
        return {mine: shown[its] for mine, its in self._names}

    def _seen(self, row: Row) -> Row:
        """The row with the names of the roles that the policy was made for."""
        return replace(
            row,
            obs={its: row.obs[mine] for mine, its in self._names},
            action_mask={its: row.action_mask[mine] for mine, its in self._names if mine in row.action_mask},
        )

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

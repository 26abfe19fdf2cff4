"""A policy of another team or another run that acts for this team."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Timestep
from coterie.policies.base import ActionDistribution, InspectablePolicy, Mode, Policy


def _describe_spaces(role: RoleSpec) -> str:
    return f"{role.n} agents that observe {role.observation_space.shape} and act in {role.action_space}"


def team_mismatch(team: TeamSpec, other: TeamSpec) -> str | None:
    """Returns why a policy of `other` cannot act for `team`, with roles matched in order; None if it can."""
    if len(team.roles) != len(other.roles):
        names = [", ".join(role.name for role in spec.roles) for spec in (team, other)]
        return f"team '{team.name}' has the roles {names[0]}, and team '{other.name}' {names[1]}"
    for role, other_role in zip(team.roles, other.roles, strict=True):
        needed, trained = _describe_spaces(role), _describe_spaces(other_role)
        if needed != trained:
            return f"role '{role.name}' has {needed}, and the policy was trained with {trained}"
    return None


class RemappedPolicy(InspectablePolicy):
    """Acts for `team` with the policy of a team of the same spaces; roles are matched in order, not by name.

    Args:
        team: The team to act for.
        policy: Policy of another team.
        mode: Mode that is always used, whatever mode `act` is given.

    Raises:
        UserError: If the teams differ in their spaces.
    """

    def __init__(self, team: TeamSpec, policy: Policy, mode: Mode):
        mismatch = team_mismatch(team, policy.team)
        if mismatch is not None:
            raise UserError(f"team '{team.name}' cannot act as team '{policy.team.name}' does: {mismatch}")
        self.team, self.inner, self.networks = team, policy, policy.networks
        self.cuda_graphs = policy.cuda_graphs
        self.mode: Mode = mode
        self._names = [(own.name, its.name) for own, its in zip(team.roles, policy.team.roles, strict=True)]

    @property
    def constants(self) -> Hashable:
        return self.inner.constants

    def initial_hidden_state(self, num_envs: int) -> HiddenState:
        return self.inner.initial_hidden_state(num_envs)

    def draw_noise(self, steps: int, num_envs: int, generator: torch.Generator) -> list[Tree]:
        return self.inner.draw_noise(steps, num_envs, generator)

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Tensor]]:
        action, hidden_state, extras = self.inner.act(self._rename(timestep), hidden_state, noise, self.mode)
        return {own: action[its] for own, its in self._names}, hidden_state, extras

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        """Returns the inner policy's distributions, or empty ones if it cannot report them."""
        if not isinstance(self.inner, InspectablePolicy):
            return {own: ActionDistribution() for own, _ in self._names}
        by_role = self.inner.action_distribution(self._rename(timestep), hidden_state, self.mode)
        return {own: by_role[its] for own, its in self._names}

    def _rename(self, timestep: Timestep) -> Timestep:
        """The timestep with the role names of the inner policy's team."""
        return replace(
            timestep,
            obs={its: timestep.obs[own] for own, its in self._names},
            action_mask={its: timestep.action_mask[own] for own, its in self._names if own in timestep.action_mask},
        )

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

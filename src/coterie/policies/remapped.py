"""A policy of another team or another run that acts for this team."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, HiddenState, Timestep
from coterie.policies.base import ActionDistribution, InspectablePolicy, Mode, Policy


def _describe_spaces(role: RoleSpec) -> str:
    return f"{role.n} agents that observe {role.observation_space.shape} and act in {role.action_space}"


def matched_roles(team: TeamSpec, other: TeamSpec) -> list[tuple[RoleSpec, RoleSpec]]:
    """Returns each role of a team and that of another team with the same name; in order if names differ."""
    by_name = {role.name: role for role in other.roles}
    if by_name.keys() == {role.name for role in team.roles}:
        return [(role, by_name[role.name]) for role in team.roles]
    return list(zip(team.roles, other.roles, strict=True))


def team_mismatch(team: TeamSpec, other: TeamSpec) -> str | None:
    """Returns why a policy of `other` cannot act for `team`, see `matched_roles`; None if it can."""
    if len(team.roles) != len(other.roles):
        names = [", ".join(role.name for role in spec.roles) for spec in (team, other)]
        return f"team '{team.name}' has the roles {names[0]}, and team '{other.name}' {names[1]}"
    for role, other_role in matched_roles(team, other):
        needed, trained = _describe_spaces(role), _describe_spaces(other_role)
        if needed != trained:
            return f"role '{role.name}' has {needed}, and the policy was trained with {trained}"
    return None


def _permutations(own: RoleSpec, its: RoleSpec) -> tuple[Tensor, Tensor]:
    """Returns the index of each agent of `its` in `own`, and the reverse; in order if the names are others."""
    if set(own.agents) != set(its.agents):
        same = torch.arange(own.n)
        return same, same
    there = torch.tensor([own.agents.index(name) for name in its.agents])
    return there, there.argsort()


class RemappedPolicy(InspectablePolicy):
    """Acts for `team` with the policy of a team of the same spaces.

    Roles, and agents of a role, are matched by name if the names of both teams are the same, otherwise in order.

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
        self.cuda_graphs, self.communicates = policy.cuda_graphs, policy.communicates
        self.mode: Mode = mode
        pairs = matched_roles(team, policy.team)
        self._names = [(own.name, its.name) for own, its in pairs]
        self._order = {own.name: _permutations(own, its) for own, its in pairs}
        starts, start = {}, 0
        for own in team.roles:
            starts[own.name], start = start, start + own.n
        own_names = {its: own for own, its in self._names}
        there = torch.cat([self._order[own][0] + starts[own] for own in (own_names[r.name] for r in policy.team.roles)])
        self._agents = (there, there.argsort())
        self._is_permuted = not there.equal(torch.arange(len(there)))

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
        own_action = {own: self._back(own, action[its]) for own, its in self._names}
        if self._is_permuted:
            back = self._agents[1]
            extras = {name: x.index_select(1, back.to(x.device)) for name, x in extras.items()}
        return own_action, hidden_state, extras

    def action_distribution(
        self, timestep: Timestep, hidden_state: HiddenState, mode: Mode
    ) -> dict[str, ActionDistribution]:
        """Returns the inner policy's distributions, or empty ones if it cannot report them."""
        if not isinstance(self.inner, InspectablePolicy):
            return {own: ActionDistribution() for own, _ in self._names}
        by_role = self.inner.action_distribution(self._rename(timestep), hidden_state, self.mode)
        return {own: self._back(own, by_role[its]) for own, its in self._names}

    def _back(self, role: str, tree: Tree) -> Tree:
        """Tensors [B, n, ..] of the inner policy's role with the agents in the own order."""
        if not self._is_permuted:
            return tree
        return tree_map(lambda x: x.index_select(1, self._order[role][1].to(x.device)), tree)

    def _there(self, role: str, tree: Tree) -> Tree:
        """Tensors [B, n, ..] of an own role with the agents in the inner policy's order."""
        if not self._is_permuted:
            return tree
        return tree_map(lambda x: x.index_select(1, self._order[role][0].to(x.device)), tree)

    def _rename(self, timestep: Timestep) -> Timestep:
        """The timestep with the role names and the order of agents of the inner policy's team."""
        masks = timestep.action_mask
        renamed = replace(
            timestep,
            obs={its: self._there(own, timestep.obs[own]) for own, its in self._names},
            action_mask={its: self._there(own, masks[own]) for own, its in self._names if own in masks},
        )
        if not self._is_permuted:
            return renamed
        there = self._agents[0].to(timestep.alive.device)
        return replace(
            renamed, alive=timestep.alive.index_select(1, there), first=timestep.first.index_select(1, there)
        )

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

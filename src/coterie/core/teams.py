"""Assignment of an environment's roles to teams."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.core.errors import UserError, nearest
from coterie.core.markup import Markup, table
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec, is_channels_first

_MOST_AGENTS = 8
"""Agents of a role that are listed; of larger roles, the first and the last."""

_LONGEST_SPACE = 80
"""Characters of a space. In longer ones, the lowest and highest bounds stand for all."""


def describe_teams(teams: Sequence[TeamSpec], spec: EnvSpec, assigned: Collection[str] = ()) -> list[str]:
    """Returns a line on the number of teams and the reason for it, and a line for each role.

    Args:
        teams: The teams, in the environment's order.
        spec: The environment.
        assigned: Teams whose roles the settings `teams.NAME.roles` list.
    """
    lines = [f"{_count(len(teams), 'team')}: {', '.join(team.name for team in teams)}, because {why(spec, assigned)}"]
    return lines + [f"team {team.name}: {describe_role(role)}" for team in teams for role in team.roles]


def image_notes(spec: EnvSpec) -> list[str]:
    """Returns a sentence for each sensor whose images seem to have their channels first."""
    notes = []
    for role in spec.roles:
        space = role.observation_space
        for name, part in (space.spaces if isinstance(space, spaces.Dict) else {"": space}).items():
            if is_channels_first(part):
                shape, of = (
                    list(part.shape or ()),
                    f"sensor {name} of role {role.name}" if name else f"role {role.name}",
                )
                notes.append(
                    f"images of {of} are {shape}, read as {shape[0]} rows with {shape[2]} channels. If its channels "
                    "come first, set env.wrappers.channels_last=true, or return [height, width, channels]"
                )
    return notes


def why(spec: EnvSpec, assigned: Collection[str] = ()) -> str:
    """Returns the reason for the teams, as the rest of a sentence."""
    if not assigned:
        return spec.grouping
    settings = " and ".join(f"teams.{name}.roles" for name in assigned)
    return f"{settings} {'is' if len(assigned) == 1 else 'are'} set"


def describe_role(role: RoleSpec) -> str:
    """Returns the agents and spaces of a role in one line."""
    seen, acts = describe_space(role.observation_space), describe_space(role.action_space)
    return f"role {role.name} ({describe_agents(role.agents)}) observes {seen} and acts in {acts}"


def roles_table(roles: Sequence[RoleSpec]) -> Markup:
    """Returns a table of roles, which notebooks show."""
    rows = [
        [
            role.name,
            role.group,
            describe_agents(role.agents),
            describe_space(role.observation_space),
            describe_space(role.action_space),
        ]
        for role in roles
    ]
    return table(["role", "team", "agents", "observes", "acts in"], rows)


def describe_agents(agents: Sequence[str]) -> str:
    """Returns the names of a role's agents; of many, the first and the last."""
    if len(agents) <= _MOST_AGENTS:
        return ", ".join(agents)
    return f"{len(agents)} agents, {agents[0]} to {agents[-1]}"


def describe_space(space: spaces.Space) -> str:
    """Returns a space as one line, with the range of its bounds if they are too long to list."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{name}: {describe_space(part)}' for name, part in space.spaces.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(describe_space(part) for part in space.spaces)})"
    text = " ".join(str(space).split())
    if isinstance(space, spaces.Box) and space.low.size and (len(text) > _LONGEST_SPACE or "[" in text):
        return f"Box({np.min(space.low)}, {np.max(space.high)}, {space.shape}, {space.dtype})"
    return text if len(text) <= 4 * _LONGEST_SPACE else f"{text[: 4 * _LONGEST_SPACE - 3]}..."


def team_records(teams: Mapping[str, TeamSpec]) -> dict[str, Any]:
    """Returns the manifest's entry `teams`: by team, the agents and spaces of each role."""
    return {
        name: {
            "common_reward": team.common_reward,
            "roles": {
                role.name: {
                    "agents": list(role.agents),
                    "observation_space": describe_space(role.observation_space),
                    "action_space": describe_space(role.action_space),
                }
                for role in team.roles
            },
        }
        for name, team in teams.items()
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def assign(teams: Mapping[str, Sequence[str] | None], spec: EnvSpec) -> tuple[TeamSpec, ...]:
    """Returns the teams of a run in the environment's order.

    Args:
        teams: Roles by team; None for the group, or the role, of the team's name. Remaining roles form one team per
            group, named like the group.
        spec: The environment.

    Raises:
        UserError: For an unknown team or role, a role in two teams, or roles that are not consecutive.
    """
    roles = {role.name: role for role in spec.roles}
    owner: dict[str, str] = {}
    for team, role_names in teams.items():
        for role in _roles_of(team, role_names, spec):
            if role in owner:
                raise UserError(f"role '{role}' is in two teams, '{owner[role]}' and '{team}': keep it in one")
            owner[role] = team
    for name, role in roles.items():
        if name not in owner:
            if role.group in teams:
                raise UserError(
                    f"role '{name}' would be left to team '{role.group}', which is given other roles: "
                    f"add it to a team with teams.NAME.roles=[...,{name}]"
                )
            owner[name] = role.group
    return tuple(
        _team(team, tuple(role for role in roles if owner[role] == team), spec) for team in _order(owner, roles)
    )


def _order(owner: Mapping[str, str], roles: Mapping[str, object]) -> list[str]:
    return list(dict.fromkeys(owner[role] for role in roles))


def _roles_of(team: str, role_names: Sequence[str] | None, spec: EnvSpec) -> list[str]:
    names = [role.name for role in spec.roles]
    if role_names is None:
        own = [role.name for role in spec.roles if role.group == team] or [name for name in names if name == team]
        if not own:
            suggestion = nearest(team, {*spec.groups, *names})
            raise UserError(
                f"{spec.name} has no team '{team}'. {suggestion} Or give it roles: teams.{team}.roles=[{names[0]}]."
            )
        return own
    for role in role_names:
        if role not in names:
            raise UserError(f"teams.{team}.roles: {spec.name} has no role '{role}'. {nearest(role, names)}")
    if len(set(role_names)) < len(role_names):
        raise UserError(f"teams.{team}.roles: a role is named twice in [{', '.join(role_names)}]")
    return list(role_names)


def _team(name: str, roles: tuple[str, ...], spec: EnvSpec) -> TeamSpec:
    try:
        return spec.team(name, roles)
    except ValueError as error:
        raise UserError(f"teams.{name}.roles: {error}") from error

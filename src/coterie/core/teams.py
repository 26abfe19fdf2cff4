"""Assignment of an environment's roles to teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.core.errors import UserError, nearest
from coterie.core.specs import EnvSpec, TeamSpec


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

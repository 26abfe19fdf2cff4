"""Which roles of an environment form which team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.errors import UserError, nearest
from coterie.types import EnvSpec, TeamSpec


def assign(teams: Mapping[str, Sequence[str] | None], spec: EnvSpec) -> tuple[TeamSpec, ...]:
    """Every team of a run in the environment's order.

    teams: the roles of each team that the user named; None for the group of that name (or the one role of that name).
    Roles that are left over form one team a group, named like the group. UserError for a team or role that is not
    there, a role in two teams, and roles that do not stand together.
    """
    roles = {role.name: role for role in spec.roles}
    owner: dict[str, str] = {}
    for team, wanted in teams.items():
        for role in _roles_of(team, wanted, spec):
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


def _roles_of(team: str, wanted: Sequence[str] | None, spec: EnvSpec) -> list[str]:
    names = [role.name for role in spec.roles]
    if wanted is None:
        own = [role.name for role in spec.roles if role.group == team] or [name for name in names if name == team]
        if not own:
            mend = nearest(team, {*spec.groups, *names})
            raise UserError(
                f"{spec.name} has no team '{team}': {mend} (or give it roles: teams.{team}.roles=[{names[0]}])"
            )
        return own
    for role in wanted:
        if role not in names:
            raise UserError(f"teams.{team}.roles: {spec.name} has no role '{role}': {nearest(role, names)}")
    if len(set(wanted)) < len(wanted):
        raise UserError(f"teams.{team}.roles: a role is named twice in [{', '.join(wanted)}]")
    return list(wanted)


def _team(name: str, roles: tuple[str, ...], spec: EnvSpec) -> TeamSpec:
    try:
        return spec.team(name, roles)
    except ValueError as error:
        raise UserError(f"teams.{name}.roles: {error}") from error

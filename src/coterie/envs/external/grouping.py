"""Setting `env.teams`: which roles of an environment form a team whose agents learn from a common reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from coterie.core.errors import UserError, nearest

SHARED_TEAM = "all"
"""Name of the team that `env.teams=shared` forms."""

Setting = Literal["separate", "shared"] | dict[str, str | tuple[str, ...]]
"""Type of `env.teams`."""

_MEAN = "agents learn from the mean of its rewards, value decomposition and MA-POCA from their sum"


@final
@dataclass(frozen=True)
class Grouping:
    """Groups of the roles of an environment.

    Attributes:
        groups: Group of each role, by name.
        common_reward: Groups with a common reward.
        reason: Reason for the groups, see `EnvSpec.grouping`.
    """

    groups: dict[str, str]
    common_reward: tuple[str, ...]
    reason: str


def group_roles(setting: Setting, names: Mapping[str, str], *, roles_are_set: bool) -> Grouping:
    """Returns the groups of an environment's roles.

    Args:
        setting: Value of `env.teams`.
        names: Group of each role by name if `setting` is "separate", in the environment's order.
        roles_are_set: True if the roles are those of `env.roles`, not of the names of agents.

    Raises:
        UserError: For a role that does not exist, is in two teams, or whose name a team of other roles has.
    """
    if setting == "shared":
        return Grouping(dict.fromkeys(names, SHARED_TEAM), (SHARED_TEAM,), f"env.teams=shared; {_MEAN}")
    if isinstance(setting, dict):
        owner = _owners(setting, names)
        for role, group in names.items():
            if role not in owner and group in setting:
                raise UserError(
                    f"env.teams.{group}: role '{role}' would be a team of the same name. Add it to a team, or rename "
                    "this team."
                )
        reason = f"env.teams forms {', '.join(setting)}; {_MEAN}"
        return Grouping({role: owner.get(role, group) for role, group in names.items()}, tuple(setting), reason)
    if len(set(names.values())) == 1:
        one = "env.roles has one role" if roles_are_set else "the names of all agents differ only in their number"
        return Grouping(dict(names), (), one)
    several = "the roles of env.roles" if roles_are_set else "roles of different names"
    return Grouping(dict(names), (), f"{several} have separate rewards; env.teams=shared makes one team of them")


def _owners(teams: Mapping[str, str | tuple[str, ...]], roles: Mapping[str, str]) -> dict[str, str]:
    """Returns the team of each role that `env.teams` names."""
    owner: dict[str, str] = {}
    for team, members in teams.items():
        for role in (members,) if isinstance(members, str) else members:
            if role not in roles:
                raise UserError(f"env.teams.{team}: there is no role '{role}'. {nearest(role, roles)}")
            if role in owner:
                raise UserError(f"env.teams.{team}: role '{role}' is in team '{owner[role]}', too. Keep it in one.")
            owner[role] = team
    return owner

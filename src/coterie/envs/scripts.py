"""The rules that environments bring for those who act without learning, and a user's own, by name.

A script is made once, `make(team, env) -> act`, and `act(row) -> {role: Action}` says what the team does on a row of
its own: observations `row.obs[role]` [B, n, D] and masks `row.action_mask[role]` to actions of all copies at once. It
has no memory and draws nothing. `team` is the `TeamSpec` that it plays, `env` has the environment's `name` and its
`params`, the typed settings. A script reads what the agents see and nothing else. One that an environment brings acts
for those of the team's roles that it knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from coterie import registry
from coterie.errors import UserError, nearest
from coterie.schema import Choice
from coterie.types import Action, Row, TeamSpec

Act = Callable[[Row], dict[str, Action]]


def script_of(team: TeamSpec, env: Choice, name: str | None) -> tuple[Act, str, bool]:
    """The script of that name for the team, what it is called, and whether it is a user's own.

    name: of a script of the environment, or package.module:make; None: each role's first one. UserError if there is
    none, or none for a role of the team.
    """
    if name is not None and ":" in name:
        return _own(team, env, name), name, True
    known = registry.scripts(env.name)
    what = f"team '{team.name}' is scripted, and {env.name}"
    if not known:
        raise UserError(f"{what} brings no scripts: write one and give algo.script=package.module:make")
    if name is not None and name not in known:
        raise UserError(f"{what} has no script '{name}': {nearest(name, known)} (your own: package.module:make)")
    chosen: dict[str, list[str]] = {}
    for role in team.roles:
        fit = [one for one, (_, roles) in known.items() if role.name in roles and name in (None, one)]
        if not fit:
            of_role = [one for one, (_, roles) in known.items() if role.name in roles]
            mend = f"give {' or '.join(of_role)}" if of_role else "write one and give package.module:make"
            which = f"script '{name}' is not" if name else "it has no script"
            raise UserError(f"{what}: {which} for role '{role.name}': {mend}")
        chosen.setdefault(fit[0], []).append(role.name)
    acts = {one: _brought(team, env, one) for one in chosen}
    if len(acts) == 1:
        return acts[next(iter(acts))], next(iter(acts)), False

    def each_by_its_own(row: Row) -> dict[str, Action]:
        given = {one: act(row) for one, act in acts.items()}
        return {role: given[one][role] for one, roles in chosen.items() for role in roles}

    return each_by_its_own, "+".join(chosen), False


def _brought(team: TeamSpec, env: Choice, name: str) -> Act:
    """The environment's own script. UserError where it cannot play with these settings."""
    try:
        return registry.load(registry.scripts(env.name)[name][0], f"script '{name}'")(team, env)
    except ValueError as error:
        raise UserError(f"script '{name}' of {env.name}: {' '.join(str(error).split())}") from error


def _own(team: TeamSpec, env: Choice, name: str) -> Act:
    """What the user's `make(team, env)` gives. UserError if that is no function, or takes something else."""
    make: Any = registry.load(name, f"script '{name}'")
    what = f"team '{team.name}': script '{name}'"
    if not callable(make):
        raise UserError(f"{what} is a {type(make).__name__}: expected a function make(team, env) that returns act(row)")
    try:
        inspect.signature(make).bind(team, env)
    except TypeError as error:
        raise UserError(f"{what} is called as make(team, env), and it takes {inspect.signature(make)}") from error
    act: Any = make(team, env)
    if not callable(act):
        raise UserError(f"{what} returned a {type(act).__name__}: expected a function act(row) -> {{role: Action}}")
    return cast(Act, act)

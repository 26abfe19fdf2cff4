"""Scripted policies by name: those that an environment provides, and a user's own.

A script is a function `make(team, env) -> act`. `team` is the `TeamSpec` to play, and `env` has the name and the
validated settings (`params`) of the environment. `act(timestep) -> {role: Action}` returns the actions of all
environments at once from the team's observations `timestep.obs[role]` `[B, n, D]` and masks
`timestep.action_mask[role]`. It has no hidden state and draws no random numbers. A script that an environment provides
acts for those of the team's roles that it supports.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from coterie.config import user_code
from coterie.config.schema import Choice
from coterie.core.errors import UserError, nearest
from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs import registry

Act = Callable[[Timestep], dict[str, Action]]


def load_script(team: TeamSpec, env: Choice, name: str | None) -> tuple[Act, str, bool]:
    """Loads the script of a team.

    Args:
        team: The team to play.
        env: The environment.
        name: Name of a script that the environment provides, or `package.module:make`; None for the first one of each
            role.

    Returns:
        The function `act`, its name, and True if it is a user's own.

    Raises:
        UserError: If there is no such script, or none for a role of the team.
    """
    if name is not None and ":" in name:
        return _user_script(team, env, name), name, True
    known = registry.scripts(env.name)
    prefix = f"team '{team.name}' is scripted, but {env.name}"
    if not known:
        raise UserError(f"{prefix} provides no scripts. Write one and set algo.script=package.module:make")
    if name is not None and name not in known:
        raise UserError(f"{prefix} has no script '{name}'. {nearest(name, known)} (your own: package.module:make)")
    chosen: dict[str, list[str]] = {}
    for role in team.roles:
        supporting = [script for script, (_, roles) in known.items() if role.name in roles]
        fitting = [script for script in supporting if name in (None, script)]
        if not fitting:
            fix = f"set {' or '.join(supporting)}" if supporting else "write one and set package.module:make"
            problem = f"script '{name}' does not support" if name else "no script supports"
            raise UserError(f"{prefix}: {problem} role '{role.name}': {fix}")
        chosen.setdefault(fitting[0], []).append(role.name)
    acts = {script: _provided_script(team, env, script) for script in chosen}
    if len(acts) == 1:
        return acts[next(iter(acts))], next(iter(acts)), False

    def act_by_role(timestep: Timestep) -> dict[str, Action]:
        actions = {script: act(timestep) for script, act in acts.items()}
        return {role: actions[script][role] for script, roles in chosen.items() for role in roles}

    return act_by_role, "+".join(chosen), False


def _provided_script(team: TeamSpec, env: Choice, name: str) -> Act:
    """Loads a script of the environment. UserError if it cannot play with these settings."""
    try:
        return user_code.load(registry.scripts(env.name)[name][0], f"script '{name}'")(team, env)
    except ValueError as error:
        raise UserError(f"script '{name}' of {env.name}: {' '.join(str(error).split())}") from error


def _user_script(team: TeamSpec, env: Choice, name: str) -> Act:
    """Calls the user's `make(team, env)`. UserError if it has another signature, or returns no function."""
    make: Any = user_code.load(name, f"script '{name}'")
    prefix = f"team '{team.name}': script '{name}'"
    if not callable(make):
        raise UserError(
            f"{prefix} is a {type(make).__name__}: expected a function make(team, env) that returns act(timestep)"
        )
    try:
        inspect.signature(make).bind(team, env)
    except TypeError as error:
        raise UserError(f"{prefix} is called as make(team, env), but takes {inspect.signature(make)}") from error
    act: Any = make(team, env)
    if not callable(act):
        raise UserError(
            f"{prefix} returned a {type(act).__name__}: expected a function act(timestep) -> {{role: Action}}"
        )
    return cast(Act, act)

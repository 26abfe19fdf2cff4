"""Errors for unknown keys, with an explanation or similar keys.

`check_early` finds them before PyTorch is imported, among the settings of Coterie's own algorithms and environments.
`validation.py` checks all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from coterie.config import aliases, messages, registry, source_fields
from coterie.config.composition import COMMAND_LINE, DEFAULT, named, team_names, user_settings
from coterie.config.schema import RunConfig, TeamConfig
from coterie.config.sources import Setting
from coterie.core.errors import UserError


def check_early(layers: Sequence[list[Setting]]) -> None:
    """Raises UserError for a key of the user that certainly does not exist. Imports no algorithm and no environment."""
    algo, env, user = user_settings(*layers)
    algorithms = {"algo.": algo}
    for team in team_names(user):
        given = {setting.key for setting in user}
        loads_run = f"teams.{team}.algo.run" in given and f"teams.{team}.algo.name" not in given
        name = named(f"teams.{team}.algo.name", layers, "frozen" if loads_run else algo)
        registry.check_algorithm(name)
        algorithms[f"teams.{team}.algo."] = name
    fields = {prefix: source_fields.algorithm_fields(name) for prefix, name in algorithms.items()}
    fields["env."] = source_fields.environment_fields(env)
    known = _known(fields, [prefix.split(".")[1] for prefix in algorithms if prefix != "algo."])
    unclear = tuple(prefix for prefix, names in fields.items() if names is None)
    for setting in user:
        key = setting.key
        if key in known or key.startswith(unclear) or any(_contains(k, key) or _contains(key, k) for k in known):
            continue
        section = max((prefix for prefix in fields if key.startswith(prefix)), key=len, default="")
        raise unknown_key(setting, section, algorithms.get(section, ""), known)


def _known(fields: dict[str, tuple[str, ...] | None], teams: Iterable[str]) -> set[str]:
    """Returns all keys, of sections with known fields."""
    known = {key for key in messages.leaf_fields(RunConfig) if key.partition(".")[0] not in {"algo", "env", "teams"}}
    for prefix, names in fields.items():
        known |= {f"{prefix}{name}" for name in ("name", *(names or ()))}
    for team in teams:
        own = messages.leaf_fields(TeamConfig, f"teams.{team}.")
        known |= {key for key in own if not key.startswith(f"teams.{team}.algo.")}
    return known


def _contains(section: str, key: str) -> bool:
    return key.startswith(f"{section}.")


def unknown_key(setting: Setting, section: str, algo: str, known: Iterable[str]) -> UserError:
    """Returns the error for an unknown key.

    Args:
        setting: The key with its value and origin.
        section: The section `algo.`, `teams.NAME.algo.` or `env.` that it is in, or "".
        algo: Name of the section's algorithm.
        known: All keys that exist.
    """
    key, where = setting.key, origin(setting)
    if (difference := aliases.difference(key, known)) is not None:
        return UserError(f"{key}{where}: no such setting. {difference}{_lacking(difference, section, algo, known)}")
    if section.endswith("algo."):
        if meant := [target for target in aliases.targets(key) if target.startswith("algo.")]:
            return UserError(
                f"{key}{where}: no such setting. In Coterie it is {' or '.join(meant)}, "
                f"which algorithm '{algo}' does not have."
            )
        owners = _owners(key.removeprefix(section))
        if owners:
            return UserError(
                f"{key}{where}: not a setting of algorithm '{algo}' but of {_first_names(owners)}. "
                "Choose one of these algorithms, or remove the setting."
            )
    return UserError(f"{key}{where}: no such setting. {messages.nearest_keys(key, known)}")


def _lacking(difference: str, section: str, algo: str, known: Iterable[str]) -> str:
    """Returns a sentence if the algorithm has none of the settings `algo.X` that an explanation names, else ""."""
    meant = list(dict.fromkeys(re.findall(r"\balgo\.(\w+)", difference)))
    if not section.endswith("algo.") or not meant or not {f"{section}{name}" for name in meant}.isdisjoint(known):
        return ""
    return f" Algorithm '{algo}' does not have {' or '.join(f'algo.{name}' for name in meant)}."


def origin(setting: Setting | None) -> str:
    """Returns the origin of a setting in parentheses; "" for the command line and defaults."""
    return f" ({setting.origin})" if setting and setting.origin not in {COMMAND_LINE, DEFAULT} else ""


def _owners(key: str) -> list[str]:
    """Returns the algorithms that have the setting."""
    if not source_fields.is_field_name(key):
        return []
    return sorted(name for name in registry.ALGOS if key in (source_fields.algorithm_fields(name) or ()))


def _first_names(names: list[str]) -> str:
    """At most four names; of more the first three, and the number of others."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"

"""Validation: values by key become typed models; the first mistake is reported in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from coterie.algos import registry as algo_registry
from coterie.assembly import aliases
from coterie.assembly.composition import Leaves, named, team_names
from coterie.config import messages, sources
from coterie.config.overrides import is_number
from coterie.config.schema import Choice, FactoryParams, RunConfig, TeamConfig, is_foreign
from coterie.config.sources import COMMAND_LINE, DEFAULT, Setting
from coterie.core.errors import UserError, nearest
from coterie.core.text import shorten
from coterie.envs import registry as env_registry

_SMALLEST, _LARGEST = 1e-30, 1e30
"""Magnitudes of numbers. Networks compute with float32, which has up to 3.4e38, and no fewer than 1.2e-38."""
_LARGEST_INTEGER = 2**53
"""The largest integer up to which float64 represents all."""


@dataclass(frozen=True)
class _Schema:
    """Models of the parts of a configuration whose type depends on a name.

    Attributes:
        algo: Name of the top-level algorithm.
        env: Name of the environment.
        teams: Names of the teams that differ from the rest.
        models: Model of each section: `env.`, `algo.` and `teams.NAME.algo.`.
    """

    algo: str
    env: str
    teams: list[str]
    models: dict[str, type[BaseModel]]


def validate(leaves: Leaves, user: Iterable[Setting]) -> RunConfig:
    """Returns the typed configuration.

    Args:
        leaves: All settings by key.
        user: Settings of the user, which are checked first.

    Raises:
        UserError: For an unknown key or an invalid value.
    """
    schema = _schema_of(leaves)
    known = _known_keys(schema, leaves)
    for setting in [*user, *leaves.values()]:
        _check_key(setting, schema, leaves, known)
    models = schema.models
    tree = sources.nest({k: s.value for k, s in leaves.items() if k.partition(".")[0] not in {"algo", "env", "teams"}})
    tree |= {
        "env": _choice("env.", schema.env, models["env."], leaves),
        "algo": _choice("algo.", schema.algo, models["algo."], leaves),
        "teams": {team: _team(team, models[f"teams.{team}.algo."], leaves) for team in schema.teams},
    }
    return _validated(RunConfig, tree, "", leaves)


def _schema_of(leaves: Leaves) -> _Schema:
    for key in ("algo.name", "env.name"):
        named(key, [list(leaves.values())], "")
    algo, env = str(leaves["algo.name"].value), str(leaves["env.name"].value)
    teams = team_names(leaves.values())
    env_model = FactoryParams if env_registry.is_batch_factory(env) else env_registry.environment(env).Config
    models: dict[str, type[BaseModel]] = {"env.": env_model, "algo.": algo_registry.algorithm(algo).Config}
    for team in teams:
        if f"teams.{team}.algo.name" not in leaves:  # of a saved configuration that was edited
            raise UserError(f"teams.{team}.algo: a value is required. Set teams.{team}.algo=NAME.")
        name = named(f"teams.{team}.algo.name", [list(leaves.values())], algo)
        models[f"teams.{team}.algo."] = algo_registry.algorithm(name).Config
    return _Schema(algo, env, teams, models)


def _team(team: str, model: type[BaseModel], leaves: Leaves) -> TeamConfig:
    prefix = f"teams.{team}."
    algo = _choice(f"{prefix}algo.", str(leaves[f"{prefix}algo.name"].value), model, leaves)
    own = {k.removeprefix(prefix): s.value for k, s in leaves.items() if k.startswith(prefix)}
    tree = sources.nest({key: value for key, value in own.items() if not key.startswith("algo.")}) | {"algo": algo}
    if isinstance(tree.get("roles"), str):
        tree["roles"] = [tree["roles"]]
    return _validated(TeamConfig, tree, prefix, leaves)


def _choice(prefix: str, name: str, model: type[BaseModel], leaves: Leaves) -> Choice:
    own = {key.removeprefix(prefix): setting.value for key, setting in leaves.items() if key.startswith(prefix)}
    own.pop("name", None)
    base = None
    if prefix.endswith("algo.") and own.pop("base", None) is not None:
        base = named(f"{prefix}base", [list(leaves.values())], "")  # of a saved configuration that was edited
    return Choice(name=name, base=base, params=_validated(model, sources.nest(own), prefix, leaves))


def _validated(model: type[Any], tree: dict[str, Any], prefix: str, leaves: Leaves) -> Any:
    """Validates a model. UserError names the first invalid key, its origin, and the other invalid keys."""
    fields = messages.leaf_fields(model, prefix)
    for key, setting in leaves.items():
        if key in fields and isinstance(setting.value, float) and not math.isfinite(setting.value):
            raise UserError(f"{key}={setting.value}{_origin(setting)}: expected a finite number")
    try:
        built = model.model_validate(tree)
    except ValidationError as error:
        (key, line), *others = messages.mistakes(error, fields, prefix)
        more = f" (also invalid: {shorten(', '.join(other for other, _ in others), 200)})" if others else ""
        raise UserError(f"{line}{_origin(leaves.get(key))}{more}") from error
    for key, value in sources.flatten(built.model_dump(mode="python"), prefix):
        given = leaves.get(key)
        name = key.removeprefix(prefix)
        is_checked = isinstance(getattr(built, name.partition(".")[0], None), Choice)  # as a section of its own
        if not (is_checked or is_foreign(model, name)):
            _check_magnitude(key, value, given)
        if given and isinstance(given.value, bool) and isinstance(value, int | float) and not isinstance(value, bool):
            raise UserError(f"{key}={messages.show(given.value)}{_origin(given)}: expected a number")
        if given and isinstance(given.value, str) and isinstance(value, float) and not is_number(given.value):
            raise UserError(f"{key}={messages.show(given.value)}{_origin(given)}: expected a number")
    return built


def _check_magnitude(key: str, value: Any, given: Setting | None) -> None:
    """Raises UserError for numbers that networks cannot compute with. Seeds have 64 bits."""
    if isinstance(value, list | tuple):
        for item in value:
            _check_magnitude(key, item, given)
    elif isinstance(value, float) and value and not _SMALLEST <= abs(value) <= _LARGEST:
        raise UserError(
            f"{key}={value}{_origin(given)}: expected 0 or a number with a magnitude between {_SMALLEST} and {_LARGEST}"
        )
    elif isinstance(value, int) and abs(value) > _LARGEST_INTEGER and key.rpartition(".")[2] != "seed":
        raise UserError(f"{key}={value}{_origin(given)}: expected an integer of at most {_LARGEST_INTEGER:,}")


# --------------------------------------------------------------------------------------------------------- unknown keys


def _known_keys(schema: _Schema, leaves: Leaves) -> dict[str, Any]:
    """Every valid leaf key with its field."""
    known = {
        k: f for k, f in messages.leaf_fields(RunConfig).items() if k.partition(".")[0] not in {"algo", "env", "teams"}
    }
    for prefix, model in schema.models.items():
        known |= {f"{prefix}name": None, **messages.leaf_fields(model, prefix)}
        if f"{prefix}base" in leaves:
            known[f"{prefix}base"] = None
    for team in schema.teams:
        own = messages.leaf_fields(TeamConfig, f"teams.{team}.")
        known |= {key: field for key, field in own.items() if not key.startswith(f"teams.{team}.algo.")}
    return known


def _check_key(setting: Setting, schema: _Schema, leaves: Mapping[str, Setting], known: Mapping[str, Any]) -> None:
    """UserError for a key that is not `known`, with an explanation or similar keys."""
    key, models = setting.key, schema.models
    if key in known or any(f and key.startswith(f"{k}.") and messages.holds_mapping(f) for k, f in known.items()):
        return
    inside = [candidate.removeprefix(f"{key}.") for candidate in known if candidate.startswith(f"{key}.")]
    if inside:
        example = f" or {key}.".join(inside[:3])
        raise UserError(f"{key}={messages.show(setting.value)}: {key} is a section. Set {key}.{example}.")
    if key.startswith("env.") and models["env."] is FactoryParams:
        _check_factory_key(setting, schema.env)
        return
    inner = key.rpartition(".")[0] + "."
    closed = inner != "env." and any(candidate.startswith(inner) for candidate in known)
    if key.startswith("env.") and models["env."].model_config.get("extra") == "allow" and not closed:
        return
    section = max((prefix for prefix in models if key.startswith(prefix)), key=len, default="")
    if "." not in key and (aliases.owners(key) or any(name.startswith("algo.") for name in aliases.targets(key))):
        section = "algo."
    own = str(leaves[f"{section}name"].value) if section.endswith("algo.") else ""
    raise _unknown_key(setting, section, own, known)


def _check_factory_key(setting: Setting, name: str) -> None:
    parameters = env_registry.factory_parameters(name)
    key = setting.key.removeprefix("env.")
    if parameters is not None and key.partition(".")[0] not in parameters:
        raise UserError(
            f"{setting.key}{_origin(setting)}: no such setting, '{name}' takes no '{key}'. {nearest(key, parameters)}"
        )


def _unknown_key(setting: Setting, section: str, algo: str, known: Iterable[str]) -> UserError:
    """Returns the error for an unknown key.

    Args:
        setting: The key with its value and origin.
        section: The section `algo.`, `teams.NAME.algo.` or `env.` that it is in, or "".
        algo: Name of the section's algorithm.
        known: All keys that exist.
    """
    key, where = setting.key, _origin(setting)
    if (difference := aliases.difference(key, known)) is not None:
        return UserError(f"{key}{where}: no such setting. {difference}{_lacking(difference, section, algo, known)}")
    if section.endswith("algo."):
        if meant := [target for target in aliases.targets(key) if target.startswith("algo.")]:
            return UserError(
                f"{key}{where}: no such setting. In Coterie it is {' or '.join(meant)}, "
                f"which algorithm '{algo}' does not have."
            )
        owners = aliases.owners(key.removeprefix(section))
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


def _origin(setting: Setting | None) -> str:
    """Returns the origin of a setting in parentheses; "" for the command line and defaults."""
    return f" ({setting.origin})" if setting and setting.origin not in {COMMAND_LINE, DEFAULT} else ""


def _first_names(names: list[str]) -> str:
    """At most four names; of more the first three, and the number of others."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"

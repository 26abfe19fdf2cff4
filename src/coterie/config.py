"""From presets, a file and overrides to one resolved, typed configuration whose values remember where they came from.

    defaults < environment preset < algorithm preset < algorithm x environment preset < --config FILE < command line

Naming another algorithm (or environment) starts from its presets: keys that a lower layer gave to the one it named
itself do not carry over. A team without an algorithm of its own, or with the top one's name, inherits the top one's
values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from coterie import messages, registry, settings
from coterie.errors import UserError, nearest
from coterie.overrides import parse_all
from coterie.schema import Choice, FactoryParams, RunConfig, TeamConfig
from coterie.settings import Setting

COMMAND_LINE = "command line"
DEFAULT = "default"
_CHANGEABLE = ("steps", "eval.", "checkpoint.", "log.", "progress", "threads", "workers.")
"""Keys, and sections of keys, that may change when a run goes on."""
_TEAM_SECTIONS = tuple(name for name in TeamConfig.model_fields if name in RunConfig.model_fields and name != "algo")
"""Sections that a team inherits key by key."""

_Leaves = dict[str, Setting]


@dataclass(frozen=True)
class Resolved:
    """A configuration and where each of its leaf values came from, by dotted key."""

    config: RunConfig
    origins: dict[str, str]


def resolve(overrides: Sequence[str] = (), config_file: Path | None = None) -> Resolved:
    """The configuration of a command line. UserError for whatever is wrong with it, in one line."""
    return _compose(_file_layer(config_file), _command_layer(overrides))


def resolve_kwargs(config_file: Path | None = None, **kwargs: Any) -> Resolved:
    """The configuration of a Python call: nested dicts, dotted keys (`**{"algo.lr": 1e-3}`), names (`algo="mappo"`)."""
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in kwargs.items()}
    return _compose(_file_layer(config_file), settings.from_tree(plain, "argument"))


def based_on(tree: Mapping[str, Any], overrides: Sequence[str]) -> Resolved:
    """The configuration of a new run with the settings of another, `RunConfig.tree` of it, under those given here."""
    return _compose(settings.from_tree(dict(tree), "the run"), _command_layer(overrides))


def load_resolved(path: Path) -> Resolved:
    """The configuration that a run saved as `config.yaml`, whatever presets say today. UserError if it is none."""
    found = settings.from_file(path, saved=True)
    names = {setting.key for setting in found}
    if not {"algo.name", "env.name"} <= names:
        raise UserError(f"{path} is no saved configuration: it names no algo and env")
    try:
        return _build({setting.key: setting for setting in found}, found)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def change(resolved: Resolved, overrides: Sequence[str]) -> Resolved:
    """The configuration of a run that goes on with other run-level keys. UserError where they make it another run."""
    changes = _command_layer(overrides)
    old = {setting.key: setting for setting in settings.from_tree(resolved.config.tree(), DEFAULT)}
    for setting in changes:
        if setting.key in old and not setting.key.startswith(_CHANGEABLE):
            allowed = ", ".join(key + "*" if key.endswith(".") else key for key in _CHANGEABLE)
            raise UserError(
                f"{setting.key} cannot change while a run goes on; only {allowed} can: "
                f"start a new run for {setting.key}={messages.show(setting.value)}"
            )
    leaves = {key: setting.moved(key, resolved.origins.get(key)) for key, setting in old.items()}
    leaves |= {setting.key: setting for setting in changes}
    changed = _build(leaves, changes)
    if changed.config.steps < resolved.config.steps:
        raise UserError(
            f"steps={changed.config.steps}: the run was to do {resolved.config.steps}; expected at least as many"
        )
    return changed


def _file_layer(path: Path | None) -> list[Setting]:
    return [] if path is None else settings.from_file(path)


def _command_layer(overrides: Sequence[str]) -> list[Setting]:
    parsed = parse_all(list(overrides))
    for override in parsed:
        if override.is_sweep:
            raise UserError(
                f"'{override.text}' has several values: add -m to run each, or write a list: {_as_list(override.text)}"
            )
    return settings.from_tree({override.key: override.values[0] for override in parsed}, COMMAND_LINE)


def _as_list(text: str) -> str:
    key, _, values = text.partition("=")
    return f"{key}=[{values}]"


# ------------------------------------------------------------------------------------------------------------ layers


def _compose(*layers: list[Setting]) -> Resolved:
    """Presets under the user's layers (lowest first), teams filled in, everything checked and typed."""
    algo = _named("algo.name", layers, registry.DEFAULT_ALGO)
    env = _named("env.name", layers, registry.DEFAULT_ENV)
    _check_names(algo, env)
    user = _whole([_fitting(layer, {"algo": algo, "env": env}) for layer in layers])
    family = settings.preset("family", env.partition("/")[0])  # for names that have no preset of their own
    leaves = {setting.key: setting for setting in (*family, *settings.preset("env", env))}
    leaves |= _algo_presets(algo, env)
    leaves = _laid(leaves, user)
    for section, name in (("algo", algo), ("env", env)):
        leaves.setdefault(f"{section}.name", Setting(f"{section}.name", name, DEFAULT))
    for team in dict.fromkeys(setting.key.split(".")[1] for setting in leaves.values() if _team_of(setting)):
        _fill_team(team, leaves, layers, env)
        leaves = _inherited(team, leaves)
    return _build(leaves, user)


def _named(key: str, layers: Iterable[list[Setting]], default: str) -> str:
    """The name that the highest layer gives."""
    name = default
    for layer in layers:
        for setting in layer:
            if setting.key == key:
                if not isinstance(setting.value, str):
                    what = key.removesuffix(".name")
                    raise UserError(
                        f"{what}={messages.show(setting.value)}: expected a name, see `coterie list {what}s`"
                    )
                name = setting.value
    return name


def _check_names(algo: str, env: str) -> None:
    """UserError for an algorithm, a variant of it, or an environment that is not there."""
    registry.check_algorithm(algo)
    registry.check_environment(env)
    if algo != registry.base_name(algo) and algo not in settings.presets("algo"):
        variants = [name for name in settings.presets("algo") if registry.base_name(name) == registry.base_name(algo)]
        raise UserError(f"there is no preset '{algo}': {nearest(algo, variants)}")


def _whole(layers: Iterable[list[Setting]]) -> list[Setting]:
    """The layers on top of each other. What one says of a parameter replaces all that lower ones said of it."""
    kept: list[Setting] = []
    for layer in layers:
        said = {".".join(s.key.split(".")[:2]) for s in layer if s.key.startswith("randomise.")}
        kept = [s for s in kept if ".".join(s.key.split(".")[:2]) not in said] + layer
    return kept


def _fitting(layer: list[Setting], names: Mapping[str, str]) -> list[Setting]:
    """The layer without the keys that it gave to an algorithm or environment which a higher layer replaced."""
    replaced = {
        section
        for section, name in names.items()
        for setting in layer
        if setting.key == f"{section}.name" and setting.value != name
    }
    return [setting for setting in layer if setting.key.partition(".")[0] not in replaced]


def _algo_presets(algo: str, env: str) -> _Leaves:
    """The presets of an algorithm (a variant's on top of its base's) and of the algorithm in the environment."""
    base = registry.base_name(algo)
    found = settings.preset("algo", base)
    if algo != base:
        found += settings.preset("algo", algo)
    found += settings.preset("algo_env", f"{algo}/{env}")
    return {setting.key: setting for setting in found}


def _team_of(setting: Setting) -> str | None:
    """The team that a setting is about, if it is about one."""
    parts = setting.key.split(".")
    if parts[0] != "teams":
        return None
    if len(parts) < 3:
        raise UserError(
            f"{setting.key}={messages.show(setting.value)}: write teams.NAME.algo=..., e.g. teams.adversary.algo=random"
        )
    return parts[1]


def _fill_team(team: str, leaves: _Leaves, layers: Iterable[list[Setting]], env: str) -> None:
    """Gives a team's algorithm the values that it inherits or finds in presets, under those of its own."""
    prefix = f"teams.{team}.algo."
    layers = [list(layer) for layer in layers]
    top = str(leaves["algo.name"].value)
    loads = f"{prefix}run" in leaves and f"{prefix}name" not in leaves
    name = _named(f"{prefix}name", layers, "frozen" if loads else top)
    if name == top:
        inherited = [s for k, s in leaves.items() if k.startswith("algo.")]
        under = {f"teams.{team}.{s.key}": s.moved(f"teams.{team}.{s.key}", f"inherits {s.key}") for s in inherited}
    else:
        _check_names(name, env)
        presets = [s for k, s in _algo_presets(name, env).items() if k.startswith("algo.")]
        under = {f"teams.{team}.{s.key}": s.moved(f"teams.{team}.{s.key}") for s in presets}
        origin = f"teams.{team}.run" if loads else DEFAULT
        under[f"{prefix}name"] = Setting(f"{prefix}name", name, origin)
    for layer in layers:
        names_another = any(s.key == f"{prefix}name" and s.value != name for s in layer)
        under |= {s.key: s for s in layer if s.key.startswith(prefix) and not names_another}
    for key in [key for key in leaves if key.startswith(prefix)]:
        del leaves[key]
    leaves |= under


def _inherited(team: str, leaves: _Leaves) -> _Leaves:
    """The leaves with what a team that learns takes from the top sections, such as its rewards, under its own."""
    prefix = f"teams.{team}."
    if not registry.algorithm(str(leaves[f"{prefix}algo.name"].value)).capabilities.learns:
        return leaves
    sections = tuple(f"{name}." for name in _TEAM_SECTIONS)
    own = [s for k, s in leaves.items() if k.startswith(tuple(prefix + section for section in sections))]
    rest = {k: s for k, s in leaves.items() if k not in {s.key for s in own}}
    top = [s.moved(f"{prefix}{k}", f"inherits {k}") for k, s in leaves.items() if k.startswith(sections)]
    return rest | _laid({s.key: s for s in top}, own)


def _laid(under: _Leaves, above: Iterable[Setting]) -> _Leaves:
    """The leaves with settings over them: null closes a section, and a key inside opens it again."""
    leaves = dict(under)
    for setting in above:
        for key, other in list(leaves.items()):
            closed = setting.value is None and key.startswith(f"{setting.key}.")
            if closed or (other.value is None and setting.key.startswith(f"{key}.")):
                del leaves[key]
        leaves[setting.key] = setting
    return leaves


# ------------------------------------------------------------------------------------------------------------- typing


def _build(leaves: _Leaves, user: Iterable[Setting]) -> Resolved:
    """Typed models from leaf values. UserError for the first mistake; `user` are the settings to look at first."""
    for key in ("algo.name", "env.name"):
        _named(key, [list(leaves.values())], "")
    algo, env = str(leaves["algo.name"].value), str(leaves["env.name"].value)
    teams = list(dict.fromkeys(team for team in map(_team_of, leaves.values()) if team))
    models: dict[str, type[BaseModel]] = {"env.": _env_model(env), "algo.": registry.algorithm(algo).Config}
    for team in teams:
        name = _named(f"teams.{team}.algo.name", [list(leaves.values())], algo)
        models[f"teams.{team}.algo."] = registry.algorithm(name).Config
    for setting in [*user, *leaves.values()]:
        _check_key(setting, models, teams, leaves)
    env_choice = _choice("env.", env, models["env."], leaves)
    _check_teams(env_choice, teams, leaves)
    tree = settings.nest({k: s.value for k, s in leaves.items() if k.partition(".")[0] not in {"algo", "env", "teams"}})
    tree |= {"env": env_choice, "algo": _choice("algo.", algo, models["algo."], leaves)}
    tree["teams"] = {team: _team(team, models[f"teams.{team}.algo."], leaves) for team in teams}
    config = _validated(RunConfig, tree, "", leaves)
    origins = {key: leaves[key].origin if key in leaves else DEFAULT for key, _ in settings.flatten(config.tree())}
    return Resolved(config, origins)


def _env_model(name: str) -> type[BaseModel]:
    world = registry.environment(name)
    return FactoryParams if registry.is_batch_factory(name) else world.Config


def _team(team: str, model: type[BaseModel], leaves: _Leaves) -> TeamConfig:
    prefix = f"teams.{team}."
    algo = _choice(f"{prefix}algo.", str(leaves[f"{prefix}algo.name"].value), model, leaves)
    own = {k.removeprefix(prefix): s.value for k, s in leaves.items() if k.startswith(prefix)}
    tree = settings.nest({key: value for key, value in own.items() if not key.startswith("algo.")}) | {"algo": algo}
    if isinstance(tree.get("roles"), str):
        tree["roles"] = [tree["roles"]]
    return _validated(TeamConfig, tree, prefix, leaves)


def _choice(prefix: str, name: str, model: type[BaseModel], leaves: _Leaves) -> Choice:
    own = {key.removeprefix(prefix): setting.value for key, setting in leaves.items() if key.startswith(prefix)}
    own.pop("name", None)
    return Choice(name=name, params=_validated(model, settings.nest(own), prefix, leaves))


def _validated(model: type[Any], tree: dict[str, Any], prefix: str, leaves: _Leaves) -> Any:
    """The model of a tree. UserError names the first key at fault, its origin, and the others."""
    fields = messages.leaf_fields(model, prefix)
    for key, setting in leaves.items():
        if key in fields and isinstance(setting.value, float) and not math.isfinite(setting.value):
            raise UserError(f"{key}={setting.value}{_where(setting)}: expected a finite number")
    try:
        built = model.model_validate(tree)
    except ValidationError as error:
        (key, line), *others = messages.mistakes(error, fields, prefix)
        more = f" (wrong too: {', '.join(other for other, _ in others)})" if others else ""
        raise UserError(f"{line}{_where(leaves.get(key))}{more}") from error
    for key, value in settings.flatten(built.model_dump(mode="python"), prefix):
        given = leaves.get(key)
        if given and isinstance(given.value, bool) and isinstance(value, int | float) and not isinstance(value, bool):
            raise UserError(f"{key}={messages.show(given.value)}{_where(given)}: expected a number")
    return built


def _where(setting: Setting | None) -> str:
    return f" ({setting.origin})" if setting and setting.origin not in {COMMAND_LINE, DEFAULT} else ""


# --------------------------------------------------------------------------------------------------------------- keys


def _known(models: Mapping[str, type[BaseModel]], teams: Iterable[str]) -> dict[str, Any]:
    """Every valid leaf key with its field."""
    known = {
        k: f for k, f in messages.leaf_fields(RunConfig).items() if k.partition(".")[0] not in {"algo", "env", "teams"}
    }
    for prefix, model in models.items():
        known |= {f"{prefix}name": None, **messages.leaf_fields(model, prefix)}
    for team in teams:
        own = messages.leaf_fields(TeamConfig, f"teams.{team}.")
        known |= {key: field for key, field in own.items() if not key.startswith(f"teams.{team}.algo.")}
    return known


def _check_key(setting: Setting, models: Mapping[str, type[BaseModel]], teams: Iterable[str], leaves: _Leaves) -> None:
    """UserError for a key that is not there, with the nearest that are."""
    key, known = setting.key, _known(models, teams)
    if key in known or any(f and key.startswith(f"{k}.") and messages.holds_mapping(f) for k, f in known.items()):
        return
    inside = [candidate.removeprefix(f"{key}.") for candidate in known if candidate.startswith(f"{key}.")]
    if inside:
        raise UserError(
            f"{key}={messages.show(setting.value)}: {key} is a section: set {key}.{f' or {key}.'.join(inside[:3])}"
        )
    if key.startswith("env.") and models["env."] is FactoryParams:
        _check_factory_key(setting, str(leaves["env.name"].value))
        return
    inner = key.rpartition(".")[0] + "."
    closed = inner != "env." and any(candidate.startswith(inner) for candidate in known)
    if key.startswith("env.") and models["env."].model_config.get("extra") == "allow" and not closed:
        return
    section = max((prefix for prefix in models if key.startswith(prefix)), key=len, default="")
    where = _where(setting)
    if section.endswith("algo."):
        own = str(leaves[f"{section}name"].value)
        owners = _owners(key.removeprefix(section))
        if owners:
            raise UserError(
                f"{key} is no key of algorithm '{own}' but of {_few(owners)}{where}: "
                "name one of these, or leave the key out"
            )
    raise UserError(f"there is no key '{key}'{where}: {messages.nearest_keys(key, known)}")


def _check_factory_key(setting: Setting, name: str) -> None:
    parameters = registry.factory_parameters(name)
    key = setting.key.removeprefix("env.")
    if parameters is not None and key.partition(".")[0] not in parameters:
        raise UserError(
            f"there is no key '{setting.key}'{_where(setting)}: '{name}' takes no '{key}': {nearest(key, parameters)}"
        )


def _owners(key: str) -> list[str]:
    """Algorithms that have the key. Imports all of them, which only an error may do."""
    return sorted(name for name in registry.ALGOS if key in messages.leaf_fields(registry.algorithm(name).Config))


def _check_teams(env: Choice, teams: Sequence[str], leaves: _Leaves) -> None:
    """UserError for teams and roles that are not there; a user's own batch of copies is asked when it is built."""
    if not teams or registry.is_batch_factory(env.name):
        return
    from coterie.envs.make import spec_of
    from coterie.teams import assign

    wanted: dict[str, Any] = {}
    for team in teams:
        roles = leaves.get(f"teams.{team}.roles")
        value = roles.value if roles else None
        if value is not None and not (isinstance(value, str) or (isinstance(value, list | tuple) and value)):
            raise UserError(
                f"teams.{team}.roles={messages.show(value)}: expected a list of roles, e.g. [adversary,agent]"
            )
        wanted[team] = [value] if isinstance(value, str) else value
    assign(wanted, spec_of(env.name, env.params))


def _few(names: list[str]) -> str:
    """At most four names; of more the first three, and how many others."""
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"

"""Layering: presets, a file and the user's settings are combined into one value per key.

    defaults < environment preset < algorithm preset < algorithm x environment preset < --config FILE < command line

Naming another algorithm or environment starts from its presets: settings that a lower layer gave to the one it named do
not carry over. A team without an algorithm of its own, or with the top-level one, inherits the top-level settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from coterie.algos import registry as algo_registry
from coterie.config import messages, sources
from coterie.config.schema import RunConfig, TeamConfig
from coterie.config.sources import DEFAULT, Setting
from coterie.core.errors import UserError, nearest
from coterie.envs import registry as env_registry

_LONGEST_NAME = 200
"""Characters of the name of an algorithm or environment."""
INHERITED_SECTIONS = tuple(
    name for name in TeamConfig.model_fields if name in RunConfig.model_fields and name != "algo"
)
"""Sections that a team inherits key by key."""

Leaves = dict[str, Setting]
"""Settings by dotted key."""


def compose(*layers: list[Setting]) -> tuple[Leaves, list[Setting]]:
    """Combines presets with the user's layers.

    Args:
        layers: Settings of the user, lowest precedence first.

    Returns:
        All settings by key, and the settings of the user that apply, which are checked first.

    Raises:
        UserError: For an unknown algorithm, variant or environment, and for malformed team keys.
    """
    algo, env, user = user_settings(*layers)
    family = sources.preset("env", env.partition("/")[0])  # for environments without a preset of their own
    leaves = {setting.key: setting for setting in (*family, *sources.preset("env", env))}
    base = _base("algo.", algo, layers)
    leaves |= _presets_of(algo, base, env)
    leaves = _overlay(leaves, user)
    for section, name in (("algo", algo), ("env", env)):
        leaves.setdefault(f"{section}.name", Setting(f"{section}.name", name, DEFAULT))
    if base is not None:
        leaves[base.key] = base
    for team in team_names(leaves.values()):
        _resolve_team_algo(team, leaves, layers, env=env)
        leaves = _inherit_sections(team, leaves)
    return leaves, user


def user_settings(*layers: list[Setting]) -> tuple[str, str, list[Setting]]:
    """Returns the names of algorithm and environment, and the settings of the user that apply.

    Raises:
        UserError: For an unknown algorithm, variant or environment.
    """
    algo = named("algo.name", layers, algo_registry.DEFAULT_ALGO)
    env = named("env.name", layers, env_registry.DEFAULT_ENV)
    _check_names(algo, env)
    return algo, env, _stack([_without_replaced(layer, {"algo": algo, "env": env}) for layer in layers])


def with_known_case(layers: Iterable[list[Setting]]) -> list[list[Setting]]:
    """Replaces the names of algorithms and built-in environments in capital letters, such as `MAPPO`, by theirs."""
    return [[_with_known_case(setting) for setting in layer] for layer in layers]


def _with_known_case(setting: Setting) -> Setting:
    name = setting.value
    if not isinstance(name, str) or ":" in name or name == name.lower():
        return setting
    if setting.key == "env.name":
        known = name.lower() in env_registry.environments() and name not in env_registry.environments()
    else:
        is_algo = f".{setting.key}".endswith(".algo.name")
        known = is_algo and algo_registry.base_name(name.lower()) in algo_registry.ALGOS
    return replace(setting, value=name.lower()) if known else setting


def named(key: str, layers: Iterable[list[Setting]], default: str) -> str:
    """Name given by the highest layer. UserError if it is not a string."""
    name = default
    for layer in layers:
        for setting in layer:
            if setting.key == key:
                what = key.removesuffix(".name")
                if not isinstance(setting.value, str):
                    listing = "envs" if what == "env" else "algos"
                    shown = messages.show(setting.value)
                    raise UserError(f"{what}={shown}: expected a name. `coterie list {listing}` lists them.")
                if len(setting.value) > _LONGEST_NAME:
                    raise UserError(
                        f"{what}={messages.show(setting.value)}: a name of {len(setting.value):,} characters. "
                        f"Names have at most {_LONGEST_NAME}."
                    )
                name = setting.value
    return name


def team_names(settings: Iterable[Setting]) -> list[str]:
    """Teams that the settings mention, in order."""
    return list(dict.fromkeys(team for team in map(_team_of, settings) if team))


def _team_of(setting: Setting) -> str | None:
    """Team of a setting, None for settings of the run."""
    parts = setting.key.split(".")
    if parts[0] != "teams":
        return None
    if len(parts) < 3:
        raise UserError(
            f"{setting.key}={messages.show(setting.value)}: incomplete key. "
            "Write teams.NAME.algo=..., for example teams.adversary.algo=random."
        )
    return parts[1]


def _check_names(algo: str, env: str) -> None:
    """UserError for an unknown algorithm, variant or environment."""
    algo_registry.check_algorithm(algo)
    env_registry.check_environment(env)
    if not algo_registry.is_own_algorithm(algo):
        _check_preset("algo", algo)


def _check_preset(setting: str, algo: str) -> None:
    """UserError if a variant of one of Coterie's algorithms, which `setting` names, does not exist."""
    if algo != algo_registry.base_name(algo) and algo not in sources.presets("algo"):
        base = algo_registry.base_name(algo)
        variants = [name for name in sources.presets("algo") if algo_registry.base_name(name) == base]
        raise UserError(f"{setting}={algo}: no such preset. {nearest(algo, variants)}")


def _stack(layers: Iterable[list[Setting]]) -> list[Setting]:
    """Concatenates layers; a distribution of an environment parameter replaces that of lower layers as a whole."""
    kept: list[Setting] = []
    for layer in layers:
        sampled = {".".join(s.key.split(".")[:2]) for s in layer if s.key.startswith("randomize.")}
        kept = [s for s in kept if ".".join(s.key.split(".")[:2]) not in sampled] + layer
    return kept


def _without_replaced(layer: list[Setting], names: Mapping[str, str]) -> list[Setting]:
    """The layer without its settings for an algorithm or environment that a higher layer replaces."""
    replaced = {
        section
        for section, name in names.items()
        for setting in layer
        if setting.key == f"{section}.name" and setting.value != name
    }
    return [setting for setting in layer if setting.key.partition(".")[0] not in replaced]


def _base(prefix: str, algo: str, layers: Iterable[list[Setting]]) -> Setting | None:
    """Returns the setting that names the algorithm whose presets an algorithm from outside Coterie starts from.

    Args:
        prefix: Section of the algorithm: `algo.` or `teams.NAME.algo.`.
        algo: Its name.
        layers: Settings of the user, lowest precedence first.

    Returns:
        The user's setting `base`, or that of the class; None for Coterie's own algorithms.

    Raises:
        UserError: If one of Coterie's own algorithms is given a base, or the base is none of them.
    """
    key, section = f"{prefix}base", prefix.removesuffix(".")
    given = next((s for layer in reversed([*layers]) for s in layer if s.key == key), None)
    if not algo_registry.is_own_algorithm(algo):
        if given is None:
            return None
        raise UserError(
            f"{key}={messages.show(given.value)}: {algo} has presets of its own. Omit it, or set {section} instead."
        )
    if given is None:
        cls = algo_registry.algorithm(algo)
        found = Setting(key, cls.base, f"class {algo_registry.class_with_base(cls).__name__}")
    else:
        found = replace(given, value=named(key, [[given]], ""))
    name = found.value
    if name != algo_registry.NO_BASE:
        if not isinstance(name, str) or algo_registry.base_name(name) not in algo_registry.ALGOS:
            where = f" ({found.origin})" if given is None else ""
            fix = nearest(str(name), [*algo_registry.ALGOS, algo_registry.NO_BASE])
            raise UserError(f"{key}={messages.show(name)}{where}: no such algorithm of Coterie. {fix}")
        _check_preset(key, name)
    return found


def _presets_of(algo: str, base: Setting | None, env: str) -> Leaves:
    """Returns the presets of an algorithm: its own, or those of its base without settings that its class lacks.

    Defaults that the class changes with a `Config` derived from that of the base have precedence over presets.
    """
    if base is None:
        return _algo_presets(algo, env)
    if base.value == algo_registry.NO_BASE:
        return {}
    found = _algo_presets(base.value, env)
    left_out = {*_missing_settings(algo, base.value, env), *(f"algo.{n}" for n in _changed_defaults(algo, base.value))}
    return {key: setting for key, setting in found.items() if key not in left_out}


def base_lines(config: RunConfig, origins: Mapping[str, str]) -> list[str]:
    """Returns a line for each algorithm from outside Coterie that states where its settings come from.

    Args:
        config: Configuration of the run.
        origins: Origin of each value by dotted key.
    """
    sections = {"algo": config.algo} | {f"teams.{name}.algo": team.algo for name, team in config.teams.items()}
    lines = []
    for section, algo in sections.items():
        key = f"{section}.base"
        if algo.base is None or origins[key].startswith("inherits "):
            continue
        if algo.base == algo_registry.NO_BASE:
            lines.append(f"{key}=none: {algo.name} starts from the defaults of its class")
            continue
        line = f"{key}={algo.base}: {algo.name} starts from the presets of {algo.base}"
        others = [name for name in algo_registry.sharing_class(algo.base) if name != algo.base]
        if others and origins[key].startswith("class "):
            line += f" ({origins[key]}, also that of {', '.join(others)})"
        missing = [key.removeprefix("algo.") for key in _missing_settings(algo.name, algo.base, config.env.name)]
        lines.append(f"{line}, without {', '.join(missing)}, which it lacks" if missing else line)
    return lines


def _missing_settings(algo: str, base: str, env: str) -> list[str]:
    """Returns the keys of the base's presets that the class does not have."""
    own = algo_registry.algorithm(algo).Config.model_fields
    return [key for key in _algo_presets(base, env) if key.startswith("algo.") and key.split(".")[1] not in own]


def _changed_defaults(algo: str, base: str) -> list[str]:
    """Returns the settings to which a `Config` derived from that of the base gives another default."""
    own, theirs = (algo_registry.algorithm(name).Config for name in (algo, base))
    if not issubclass(own, theirs):
        return []
    return [name for name, field in theirs.model_fields.items() if own.model_fields[name].default != field.default]


def _algo_presets(algo: str, env: str) -> Leaves:
    """Presets of an algorithm (those of a variant override its base's), and of the algorithm in the environment.

    Those of the environment's family, the part of its name before the first slash, come first.
    """
    base = algo_registry.base_name(algo)
    found = sources.preset("algo", base)
    if algo != base:
        found += sources.preset("algo", algo)
    found += sources.preset("algo_env", f"{algo}/{env.partition('/')[0]}")
    found += sources.preset("algo_env", f"{algo}/{env}")
    return {setting.key: setting for setting in found}


def _resolve_team_algo(team: str, leaves: Leaves, layers: Iterable[list[Setting]], *, env: str) -> None:
    """Puts inherited settings, or presets, below a team's own algorithm settings. Changes `leaves`."""
    prefix = f"teams.{team}.algo."
    layers = [list(layer) for layer in layers]
    top = str(leaves["algo.name"].value)
    loads_run = f"{prefix}run" in leaves and f"{prefix}name" not in leaves
    name = named(f"{prefix}name", layers, "frozen" if loads_run else top)
    top_base = str(leaves["algo.base"].value) if "algo.base" in leaves else ""
    if name == top and named(f"{prefix}base", layers, top_base) == top_base:
        inherited = [s for k, s in leaves.items() if k.startswith("algo.")]
        below = {f"teams.{team}.{s.key}": s.moved(f"teams.{team}.{s.key}", f"inherits {s.key}") for s in inherited}
    else:
        _check_names(name, env)
        base = _base(prefix, name, layers)
        presets = [s for k, s in _presets_of(name, base, env).items() if k.startswith("algo.")]
        below = {f"teams.{team}.{s.key}": s.moved(f"teams.{team}.{s.key}") for s in presets}
        if base is not None:
            below[base.key] = base
        origin = f"teams.{team}.run" if loads_run else DEFAULT
        below[f"{prefix}name"] = Setting(f"{prefix}name", name, origin)
    for layer in layers:
        names_another = any(s.key == f"{prefix}name" and s.value != name for s in layer)
        below |= {s.key: s for s in layer if s.key.startswith(prefix) and not names_another}
    for key in [key for key in leaves if key.startswith(prefix)]:
        del leaves[key]
    leaves |= below


def _inherit_sections(team: str, leaves: Leaves) -> Leaves:
    """Puts the top-level sections, such as rewards, below those of a team that learns."""
    prefix = f"teams.{team}."
    if not algo_registry.algorithm(str(leaves[f"{prefix}algo.name"].value)).capabilities.learns:
        return leaves
    sections = tuple(f"{name}." for name in INHERITED_SECTIONS)
    own = [s for k, s in leaves.items() if k.startswith(tuple(prefix + section for section in sections))]
    rest = {k: s for k, s in leaves.items() if k not in {s.key for s in own}}
    top = [s.moved(f"{prefix}{k}", f"inherits {k}") for k, s in leaves.items() if k.startswith(sections)]
    return rest | _overlay({s.key: s for s in top}, own)


def _overlay(below: Leaves, above: Iterable[Setting]) -> Leaves:
    """Settings over others: null removes a whole section, and a key inside of it restores the section."""
    leaves = dict(below)
    for setting in above:
        for key, other in list(leaves.items()):
            removed = setting.value is None and key.startswith(f"{setting.key}.")
            if removed or (other.value is None and setting.key.startswith(f"{key}.")):
                del leaves[key]
        leaves[setting.key] = setting
    return leaves

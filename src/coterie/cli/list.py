"""`coterie list`: available algorithms, environments, settings and environment parameters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from coterie.core.json_output import print_json
from coterie.core.terminal import print_line

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, and nothing else there.")]


@app.command()
def algos(json: Json = False) -> int:
    """List algorithms with their capabilities and presets.

    Example: coterie list algos --json
    """
    rows = algorithm_rows()
    if json:
        print_json(rows)
        return 0
    from coterie.runs.tables import print_table

    columns = [
        "algorithm",
        *(key for key in rows[0] if key not in {"name", "summary", "presets"}),
        "presets",
        "summary",
    ]
    cells = [[row["name"], *(row[key] for key in columns[1:-2]), row["presets"], row["summary"]] for row in rows]
    print_table(columns, cells)
    return 0


@app.command()
def envs(json: Json = False) -> int:
    """List environments with their roles, actions, step limits and scripts.

    Example: coterie list envs
    """
    from rich.console import Console

    # Imports all installed libraries, which takes seconds on a slow disk.
    with Console(stderr=True).status("inspecting environments"):
        rows = environment_rows()
    if json:
        print_json(rows)
        return 0
    from coterie.runs.tables import print_table

    cells = [
        [row["name"], _by_role(row, "agents"), _by_role(row, "observation"), _by_role(row, "actions"), row["limit"]]
        for row in rows
    ]
    print_table(["environment", "agents by role", "observation size", "actions", "step limit"], cells)
    for line in _scripted(rows):
        print_line(line)
    for line in _missing(rows):
        print_line(line)
    print_line("Custom environments: env=package.module:factory or an entry point; see `coterie check-env --help`.")
    return 0


def _scripted(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a line per set of scripts, with the number of environments that provide it."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        if row.get("scripts"):
            groups.setdefault(", ".join(row["scripts"]), []).append(row["name"])
    return [
        f"algo=scripted in {first}{f' and {len(others)} others' if others else ''}: algo.script={scripts}"
        for scripts, (first, *others) in groups.items()
    ]


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a line per reason why environments are unavailable, with the number of environments."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        if "missing" in row:
            groups.setdefault(row["missing"].replace(f"'{row['name']}'", "''", 1), []).append(row["missing"])
    return [first if not others else f"{first} (and {len(others)} others)" for first, *others in groups.values()]


@app.command()
def keys(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", show_default=False, help="Algorithm and environment, e.g. algo=ippo."),
    ] = None,
    json: Json = False,
) -> int:
    """List all settings of a configuration with their value, origin and meaning.

    Example: coterie list keys algo=ippo env=particle/simple_tag
    """
    rows = key_rows(list(overrides or []))
    if json:
        print_json(rows)
        return 0
    from coterie.runs.tables import print_table

    print_table(["key", "value", "origin", "meaning"], [list(row.values()) for row in rows])
    return 0


@app.command()
def parameters(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", show_default=False, help="Environment, e.g. env=particle/simple_tag."),
    ] = None,
    json: Json = False,
) -> int:
    """List the parameters of an environment that lessons and randomize.NAME can change, with their values and ranges.

    Example: coterie list parameters env=particle/simple_tag
    """
    rows = parameter_rows(list(overrides or []))
    if json:
        print_json(rows)
        return 0
    from coterie.runs.tables import print_table

    cells = [["" if value is None else value for value in row.values()] for row in rows]
    print_table(["parameter", "value", "min", "max", "meaning"], cells)
    return 0


def parameter_rows(overrides: list[str]) -> list[dict[str, Any]]:
    """Returns one dict per parameter of the environment: name, value, bounds (None if unbounded) and meaning."""
    import math
    from contextlib import closing

    from coterie.config.resolve import resolve
    from coterie.envs.contract.parameters import RandomizableEnv
    from coterie.envs.make import make

    config = resolve(overrides).config
    with closing(make(config.env.name, config.env.params)) as env:
        declared = env.parameters() if isinstance(env, RandomizableEnv) else {}
    return [
        {
            "parameter": name,
            **{
                key: x if math.isfinite(x) else None
                for key, x in (("value", p.value), ("low", p.low), ("high", p.high))
            },
            "meaning": p.meaning,
        }
        for name, p in declared.items()
    ]


def algorithm_rows() -> list[dict[str, Any]]:
    """Returns one dict per algorithm: name, capabilities, presets and summary."""
    import dataclasses

    from coterie.config import registry, sources

    presets = sources.presets("algo")
    rows = []
    for name in registry.ALGOS:
        algorithm = registry.algorithm(name)
        capabilities = {
            field.name: _plain(getattr(algorithm.capabilities, field.name))
            for field in dataclasses.fields(algorithm.capabilities)
        }
        variants = [preset for preset in presets if preset.startswith(f"{name}/")]
        rows.append({"name": name, **capabilities, "presets": variants, "summary": sources.preset_title("algo", name)})
    return rows


def environment_rows() -> list[dict[str, Any]]:
    """Returns one dict per environment, including those of installed packages.

    Each contains name, limit, scripts, and the roles with agents, observation features and actions. Environments that
    cannot be created have no roles, and the reason under `missing`.
    """
    from coterie.config import registry
    from coterie.config.plugins import installed_plugins
    from coterie.core.errors import UserError
    from coterie.envs.make import spec_of

    rows: list[dict[str, Any]] = []
    brought = installed_plugins()
    for name in [*registry.environments(), *brought]:
        try:
            spec = _spec_of_entry(brought[name]) if name in brought else spec_of(name)
        except UserError as error:
            rows.append({"name": name, "limit": None, "roles": [], "missing": str(error)})
            continue
        roles = [
            {
                "role": role.name,
                "team": role.group,
                "agents": role.n,
                "observation": _size(role.observation_space),
                "actions": _actions(role.action),
            }
            for role in spec.roles
        ]
        rows.append(
            {"name": name, "limit": spec.episode_limit, "roles": roles, "scripts": list(registry.scripts(name))}
        )
    return rows


def _spec_of_entry(entry: Any) -> Any:
    """Returns the spec of an environment of another package. Raises UserError for any exception, so others are still
    listed.
    """
    from coterie.config import registry
    from coterie.core.errors import EnvironmentFailedError, UserError, one_line
    from coterie.envs.make import make

    place = f"environment '{entry.name}' of {entry.origin}"
    if registry.plugin_of(entry.name) is None:
        family = entry.name.partition("/")[0]
        raise UserError(f"{place}: '{family}/' is reserved for Coterie's environments. Rename the entry point.")
    try:
        env = make(entry.name)
        env.close()
    except UserError:
        raise
    except Exception as error:
        original = error.__cause__ if isinstance(error, EnvironmentFailedError) and error.__cause__ else error
        raise UserError(f"{place}: failed with {one_line(original)}") from error
    return env.spec


def key_rows(overrides: list[str]) -> list[dict[str, Any]]:
    """Returns one dict per setting of a configuration: key, value, origin and meaning."""
    from coterie.config import registry
    from coterie.config.messages import format_value, leaf_fields
    from coterie.config.resolve import resolve
    from coterie.config.schema import RunConfig, TeamConfig
    from coterie.config.sources import flatten

    resolved = resolve(overrides)
    config = resolved.config
    fields = leaf_fields(RunConfig) | leaf_fields(type(config.env.params), "env.")
    fields |= leaf_fields(registry.algorithm(config.algo.name).Config, "algo.")
    for team, own in config.teams.items():
        fields |= leaf_fields(TeamConfig, f"teams.{team}.") | leaf_fields(type(own.algo.params), f"teams.{team}.algo.")
    meanings = {
        "algo.name": "Name of the algorithm. Set it with algo=NAME.",
        "env.name": "Name of the environment. Set it with env=NAME.",
    }
    return [
        {
            "key": key,
            "value": format_value(value),
            "from": resolved.origins[key],
            "meaning": meanings.get(key) or _meaning(fields.get(key)),
        }
        for key, value in flatten(config.tree())
    ]


def print_run_keys() -> None:
    """Prints the run settings with default and meaning, for `coterie train --help`."""
    from coterie.config.messages import format_value, leaf_fields
    from coterie.config.schema import RunConfig
    from coterie.runs.tables import print_table

    fields = leaf_fields(RunConfig)
    rows = [["algo", "mappo", "Algorithm; see `coterie list algos`. Its settings are algo.*."]]
    rows += [["env", "particle/simple_spread", "Environment; see `coterie list envs`. Its settings are env.*."]]
    rows += [["teams.NAME.algo", "", "Algorithm of one team. Its settings are teams.NAME.algo.*."]]
    rows += [["teams.NAME.run", "", "Run whose frozen policy the team uses."]]
    rows += [["teams.NAME.roles", "", "Roles of the team, e.g. [speaker,listener]."]]
    rows += [
        [key, format_value(field.get_default(call_default_factory=True, validated_data={})), _meaning(field)]
        for key, field in fields.items()
        if key not in {"teams"}
        and key.partition(".")[0] not in {"algo", "env"}
        and not any(key.startswith(f"{section}.") for section in fields)  # optional sections are listed only by name
    ]
    print_table(
        ["key", "default", "meaning"], rows, title="Settings (complete list with values: coterie list keys algo=NAME)"
    )


def _meaning(field: Any) -> str:
    return " ".join((field.description or "").split()) if field is not None else ""


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset | tuple) else value


def _size(space: Any) -> Any:
    shape = getattr(space, "shape", None)
    return str(space) if not shape else shape[0] if len(shape) == 1 else list(shape)


def _actions(action: Any) -> str:
    """Formats actions: `5 choices`, `5 x 10 choices`, `2 continuous`, or both."""
    parts = [f"{' x '.join(str(n) for n in action.choices)} choices"] if action.choices else []
    parts += [f"{action.continuous} continuous"] if action.continuous else []
    return " and ".join(parts)


def _by_role(row: dict[str, Any], key: str) -> str:
    """Formats a value of all roles: once if it is equal, otherwise per role."""
    values = [str(role[key]) for role in row["roles"]]
    if len(row["roles"]) == 1 and key != "agents":
        return values[0]
    if key == "agents":
        return ", ".join(f"{role['agents']} {role['role']}" for role in row["roles"])
    return values[0] if len(set(values)) == 1 else ", ".join(f"{r['role']}: {r[key]}" for r in row["roles"])

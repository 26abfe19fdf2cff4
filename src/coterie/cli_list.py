"""`coterie list`: the algorithms, the environments and the keys that there are."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, and nothing else there.")]


@app.command()
def algos(json: Json = False) -> int:
    """The algorithms with what each supports, and their presets.

    Example: coterie list algos --json
    """
    rows = algorithm_rows()
    if json:
        print(jsonlib.dumps(rows))
        return 0
    from coterie.tables import print_table

    columns = ["algorithm", *(key for key in rows[0] if key not in {"name", "summary", "presets"}), "presets", "is"]
    shown = [[row["name"], *(row[key] for key in columns[1:-2]), row["presets"], row["summary"]] for row in rows]
    print_table(columns, shown)
    return 0


@app.command()
def envs(json: Json = False) -> int:
    """The environments with their roles, actions, step limits and scripts.

    Example: coterie list envs
    """
    from rich.console import Console

    # Libraries are imported for what they say of themselves, which takes seconds where a disk is slow.
    with Console(stderr=True).status("asking every environment what it is"):
        rows = environment_rows()
    if json:
        print(jsonlib.dumps(rows))
        return 0
    from coterie.tables import print_table

    shown = [
        [row["name"], _by_role(row, "agents"), _by_role(row, "observation"), _by_role(row, "actions"), row["limit"]]
        for row in rows
    ]
    print_table(["environment", "agents by role", "features observed", "actions", "steps"], shown)
    for line in _scripted(rows):
        print(line)
    for line in _missing(rows):
        print(line)
    print("Your own: env=package.module:factory or an entry point, see `coterie check-env --help`.")
    return 0


def _scripted(rows: list[dict[str, Any]]) -> list[str]:
    """The scripts that environments bring: one line where several bring the same."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        if row.get("scripts"):
            alike.setdefault(", ".join(row["scripts"]), []).append(row["name"])
    return [
        f"algo=scripted in {first}{f' and {len(others)} more like it' if others else ''}: algo.script={scripts}"
        for scripts, (first, *others) in alike.items()
    ]


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    """Why environments show no roles: one line where several lack the same."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        if "missing" in row:
            alike.setdefault(row["missing"].replace(f"'{row['name']}'", "''", 1), []).append(row["missing"])
    return [first if not others else f"{first} (and so do {len(others)} more)" for first, *others in alike.values()]


@app.command()
def keys(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", show_default=False, help="Which algorithm and environment, e.g. algo=ippo."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Every key of a configuration with its value, where that comes from, and its meaning.

    Example: coterie list keys algo=ippo env=particle/simple_tag
    """
    rows = key_rows(list(overrides or []))
    if json:
        print(jsonlib.dumps(rows))
        return 0
    from coterie.tables import print_table

    print_table(["key", "value", "from", "meaning"], [list(row.values()) for row in rows])
    return 0


@app.command()
def parameters(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", show_default=False, help="Which environment, e.g. env=particle/simple_tag."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """What lessons and randomise.NAME can change about an environment, with its value and range.

    Example: coterie list parameters env=particle/simple_tag
    """
    rows = parameter_rows(list(overrides or []))
    if json:
        print(jsonlib.dumps(rows))
        return 0
    from coterie.tables import print_table

    cells = [["" if value is None else value for value in row.values()] for row in rows]
    print_table(["parameter", "value", "from", "to", "meaning"], cells)
    return 0


def parameter_rows(overrides: list[str]) -> list[dict[str, Any]]:
    """One dict a parameter of the environment that is named: name, value, ends, meaning; None for what is not known."""
    import math
    from contextlib import closing

    from coterie.config import resolve
    from coterie.envs.make import make
    from coterie.envs.parameters import Varying

    config = resolve(overrides).config
    with closing(make(config.env.name, config.env.params)) as env:
        known = env.parameters() if isinstance(env, Varying) else {}
    return [
        {
            "parameter": name,
            **{
                key: x if math.isfinite(x) else None
                for key, x in (("value", p.value), ("low", p.low), ("high", p.high))
            },
            "meaning": p.meaning,
        }
        for name, p in known.items()
    ]


def algorithm_rows() -> list[dict[str, Any]]:
    """One dict an algorithm: name, what its capabilities say, its presets, and what it is."""
    import dataclasses

    from coterie import registry, settings

    presets = settings.presets("algo")
    rows = []
    for name in registry.ALGOS:
        algorithm = registry.algorithm(name)
        able = {
            field.name: _plain(getattr(algorithm.capabilities, field.name))
            for field in dataclasses.fields(algorithm.capabilities)
        }
        variants = [preset for preset in presets if preset.startswith(f"{name}/")]
        rows.append({"name": name, **able, "presets": variants, "summary": settings.preset_title("algo", name)})
    return rows


def environment_rows() -> list[dict[str, Any]]:
    """One dict an environment, installed packages' too: name, limit, scripts, and its roles with agents, features
    observed and actions; without roles where its library is missing or it is broken, and why.
    """
    from coterie import registry
    from coterie.entries import entries
    from coterie.envs.make import spec_of
    from coterie.errors import UserError

    rows: list[dict[str, Any]] = []
    brought = entries()
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
    """The spec of what a package brings. UserError for whatever it raises: the others are to be listed all the same."""
    from coterie import registry
    from coterie.envs.make import make
    from coterie.errors import UserError

    what = f"environment '{entry.name}' of {entry.origin}"
    if registry.brought(entry.name) is None:
        family = entry.name.partition("/")[0]
        raise UserError(f"{what}: '{family}/' stands for Coterie's own: choose another name for the entry point")
    try:
        env = make(entry.name)
        env.close()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} failed: {type(error).__name__}: {' '.join(str(error).split())}") from error
    return env.spec


def key_rows(overrides: list[str]) -> list[dict[str, Any]]:
    """One dict a key: its name, value, origin and meaning, for the algorithm and environment that are named."""
    from coterie import registry
    from coterie.config import resolve
    from coterie.messages import leaf_fields, show
    from coterie.schema import RunConfig, TeamConfig
    from coterie.settings import flatten

    resolved = resolve(overrides)
    config = resolved.config
    fields = leaf_fields(RunConfig) | leaf_fields(type(config.env.params), "env.")
    fields |= leaf_fields(registry.algorithm(config.algo.name).Config, "algo.")
    for team, own in config.teams.items():
        fields |= leaf_fields(TeamConfig, f"teams.{team}.") | leaf_fields(type(own.algo.params), f"teams.{team}.algo.")
    meanings = {"algo.name": "The algorithm; write algo=NAME.", "env.name": "The environment; write env=NAME."}
    return [
        {
            "key": key,
            "value": show(value),
            "from": resolved.origins[key],
            "meaning": meanings.get(key) or _meaning(fields.get(key)),
        }
        for key, value in flatten(config.tree())
    ]


def print_run_keys() -> None:
    """The run-level keys with default and meaning, for the end of `coterie train --help`."""
    from coterie.messages import leaf_fields, show
    from coterie.schema import RunConfig
    from coterie.tables import print_table

    fields = leaf_fields(RunConfig)
    rows = [["algo", "mappo", "The algorithm: `coterie list algos`; its keys are algo.*."]]
    rows += [["env", "particle/simple_spread", "The environment: `coterie list envs`; its keys are env.*."]]
    rows += [["teams.NAME.algo", "", "A team's own algorithm; its keys are teams.NAME.algo.*."]]
    rows += [["teams.NAME.run", "", "The team acts with this run's policy and does not change."]]
    rows += [["teams.NAME.roles", "", "The roles that form the team, e.g. [speaker,listener]."]]
    rows += [
        [key, show(field.get_default(call_default_factory=True, validated_data={})), _meaning(field)]
        for key, field in fields.items()
        if key not in {"teams"}
        and key.partition(".")[0] not in {"algo", "env"}
        and not any(key.startswith(f"{section}.") for section in fields)  # of what may be off, the switch alone
    ]
    print_table(
        ["key", "default", "meaning"], rows, title="Keys (all of them, with values: coterie list keys algo=NAME)"
    )


def _meaning(field: Any) -> str:
    return " ".join((field.description or "").split()) if field is not None else ""


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset | tuple) else value


def _size(space: Any) -> Any:
    shape = getattr(space, "shape", None)
    return str(space) if not shape else shape[0] if len(shape) == 1 else list(shape)


def _actions(action: Any) -> str:
    """In words: `5 choices`, `5 x 10 choices`, `2 numbers`, or both."""
    parts = [f"{' x '.join(str(n) for n in action.choices)} choices"] if action.choices else []
    parts += [f"{action.continuous} numbers"] if action.continuous else []
    return " and ".join(parts)


def _by_role(row: dict[str, Any], key: str) -> str:
    """One word where all roles agree, else role by role."""
    values = [str(role[key]) for role in row["roles"]]
    if len(row["roles"]) == 1 and key != "agents":
        return values[0]
    if key == "agents":
        return ", ".join(f"{role['agents']} {role['role']}" for role in row["roles"])
    return values[0] if len(set(values)) == 1 else ", ".join(f"{r['role']}: {r[key]}" for r in row["roles"])

"""`coterie list`: available algorithms, environments, settings and environment parameters."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from coterie.cli.help import HelpCommand, HelpGroup
from coterie.cli.options import AlgoName, EnvName, with_names
from coterie.core.errors import UserError, nearest
from coterie.core.terminal import print_json, print_line


def key_rows(overrides: list[str]) -> list[dict[str, Any]]:
    """Returns one dict per setting of a configuration: key, value, origin and meaning."""
    from coterie.algos import registry as algo_registry
    from coterie.assembly.resolve import resolve
    from coterie.config.messages import format_value, leaf_fields
    from coterie.config.schema import RunConfig, TeamConfig
    from coterie.config.sources import flatten

    resolved = resolve(overrides)
    config = resolved.config
    fields = leaf_fields(RunConfig) | leaf_fields(type(config.env.params), "env.")
    fields |= leaf_fields(algo_registry.algorithm(config.algo.name).Config, "algo.")
    for team, own in config.teams.items():
        fields |= leaf_fields(TeamConfig, f"teams.{team}.") | leaf_fields(type(own.algo.params), f"teams.{team}.algo.")
    meanings = {
        "algo.name": "Name of the algorithm. Set it with algo=NAME.",
        "algo.base": "Algorithm of Coterie whose presets an algorithm of your own starts from; none: its own defaults.",
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


def matching(rows: list[dict[str, Any]], filters: list[str]) -> list[dict[str, Any]]:
    """Returns the settings whose key contains all filters or, if there are none, whose meaning does.

    Raises:
        UserError: If there are no such settings.
    """
    wanted = [word.lower() for word in filters]
    for text in ("key", "meaning"):
        found = [row for row in rows if all(word in row[text].lower() for word in wanted)]
        if found:
            return found
    parts = {part for row in rows for part in (row["key"], *row["key"].split("."))}
    raise UserError(f"{' '.join(filters)}: no setting contains this text. {nearest(filters[0], parts)}")


_OFTEN_SET = {
    "algo": "Algorithm, see coterie list algos. Its settings: algo.lr=3e-4",
    "env": "Environment, see coterie list envs. Its settings: env.n=5",
    "teams.NAME.algo": "Algorithm of one team",
    "steps": "Environment steps, e.g. 2e6 or 500k",
    "num_envs": "Environments stepped together",
    "seed": "Seed of all random numbers",
    "eval.every": "Environment steps between evaluations",
    "out": "Folder of the run",
}
"""Settings in the help of `coterie train`, with a few words each."""


def print_run_keys() -> None:
    """Prints the settings that are changed most often, for `coterie train --help`."""
    print_line("Settings that are changed most often:")
    for key, meaning in _OFTEN_SET.items():
        print_line(f"  {key:<16} {meaning}")
    print_line("All settings: coterie list keys. About one subject: coterie list keys eval")


def _meaning(field: Any) -> str:
    return " ".join((field.description or "").split()) if field is not None else ""


app = typer.Typer(
    cls=HelpGroup,
    help="List algorithms, environments and settings. Also the parameters of an environment.",
    no_args_is_help=True,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, and nothing else there.")]
_WIDE = 200
"""Columns of a wide table."""


Wide = Annotated[bool, typer.Option("--wide", help="Print a table with all columns, about 200 characters wide.")]


@app.command(cls=HelpCommand)
def algos(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", show_default=False, help="Show all about one algorithm.")
    ] = None,
    wide: Wide = False,
    json: Json = False,
) -> int:
    """List algorithms with what they support. With a name: all about that algorithm. With --wide: about all of them.

    Examples:

    coterie list algos

    coterie list algos mappo

    coterie list algos my_module:MyMAPPO
    """
    from rich.console import Console

    with Console(stderr=True).status("inspecting algorithms"):  # imports PyTorch
        rows = algorithm_rows() if name is None else [_find(name)]
    if json:
        print_json(rows if name is None else rows[0])
        return 0
    from coterie.runs.tables import print_definition

    if name is not None:
        width = max(map(len, rows[0])) + 2
        for key, value in rows[0].items():
            print_definition(f"{key:<{width}}", value, indent=width)
        return 0
    if not wide:
        _print_brief(rows)
        return 0
    _print_wide([row for row in rows if "missing" not in row])
    for line in [*_missing(rows), _OWN_ALGORITHM]:
        print_definition(line, "", indent=4)
    return 0


@app.command(cls=HelpCommand)
def networks(json: Json = False) -> int:
    """List networks of Coterie for algo.network. With what execution needs: own observations, or those of the team.

    Example: coterie list networks
    """
    rows = network_rows()
    if json:
        print_json(rows)
        return 0
    from coterie.runs.tables import print_definition

    for row in rows:
        numbers = ", any number of agents" if row["any_number_of_agents"] else ""
        print_definition(f"{row['name']:<10}", f"{row['summary']}; {row['execution']} execution{numbers}", indent=10)
    print_definition("Your own: algo.network=package.module:factory.", "", indent=4)
    return 0


def network_rows() -> list[dict[str, Any]]:
    """Returns one dict per network of Coterie: name, execution, any_number_of_agents and summary."""
    from coterie.nets.config import BODY_SUMMARIES, MESSAGE_BODIES

    return [
        {
            "name": name,
            "execution": "centralized" if name in MESSAGE_BODIES else "decentralized",
            "any_number_of_agents": name == "attention",
            "summary": summary,
        }
        for name, summary in BODY_SUMMARIES.items()
    ]


_OWN_ALGORITHM = "Your own: algo=package.module:Class or an entry point of the group coterie.algorithms."


def _print_brief(rows: list[dict[str, Any]]) -> None:
    """Prints a table of algorithms with what decides between them."""
    from coterie.runs.tables import print_definition, print_table

    columns = ["algorithm", "actions", "memory", "images", "death", "central execution", "policy", "paper"]
    print_table(columns, [_brief_cells(row) for row in rows if "missing" not in row])
    print_line("What an algorithm does, and its presets: coterie list algos NAME, or --wide.")
    print_line("Networks, and which of them exchange messages: coterie list networks.")
    for line in [*_missing(rows), _OWN_ALGORITHM]:
        print_definition(line, "", indent=4)


_KINDS = ("discrete", "multi_discrete", "continuous", "hybrid")


def _brief_cells(row: dict[str, Any]) -> list[Any]:
    """Returns the cells of an algorithm in the table of `_print_brief`."""
    actions = "all" if set(_KINDS) <= set(row["actions"]) else ", ".join(k for k in _KINDS if k in row["actions"])
    policy = ("off" if row["off_policy"] else "on") if row["learns"] else ""
    marks = [row["rnn"] or row["memory"], row["images"], row["dying_agents"], row["centralized_execution"]]
    actions, paper = actions.replace("discrete, multi_discrete", "discrete"), row["paper"].replace(" et al.", "")
    return [row["name"], actions, *marks, policy, paper]


def _print_wide(rows: list[dict[str, Any]]) -> None:
    """Prints algorithms with all that is known about them."""
    from coterie.runs.tables import print_table

    columns = [
        "algorithm",
        *(key for key in rows[0] if key not in {"name", "summary", "presets"}),
        "presets",
        "summary",
    ]
    cells = [[row["name"], *(row[key] for key in columns[1:-2]), row["presets"], row["summary"]] for row in rows]
    print_table(columns, cells, width=_WIDE)


def _find(name: str) -> dict[str, Any]:
    """Returns the row of an algorithm, or of a user's own `package.module:Class`. Raises UserError if there is none."""
    from coterie.algos import registry as algo_registry

    known = [*algo_registry.ALGOS, *_algorithms_of_packages()]
    base = name if ":" in name or name in known else name.partition("/")[0]
    if ":" not in name and base not in known:
        raise UserError(f"{name}: no such algorithm. {nearest(name, known)}")
    row = algorithm_row(base)
    if ":" not in name:
        return row
    if "missing" in row:
        raise UserError(row["missing"])
    return row | {"base": algo_registry.algorithm(name).base}


@app.command(cls=HelpCommand)
def envs(
    filter_: Annotated[
        str | None,
        typer.Argument(metavar="[FILTER]", show_default=False, help="List only names that contain this text."),
    ] = None,
    wide: Wide = False,
    json: Json = False,
) -> int:
    """List environments with their agents and step limits. With --wide: also observations and actions.

    Examples:

    coterie list envs

    coterie list envs particle --wide
    """
    from rich.console import Console

    # Imports all installed libraries, which takes seconds on a slow disk.
    with Console(stderr=True).status("inspecting environments"):
        rows = environment_rows(filter_ or "")
    if filter_ and not rows:
        raise UserError(f"{filter_}: no environment has a name with this text. See `coterie list envs`.")
    if json:
        print_json(rows)
        return 0
    from coterie.envs.registry import FAMILIES
    from coterie.runs.tables import print_definition, print_table

    agents = ["agents by role", lambda row: "not installed" if "missing" in row else _by_role(row, "agents")]
    columns = [["environment", lambda row: row["name"]], agents]
    if wide:
        columns += [["observation size", lambda row: _by_role(row, "observation")]]
        columns += [["actions", lambda row: _by_role(row, "actions")]]
    columns += [["step limit", lambda row: row["limit"]]]
    worlds = [row for row in rows if row["name"].partition("/")[0] in FAMILIES]
    others = [row for row in rows if row not in worlds]
    for title, part in (("Built-in batched worlds", worlds), ("Environments of other libraries", others)):
        cells = [[cell(row) for _, cell in columns] for row in part]
        if cells:
            print_table([heading for heading, _ in columns], cells, title=title, width=_WIDE if wide else None)
    own = "Custom environments: env=package.module:factory or an entry point; see `coterie check-env --help`."
    for line in [*_scripted(rows), *_missing(rows), own]:
        print_definition(line, "", indent=4)
    return 0


def _scripted(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a line per set of scripts, with the number of environments that provide it."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        if row.get("scripts"):
            groups.setdefault(", ".join(row["scripts"]), []).append(row["name"])
    return [
        f"algo=scripted in {first}{f' and {_others(others)}' if others else ''}: algo.script={scripts}"
        for scripts, (first, *others) in groups.items()
    ]


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a line per reason why environments are unavailable, with the number of environments."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        if "missing" in row:
            groups.setdefault(row["missing"].replace(f"'{row['name']}'", "''", 1), []).append(row["missing"])
    return [f"{first} (and {_others(others)})" if others else first for first, *others in groups.values()]


def _others(names: list[str]) -> str:
    return "1 other" if len(names) == 1 else f"{len(names)} others"


@app.command(cls=HelpCommand)
def keys(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILTER] [KEY=VALUE]...",
            show_default=False,
            help="Text of keys or meanings to list, and the algorithm and environment, e.g. algo=ippo.",
        ),
    ] = None,
    algo: AlgoName = None,
    env: EnvName = None,
    wide: Wide = False,
    json: Json = False,
) -> int:
    """List the settings of a configuration, or those that contain a text. With their value, origin and meaning.

    Examples:

    coterie list keys eval

    coterie list keys lr algo=ippo env=particle/simple_tag
    """
    filters = [word for word in words or [] if "=" not in word]
    rows = key_rows(with_names([word for word in words or [] if "=" in word], algo=algo, env=env))
    found = matching(rows, filters)
    if json:
        print_json(found)
        return 0
    from coterie.runs.tables import print_definition, print_table

    if wide:
        print_table(["key", "value", "origin", "meaning"], [list(row.values()) for row in found], width=_WIDE)
        return 0
    for row in found:
        origin = "" if row["from"] == "default" else f"  ({row['from']})"
        print_definition(row["key"], f"= {row['value']}{origin}", indent=len(row["key"]) + 1)
        print_definition("    ", row["meaning"], indent=4)
    return 0


@app.command(cls=HelpCommand)
def parameters(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", show_default=False, help="Environment, e.g. env=particle/simple_tag."),
    ] = None,
    env: EnvName = None,
    json: Json = False,
) -> int:
    """List the parameters of an environment that lessons can change. So can randomize.NAME. With values and ranges.

    Example: coterie list parameters env=particle/simple_tag
    """
    rows = parameter_rows(with_names(overrides, env=env))
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

    from coterie.assembly.resolve import resolve
    from coterie.envs.contract.parameters import RandomizableEnv
    from coterie.envs.contract.vector import closed
    from coterie.envs.make import make

    config = resolve(overrides).config
    with closed(make(config.env.name, config.env.params)) as env:
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
    """Returns one dict per algorithm, including those of installed packages: name, capabilities, presets and summary.

    Algorithms that cannot be imported have only a name, and the reason under `missing`.
    """
    from coterie.algos import registry as algo_registry

    return [algorithm_row(name) for name in [*algo_registry.ALGOS, *_algorithms_of_packages()]]


def _algorithms_of_packages() -> list[str]:
    """Returns the names of the algorithms of installed packages."""
    from coterie.algos import registry as algo_registry
    from coterie.config.plugins import ALGORITHMS, installed_plugins

    found = installed_plugins(ALGORITHMS)
    return [name for name in found if algo_registry.base_name(name) not in algo_registry.ALGOS]


def algorithm_row(name: str) -> dict[str, Any]:
    """Returns the row of one algorithm, see `algorithm_rows`."""
    import dataclasses

    from coterie.algos import registry as algo_registry
    from coterie.config import sources

    try:
        algorithm = algo_registry.algorithm(name)
    except UserError as error:
        return {"name": name, "missing": str(error)}
    capabilities = {
        field.name: _plain(getattr(algorithm.capabilities, field.name))
        for field in dataclasses.fields(algorithm.capabilities)
    }
    variants = [preset for preset in sources.presets("algo") if preset.startswith(f"{name}/")]
    title = "" if ":" in name else sources.preset_title("algo", name)
    summary = title or (algorithm.__doc__ or "").strip().partition("\n")[0]
    paper = re.search(r"(?<=[.] )[A-Z][^.]*? et al[.] [0-9]{4}", summary)
    return {
        "name": name,
        **capabilities,
        "paper": paper[0] if paper else "",
        "presets": variants,
        "summary": summary,
    }


def environment_rows(text: str = "") -> list[dict[str, Any]]:
    """Returns one dict per environment whose name contains a text, including those of installed packages.

    Each contains name, limit, scripts, and the roles with agents, observation features and actions. Environments that
    cannot be created have no roles, and the reason under `missing`.
    """
    from coterie.config.plugins import installed_plugins
    from coterie.core.errors import UserError
    from coterie.envs import registry as env_registry
    from coterie.envs.make import spec_of

    rows: list[dict[str, Any]] = []
    brought = installed_plugins()
    for name in [*env_registry.environments(), *brought]:
        if text not in name:
            continue
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
            {"name": name, "limit": spec.episode_limit, "roles": roles, "scripts": list(env_registry.scripts(name))}
        )
    return rows


def _spec_of_entry(entry: Any) -> Any:
    """Returns the spec of an environment of another package. Raises UserError for any exception, so others are still
    listed.
    """
    from coterie.core.errors import EnvironmentFailedError, UserError, one_line
    from coterie.envs import registry as env_registry
    from coterie.envs.make import make

    place = f"environment '{entry.name}' of {entry.origin}"
    if env_registry.plugin_of(entry.name) is None:
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

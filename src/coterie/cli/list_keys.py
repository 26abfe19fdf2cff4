"""Settings and their meanings, for `coterie list keys` and the help of `coterie train`."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import UserError, nearest
from coterie.core.terminal import print_line


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

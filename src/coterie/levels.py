"""Published levels, so that a summary can say how a result stands beside the literature."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

from coterie.registry import base_name
from coterie.schema import RunConfig
from coterie.types import TeamSpec


def known(config: RunConfig, teams: dict[str, TeamSpec]) -> dict[str, float]:
    """Published mean returns by team for the run's environment, its settings and the team's algorithm; {} if none.

    The table is `conf/levels.yaml`. Levels an agent (`scale: agent`) are multiplied by the team's agents, because a
    team's return here is the sum over its agents.
    """
    table = yaml.safe_load((resources.files("coterie") / "conf" / "levels.yaml").read_text(encoding="utf-8"))
    params = config.env.params.model_dump()
    found = {}
    for name, team in teams.items():
        algo = base_name(config.algo_of(name).name)
        for entry in table:
            if _fits(entry, config.env.name, params) and algo in entry["levels"]:
                scale = team.n if entry["scale"] == "agent" else 1
                found[name] = entry["levels"][algo] * scale
    return found


def _fits(entry: dict[str, Any], env: str, params: dict[str, Any]) -> bool:
    return entry["env"] == env and all(params.get(key) == value for key, value in entry["params"].items())

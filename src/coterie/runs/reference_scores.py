"""Published scores for comparison with the results of a run."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

from coterie.config.registry import base_name
from coterie.config.schema import RunConfig
from coterie.core.specs import TeamSpec


def published_scores(config: RunConfig, teams: dict[str, TeamSpec]) -> dict[str, float]:
    """Returns published mean returns by team for the run's environment, its settings and the team's algorithm.

    The table is `config/presets/reference_scores.yaml`. Scores per agent (`scale: agent`) are multiplied by the number
    of agents, because the return of a team is the sum over its agents. Teams without a published score are omitted.
    """
    path = resources.files("coterie.config") / "presets" / "reference_scores.yaml"
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    params = config.env.params.model_dump()
    scores = {}
    for name, team in teams.items():
        algo = base_name(config.algo_of(name).name)
        for entry in table:
            if _matches(entry, config.env.name, params) and algo in entry["levels"]:
                scale = team.n if entry["scale"] == "agent" else 1
                scores[name] = entry["levels"][algo] * scale
    return scores


def _matches(entry: dict[str, Any], env: str, params: dict[str, Any]) -> bool:
    return entry["env"] == env and all(params.get(key) == value for key, value in entry["params"].items())

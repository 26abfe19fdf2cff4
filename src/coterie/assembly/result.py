"""The result of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.runs.folder import RunFolder
from coterie.runs.summary import Summary


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class RunResult:
    """Result of a training.

    Attributes:
        run: Folder of the run.
        summary: Summary of the run.
        exit_code: 0; 130 or 143 if the training was interrupted by SIGINT or SIGTERM.
    """

    run: Path
    summary: Summary
    exit_code: int

    def report(self) -> dict[str, Any]:
        """Returns the result as plain numbers and strings, with the roles of each team and the reason for the teams."""
        teams = {
            team.team or "team": {
                "start": team.start,
                "now": team.now,
                "now_error": _finite(team.now_error),
                "best": _finite(team.best),
                "best_error": _finite(team.best_error),
                "random": team.random,
                "below_random": team.is_below_random and not self.summary.is_contested,
                "problem": "" if self.summary.is_contested else team.problem,
            }
            for team in self.summary.teams
        }
        formed = RunFolder(self.run).read_manifest()
        return {
            "run": str(self.run),
            "steps": self.summary.steps,
            "wall_s": self.summary.wall_s,
            "teams": teams,
            "roles": formed.get("teams", {}),
            "teams_because": formed.get("teams_because"),
        }

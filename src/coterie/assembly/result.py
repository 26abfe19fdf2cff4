"""The result of a training."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.runs import loggers
from coterie.runs.folder import RunFolder
from coterie.runs.summary import Summary


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class TrainingResult:
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

    def metrics(self) -> Any:
        """Returns everything that the run has logged as a pandas DataFrame.

        Each row is a log entry, of training or of an evaluation. The column `steps` has its environment steps, the
        others the metrics by name, such as `eval/return_mean`, or NaN where an entry has none.

        Raises:
            UserError: If pandas is not installed, or the log cannot be read.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UserError(
                f"metrics(): pandas is not installed ({error}). Install it: pip install pandas. Without it, read "
                f"{RunFolder(self.run).metrics_path}, which has one JSON object per line."
            ) from error
        return pandas.DataFrame(loggers.read(RunFolder(self.run).metrics_path))

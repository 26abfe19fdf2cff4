"""The findings that the summary of a training shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.algos.algorithm import Algorithm
from coterie.commands.diagnose import continuous_actions
from coterie.config.schema import RunConfig
from coterie.config.sources import flatten
from coterie.core.errors import one_line
from coterie.core.terminal import print_message
from coterie.diagnosis.checks import diagnose_view
from coterie.diagnosis.rendering import one_line as finding_line
from coterie.diagnosis.run_view import view_run

MOST = 2
"""Findings that a summary shows."""


def worst_findings(
    config: RunConfig,
    rows: Sequence[Mapping[str, Any]],
    algorithms: Mapping[str, Algorithm],
    random: Mapping[str, float | None] | None,
) -> tuple[str, ...]:
    """Returns the first findings of high severity, one line each.

    They are those of the log alone, without a rollout and without reading checkpoints, which takes milliseconds. A
    learner without gradient steps is left out: the summary has a warning of its own for it.

    Args:
        config: Configuration of the run.
        rows: Entries of its log.
        algorithms: Algorithms by team.
        random: Returns of the random policy by team.
    """
    try:
        view = view_run(
            dict(flatten(config.tree())),
            rows,
            list(algorithms),
            random=random,
            continuous={name: continuous_actions(algorithm.policy.team) for name, algorithm in algorithms.items()},
        )
        found = diagnose_view(view, Path("")).findings
    except Exception as error:  # a finished training does not fail because of its diagnosis
        print_message(f"the run could not be diagnosed: {one_line(error)}")
        return ()
    unlearned = {team.name for team in view.teams if team.series("replay/sequences") and not _updates(team)}
    high = [
        finding
        for finding in found
        if finding.severity == "high" and not (finding.check == "gradient steps" and finding.team in unlearned)
    ]
    return tuple(finding_line(finding) for finding in high[:MOST])


def _updates(team: Any) -> float:
    updates = team.series("replay/updates")
    return updates.max() if len(updates) else 0.0

"""All checks, and the diagnosis that they make of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.diagnosis import (
    environment_checks,
    experience_checks,
    gradient_checks,
    network_checks,
    policy_checks,
    value_checks,
)
from coterie.diagnosis.findings import SEVERITIES, Diagnosis, Finding, Outcome, Skipped, SkippedCheck
from coterie.diagnosis.run_view import RunView, TeamView


@dataclass(frozen=True)
class Check:
    """A check of each team that learns (`of_team`), or of the whole run (`of_run`)."""

    name: str
    of_team: Callable[[RunView, TeamView], Outcome] | None = None
    of_run: Callable[[RunView], Outcome] | None = None


CHECKS = (
    Check("episode end", of_run=environment_checks.episode_end),
    Check("reward scale", environment_checks.reward_scale),
    Check("gradient steps", gradient_checks.gradient_steps),
    Check("value range", value_checks.value_range),
    Check("gradients", gradient_checks.gradient_norm),
    Check("dead units", network_checks.dead_units),
    Check("saturated tanh", network_checks.saturated_tanh),
    Check("observation scale", network_checks.observation_scale),
    Check("exploration", experience_checks.exploration),
    Check("entropy", policy_checks.entropy_collapse),
    Check("replay", experience_checks.replay),
    Check("kl", policy_checks.kl_range),
    Check("clip fraction", policy_checks.clip_fraction),
    Check("explained variance", value_checks.explained_variance),
    Check("evaluation mode", experience_checks.evaluation_mode),
    Check("environment speed", of_run=environment_checks.environment_speed),
)
"""All checks. Among findings of equal severity, those of earlier checks come first: causes before symptoms."""


def diagnose_view(view: RunView, run: Path, notes: tuple[str, ...] = ()) -> Diagnosis:
    """Makes all checks of a run.

    Args:
        view: What is known of the run.
        run: Folder of the run.
        notes: Lines on what was examined.
    """
    findings: list[Finding] = []
    skipped: list[SkippedCheck] = []
    passed: list[str] = []
    for check in CHECKS:
        outcomes = _outcomes(check, view)
        found = [outcome for _, outcome in outcomes if isinstance(outcome, Finding)]
        findings += found
        for team, outcome in outcomes:
            if isinstance(outcome, Skipped):
                skipped.append(SkippedCheck(check.name, outcome.reason, outcome.applies, team))
        if not found and any(outcome is None for _, outcome in outcomes):
            passed.append(check.name)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))  # stable: keeps the order of the checks
    return Diagnosis(str(run), view.steps, view.total, tuple(findings), tuple(passed), tuple(skipped), notes)


def _outcomes(check: Check, view: RunView) -> list[tuple[str, Outcome]]:
    if check.of_run is not None:
        return [("", check.of_run(view))]
    assert check.of_team is not None
    if not view.teams:
        return [("", Skipped("no team has learned yet"))]
    return [(team.name, check.of_team(view, team)) for team in view.teams]

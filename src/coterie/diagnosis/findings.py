"""Results of checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["high", "medium", "low"]

SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")
"""From the worst on."""


@dataclass(frozen=True)
class Finding:
    """A problem of a run.

    Attributes:
        check: Name of the check.
        severity: high: the run is unlikely to learn, or wastes most of its time. medium: learning is probably worse
            than it could be. low: worth knowing.
        evidence: What was measured, in numbers.
        fix: A setting to change, with a value, or another way to fix it.
        team: Team that it concerns; "" for the whole run, or if there is only one team.
    """

    check: str
    severity: Severity
    evidence: str
    fix: str
    team: str = ""

    def report(self) -> dict[str, Any]:
        """Returns the finding as plain strings."""
        return dict(vars(self))


@dataclass(frozen=True)
class Skipped:
    """A check that was not made.

    Attributes:
        reason: Why it was not made.
        applies: False if there is nothing to check, such as a replay buffer of an on-policy algorithm; True if
            something that the check needs is missing.
    """

    reason: str
    applies: bool = True


@dataclass(frozen=True)
class SkippedCheck:
    """A check that was not made for a team, or for the run if `team` is ""."""

    check: str
    reason: str
    applies: bool
    team: str = ""


Outcome = Finding | Skipped | None
"""Outcome of a check: a finding, the reason why it was not made, or None if it found nothing."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything that the checks of a run found.

    Attributes:
        run: Folder of the run.
        steps: Environment steps done.
        total: Environment steps of the whole run.
        findings: Problems, the worst first.
        passed: Names of the checks that found nothing for any team.
        skipped: Checks that were not made, with the reason.
        notes: What was examined, and what could not be read, one line each.
    """

    run: str
    steps: int
    total: int
    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    skipped: tuple[SkippedCheck, ...]
    notes: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        """Returns the diagnosis as plain values, as printed by `coterie diagnose --json`."""
        return {
            "run": self.run,
            "steps": self.steps,
            "total": self.total,
            "findings": [finding.report() for finding in self.findings],
            "passed": list(self.passed),
            "skipped": [dict(vars(skipped)) for skipped in self.skipped],
            "notes": list(self.notes),
        }

"""All checks of a run, and the diagnosis that they make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coterie.checks.diagnosis import (
    experience_checks,
    network_checks,
    outcome_checks,
    update_checks,
    value_checks,
)
from coterie.checks.diagnosis.run_view import RunView
from coterie.checks.findings import Finding, Skipped, as_html, render, worst_first, wrap
from coterie.core.markup import Markup, element, folded, join, paragraphs

CHECKS: dict[str, Callable[..., Finding | None]] = {
    "below random": outcome_checks.below_random,
    "fell": outcome_checks.fell,
    "episode end": experience_checks.episode_end,
    "reward scale": experience_checks.reward_scale,
    "gradient steps": update_checks.gradient_steps,
    "values at limits": value_checks.values_at_limits,
    "value range": value_checks.value_range,
    "gradients": update_checks.gradient_norm,
    "dead units": network_checks.dead_units,
    "saturated tanh": network_checks.saturated_tanh,
    "observation scale": network_checks.observation_scale,
    "exploration": experience_checks.exploration,
    "entropy": update_checks.entropy_collapse,
    "replay": experience_checks.replay,
    "kl": update_checks.kl_range,
    "clip fraction": update_checks.clip_fraction,
    "effective samples": update_checks.effective_samples,
    "explained variance": value_checks.explained_variance,
    "nothing learned": outcome_checks.nothing_learned,
    "evaluation mode": experience_checks.evaluation_mode,
    "environment speed": experience_checks.environment_speed,
}
"""All checks by name. Among findings of equal severity, those of earlier checks come first: a result below what the run
had to begin with or had reached, then causes before symptoms, of which the last is that it learned nothing.
"""

OF_RUN = ("episode end", "environment speed")
"""Names of the checks of the whole run. The others check each team that learns."""

OUTCOME_CHECKS = ("below random", "fell", "nothing learned")
"""Names of the checks of the end of a run, which the summary of a training states in its own words."""

WIDTH = 80


@dataclass(frozen=True)
class SkippedCheck:
    """A check that was not made for a team, or for the run if `team` is "". See `coterie.checks.findings.Skipped`."""

    check: str
    reason: str
    applies: bool
    team: str = ""


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

    def to_dict(self) -> dict[str, Any]:
        """Returns the diagnosis as plain values, as printed by `coterie diagnose --json`."""
        findings = [
            {"check": f.name, "severity": f.severity, "evidence": f.evidence, "fix": f.fix, "team": f.team}
            for f in self.findings
        ]
        return asdict(self) | {"findings": findings}

    def render(self, width: int = WIDTH) -> str:
        """Returns the text: findings, the worst first, then the checks that found nothing or were not made."""
        lines = wrap(f"{self.run}: {self.steps:,} of {self.total:,} steps", width)
        lines += render(self.findings, width)
        count = len(self.passed)
        last = [f"{count} check{'s' * (count != 1)} found nothing: {', '.join(self.passed)}"] if count else []
        last += [*self._skipped(), *self.notes]
        return "\n".join([*lines, "", *(line for text in last for line in wrap(text, width, indent=2))]) + "\n"

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the findings as a table, and the other checks folded."""
        count, found = len(self.passed), len(self.findings)
        title = f"{self.run}: {self.steps:,} of {self.total:,} steps, {found} finding{'s' * (found != 1)}"
        return join(
            (
                element("p", element("b", title)),
                as_html(self.findings),
                folded(f"{count} checks found nothing", paragraphs([", ".join(self.passed)])) if count else None,
                paragraphs([*self._skipped(), *self.notes]),
            )
        )

    def _skipped(self) -> Iterator[str]:
        """Yields a line for each reason, with the checks that were not made for it."""
        for applies, start in ((True, "not checked"), (False, "nothing to check")):
            by_reason: dict[str, list[SkippedCheck]] = {}
            for skipped in self.skipped:
                if skipped.applies == applies:
                    by_reason.setdefault(skipped.reason, []).append(skipped)
            for reason, group in by_reason.items():
                names = ", ".join(dict.fromkeys(skipped.check for skipped in group))
                teams = ", ".join(dict.fromkeys(skipped.team for skipped in group if skipped.team))
                yield f"{start}: {names}{f' (team {teams})' if teams else ''}: {reason}"


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
    for name, check in CHECKS.items():
        calls = [("", (view,))] if name in OF_RUN else [(team.name, (view, team)) for team in view.teams]
        outcomes = [(team, outcome_of(check, *arguments)) for team, arguments in calls]
        for team, outcome in outcomes or [("", Skipped("no team has learned yet"))]:
            if isinstance(outcome, Finding):
                findings.append(replace(outcome, name=name, team=team))
            elif isinstance(outcome, Skipped):
                skipped.append(SkippedCheck(name, str(outcome), outcome.applies, team))
        found = [outcome for _, outcome in outcomes if not isinstance(outcome, Skipped)]
        passed += [name] if found and not any(found) else []
    return Diagnosis(str(run), view.steps, view.total, worst_first(findings), tuple(passed), tuple(skipped), notes)


def outcome_of(check: Callable[..., Finding | None], *arguments: Any) -> Finding | Skipped | None:
    """Returns what a check finds, or why it cannot be made."""
    try:
        return check(*arguments)
    except Skipped as skipped:
        return skipped

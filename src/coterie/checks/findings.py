"""Findings of the checks of environments, algorithms and runs, each with its evidence and a fix."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.core.markup import Markup, table
from coterie.core.text import printable

Severity = Literal["error", "warning", "note", "high", "medium", "low"]

SEVERITIES: tuple[Severity, ...] = ("error", "high", "warning", "medium", "note", "low")
"""From the worst on. Environments and algorithms have errors, warnings and notes; runs high, medium and low."""


@dataclass(frozen=True)
class Finding:
    """A problem that a check found.

    Attributes:
        severity: `error` (training would be wrong or stop), `warning` or `note`. Of a run: `high` (it is unlikely to
            learn, or wastes most of its time), `medium` (learning is probably worse than it could be) or `low`.
        evidence: What was seen, and where first.
        fix: How to fix it.
        name: The violated rule, the recognized mistake or the check of a run. It is filled in by what runs the checks.
        team: Team of a run that it concerns; "" for all, or if there is only one.
        where: File and line of an algorithm to look at first; "" if unknown.
    """

    severity: Severity
    evidence: str
    fix: str
    name: str = ""
    team: str = ""
    where: str = ""

    def one_line(self) -> str:
        """Returns the finding and its fix as one line."""
        team = f"team {self.team}: " if self.team else ""
        return printable(f"{self.name}: {team}{self.evidence}. {self.fix}")


class Skipped(Exception):
    """A check that cannot be made. The message is the reason.

    Args:
        reason: Why it cannot be made.
        applies: False if there is nothing to check, such as a replay buffer of an on-policy algorithm; True if
            something that the check needs is missing.
    """

    def __init__(self, reason: str, *, applies: bool = True):
        super().__init__(reason)
        self.applies = applies


def found_by(check: Callable[..., Finding | None], *arguments: Any) -> Finding | None:
    """Returns what a check finds; None if it finds nothing or cannot be made."""
    try:
        return check(*arguments)
    except Skipped:
        return None


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns the findings by severity. Those of equal severity keep their order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def render(findings: Iterable[Finding], width: int) -> list[str]:
    """Returns the lines of findings, an empty one before each. Of equal fixes, only the first is shown."""
    lines: list[str] = []
    shown: set[tuple[str, str]] = set()
    for finding in findings:
        team = f", team {finding.team}" if finding.team else ""
        lines += ["", *wrap(f"{finding.severity}: {finding.name}{team}", width)]
        lines += wrap(finding.evidence, width, start="  ")
        if (finding.name, finding.fix) not in shown:
            shown.add((finding.name, finding.fix))
            lines += wrap(finding.fix, width, start="  fix: ")
            lines += [printable(f"  see: {finding.where}")] if finding.where else []
    return lines


def as_html(findings: Sequence[Finding]) -> Markup | None:
    """Returns a table of findings, None for none."""
    rows = [
        [f.severity, f"{f.name}{f', team {f.team}' if f.team else ''}", f.evidence, f.fix, f.where] for f in findings
    ]
    columns = ["severity", "check", "evidence", "fix", "see"]
    if not any(f.where for f in findings):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return table(columns, rows) if rows else None


def wrap(text: str, width: int, *, start: str = "", indent: int | None = None) -> list[str]:
    """Returns text with visible control characters as lines of at most `width` characters.

    Args:
        text: The text.
        width: Largest length of a line.
        start: Beginning of the first line.
        indent: Spaces at the start of the other lines; default: the length of `start`.
    """
    spaces = " " * (len(start) if indent is None else indent)
    return textwrap.wrap(printable(start + text), width, subsequent_indent=spaces, break_on_hyphens=False)

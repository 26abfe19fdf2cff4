"""Text of a diagnosis, at most 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from coterie.core.text import printable
from coterie.diagnosis.findings import Diagnosis, Finding, SkippedCheck

WIDTH = 80
_INDENT = 8


def render(diagnosis: Diagnosis) -> str:
    """Returns the diagnosis as text: findings, the worst first, then the checks that found nothing or were not made."""
    blocks = [
        [printable(f"{diagnosis.run}: {diagnosis.steps:,} of {diagnosis.total:,} steps")],
        *(_finding(finding) for finding in diagnosis.findings),
        [*_passed(diagnosis), *_skipped(diagnosis), *(line for note in diagnosis.notes for line in _wrap(note, 2))],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def one_line(finding: Finding) -> str:
    """Returns a finding and its fix as one line."""
    team = f"team {finding.team}: " if finding.team else ""
    return printable(f"{finding.check}: {team}{finding.evidence}. {finding.fix}")


def _finding(finding: Finding) -> list[str]:
    heading = f"{finding.severity:<{_INDENT}}{finding.check}" + (f", team {finding.team}" if finding.team else "")
    indent = " " * _INDENT
    return [
        printable(heading),
        *(indent + line for line in _wrap(finding.evidence, 0, WIDTH - _INDENT)),
        *(indent + line for line in _wrap(f"Fix: {finding.fix}", 5, WIDTH - _INDENT)),
    ]


def _passed(diagnosis: Diagnosis) -> Iterator[str]:
    names = diagnosis.passed
    if names:
        count = f"{len(names)} {'check' if len(names) == 1 else 'checks'} found nothing"
        yield from _wrap(f"{count}: {', '.join(names)}", 2)


def _skipped(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields a line for each reason, with the checks that were not made for it."""
    for applies, start in ((True, "not checked"), (False, "nothing to check")):
        by_reason: dict[str, list[SkippedCheck]] = {}
        for skipped in diagnosis.skipped:
            if skipped.applies == applies:
                by_reason.setdefault(skipped.reason, []).append(skipped)
        for reason, group in by_reason.items():
            names = ", ".join(dict.fromkeys(skipped.check for skipped in group))
            teams = ", ".join(dict.fromkeys(skipped.team for skipped in group if skipped.team))
            of_teams = f" (team {teams})" if teams else ""
            yield from _wrap(f"{start}: {names}{of_teams}: {reason}", 2)


def _wrap(text: str, indent: int, width: int = WIDTH) -> list[str]:
    return textwrap.wrap(
        printable(text), width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=True
    )

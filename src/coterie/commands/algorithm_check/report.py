"""The report on an algorithm: results of the checks, and the mistakes with evidence, fix and place."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coterie.commands.algorithm_check.mistakes import MISTAKES

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class AlgorithmFinding:
    """A recognized mistake.

    Attributes:
        mistake: Name, a key of `coterie.commands.algorithm_check.mistakes.MISTAKES`.
        message: What was measured and what was expected, followed by the mistake in one sentence.
        fix: How to fix it.
        where: File and line of the method to look at first; empty if it is unknown.
    """

    mistake: str
    message: str
    fix: str
    where: str = ""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        check: Name of the check.
        proves: What it shows if it passes.
        status: `passed`, `failed` or `skipped`.
        findings: Mistakes, none unless it failed.
        reason: Why it was skipped; empty otherwise.
        seconds: Duration in seconds.
    """

    check: str
    proves: str
    status: Status
    findings: tuple[AlgorithmFinding, ...] = ()
    reason: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """Returns the result as one line."""
        return f"{self.check:<15} {self.status:<8} {self.seconds:5.1f} s"


@dataclass(frozen=True)
class AlgorithmReport:
    """Result of checking an algorithm.

    Attributes:
        name: Name of the algorithm.
        results: Result of each check in the order in which they ran.
    """

    name: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.findings

    @property
    def findings(self) -> tuple[AlgorithmFinding, ...]:
        """The mistakes that the checks found. Several checks can find the same one."""
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Names of the mistakes, each once."""
        return tuple(dict.fromkeys(finding.mistake for finding in self.findings))

    def render(self, width: int = 80) -> str:
        """Returns the report as plain text with lines of at most `width` characters."""
        counts = {status: sum(r.status == status for r in self.results) for status in ("passed", "failed", "skipped")}
        counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        lines = textwrap.wrap(f"{self.name}: {'passed' if self.ok else 'failed'} ({counted})", width) + [""]
        column = max((len(result.check) for result in self.results), default=0)
        for result in self.results:
            text = result.reason if result.status == "skipped" else result.proves
            head = f"  {result.check:<{column}}  {result.status:<7}  "
            lines += textwrap.wrap(head + text, width, subsequent_indent=" " * len(head))
        shown: set[str] = set()
        for finding in self.findings:
            lines += ["", f"error: {finding.mistake}"]
            lines += textwrap.wrap(finding.message, width, initial_indent="  ", subsequent_indent="  ")
            if finding.mistake in shown:
                continue
            shown.add(finding.mistake)
            lines += textwrap.wrap(finding.fix, width, initial_indent="  fix: ", subsequent_indent="       ")
            if finding.where:
                lines.append(f"  see: {finding.where}")
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data for JSON."""
        return {"algo": self.name, "ok": self.ok, "mistakes": list(self.mistakes)} | {
            "checks": [asdict(result) for result in self.results]
        }


def explanation(mistake: str, evidence: str) -> str:
    """Returns the evidence followed by the mistake, `the value is 0, expected 0.9: ...`."""
    return f"{evidence}: {MISTAKES[mistake].meaning}."

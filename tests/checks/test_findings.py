"""Findings: their order, their text, and what the environment checker turns into one."""

from __future__ import annotations

import pytest

from coterie.checks.environment.rules import RULES, CheckAborted, FindingCollector, Report
from coterie.checks.findings import SEVERITIES, Finding, render, worst_first
from coterie.core.errors import LimitExceededError, UserError
from coterie.envs.external.returned import WrongReturn


def test_the_worst_findings_are_first_and_equal_ones_keep_their_order() -> None:
    findings = [Finding(severity, f"{k}", "fix") for k in (1, 2) for severity in reversed(SEVERITIES)]
    ordered = worst_first(findings)
    assert [finding.severity for finding in ordered] == [severity for severity in SEVERITIES for _ in range(2)]
    assert [finding.evidence for finding in ordered] == ["1", "2"] * len(SEVERITIES)


def test_a_fix_is_shown_once_and_lines_have_a_width() -> None:
    one = Finding(
        "error", "update 1 returned nan: a metric is not finite.", "Return floats.", "non-finite", where="a.py:3"
    )
    findings = (
        one,
        Finding("error", "update 2", "Return floats.", "non-finite"),
        Finding("low", "x\x1b", "y", "kl", "red"),
    )
    assert render(findings, 30) == [
        *("", "error: non-finite", "  update 1 returned nan: a", "  metric is not finite.", "  fix: Return floats."),
        *("  see: a.py:3", "", "error: non-finite", "  update 2"),
        *("", "low: kl, team red", r"  x\x1b", "  fix: y"),
    ]


def test_violations_of_a_rule_are_one_finding_per_subject() -> None:
    collector = FindingCollector()
    for message, subject in (("first", "a"), ("second", "a"), ("third", "b")):
        collector.add("slow", message, subject)
    collector.add("resume", "fourth")
    assert [(f.name, f.severity, f.evidence) for f in collector.findings()] == [
        ("resume", "error", "fourth"),
        ("slow", "warning", "first (seen 2 times)"),
        ("slow", "warning", "third"),
    ]
    assert collector.findings()[0].fix == RULES["resume"].fix
    assert (collector.has("slow", "close"), collector.has("close")) == (True, False)


@pytest.mark.parametrize(
    ("error", "rule", "name", "evidence"),
    [
        (ValueError("no grass"), "raises", "raises", "step() raised ValueError: no grass (test_findings.py, line "),
        (UserError("two agents"), "raises", "refused", "step(): two agents"),
        (UserError("two agents"), "close", "close", "step() raised UserError: two agents (test_findings.py, line "),
        (LimitExceededError("step() did not return"), "close", "close", "step() did not return"),
        (WrongReturn("step-return", "four values"), "raises", "step-return", "four values"),
        (SystemExit(3), "raises", "raises", "step() raised SystemExit: 3 (test_findings.py, line "),
    ],
)
def test_whatever_a_call_raises_is_a_finding(error: BaseException, rule: str, name: str, evidence: str) -> None:
    collector = FindingCollector()
    with pytest.raises(CheckAborted), collector.calling("step()", rule):
        raise error
    with collector.calling("step()", rule, aborts=False):
        raise error
    (finding,) = collector.findings()
    assert finding.name == name
    assert finding.evidence.startswith(evidence)
    assert finding.evidence.endswith("(seen 2 times)")


def test_an_interruption_and_an_aborted_check_are_no_findings() -> None:
    collector = FindingCollector()
    for error in (KeyboardInterrupt, CheckAborted):
        with pytest.raises(error), collector.calling("step()", aborts=False):
            raise error
    assert collector.findings() == ()


def test_a_report_states_the_verdict_and_the_summary() -> None:
    report = Report("pond", (Finding("note", "seen", "Do.", "a"), Finding("note", "seen", "Do.", "b")), {"agents": "3"})
    assert report.ok
    lines = report.render(40).splitlines()
    assert lines[:6] == ["pond: passed (2 notes)", "", "  agents  3", "", "note: a", "  seen"]
    assert not Report("pond", (Finding("error", "seen", "Do.", "a"),)).ok

"""Text of a diagnosis."""

from __future__ import annotations

from coterie.diagnosis.findings import Diagnosis, Finding, SkippedCheck
from coterie.diagnosis.rendering import one_line, render

FINDING = Finding("kl", "medium", "the KL divergence is " + "very " * 20 + "large", "Try algo.lr=0.1 (now 0.5).", "red")


def test_a_diagnosis_as_text() -> None:
    skipped = (
        SkippedCheck("dead units", "no checkpoint", True, "red"),
        SkippedCheck("saturated tanh", "no checkpoint", True, "red"),
        SkippedCheck("replay", "ppo has no replay buffer", False, "red"),
    )
    text = render(Diagnosis("runs/one", 1000, 20_000, (FINDING,), ("gradients", "entropy"), skipped, ("a note",)))
    assert text.splitlines() == [
        "runs/one: 1,000 of 20,000 steps",
        "",
        "medium  kl, team red",
        "        the KL divergence is very very very very very very very very very very",
        "        very very very very very very very very very very large",
        "        Fix: Try algo.lr=0.1 (now 0.5).",
        "",
        "2 checks found nothing: gradients, entropy",
        "not checked: dead units, saturated tanh (team red): no checkpoint",
        "nothing to check: replay (team red): ppo has no replay buffer",
        "a note",
    ]


def test_hostile_names_are_escaped() -> None:
    finding = Finding("kl", "high", "\x1b[2J", "fix", "red\x07")
    assert one_line(finding) == r"kl: team red\x07: \x1b[2J. fix"
    assert "\x1b" not in render(Diagnosis("runs/\x1b", 1, 1, (finding,), (), ()))

"""Text of a diagnosis."""

from __future__ import annotations

from coterie.checks.diagnosis.diagnosis import Diagnosis, SkippedCheck
from coterie.checks.findings import Finding

EVIDENCE = "the KL divergence is " + "very " * 20 + "large"
FINDING = Finding("medium", EVIDENCE, "Try algo.lr=0.1 (now 0.5).", "kl", "red")


def test_a_diagnosis_as_text() -> None:
    skipped = (
        SkippedCheck("dead units", "no checkpoint", True, "red"),
        SkippedCheck("saturated tanh", "no checkpoint", True, "red"),
        SkippedCheck("replay", "ppo has no replay buffer", False, "red"),
    )
    found = Diagnosis("runs/one", 1000, 20_000, (FINDING,), ("gradients", "entropy"), skipped, ("a note",))
    assert found.render().splitlines() == [
        "runs/one: 1,000 of 20,000 steps",
        "",
        "medium: kl, team red",
        "  the KL divergence is very very very very very very very very very very very",
        "  very very very very very very very very very large",
        "  fix: Try algo.lr=0.1 (now 0.5).",
        "",
        "2 checks found nothing: gradients, entropy",
        "not checked: dead units, saturated tanh (team red): no checkpoint",
        "nothing to check: replay (team red): ppo has no replay buffer",
        "a note",
    ]


def test_hostile_names_are_escaped() -> None:
    finding = Finding("high", "\x1b[2J", "fix", "kl", "red\x07")
    assert finding.one_line() == r"kl: team red\x07: \x1b[2J. fix"
    assert "\x1b" not in Diagnosis("runs/\x1b", 1, 1, (finding,), (), ()).render()

"""Runs the checks of an algorithm and collects their results."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from coterie.commands.algorithm_check import learning, structural, values
from coterie.commands.algorithm_check.mistakes import MISTAKES, Method
from coterie.commands.algorithm_check.report import AlgorithmFinding, AlgorithmReport, CheckResult, explanation
from coterie.commands.algorithm_check.structural import Found
from coterie.commands.algorithm_check.subject import AlgorithmRaised, NotApplicable, Subject
from coterie.core.errors import UserError, nearest

CHECKS: dict[str, Callable[[Subject], Found]] = {
    "updates": structural.check_updates,
    "determinism": structural.check_determinism,
    "isolation": structural.check_isolation,
    "resume": structural.check_resume,
    "masks": structural.check_masks,
    "dead-agents": structural.check_dead_agents,
    "episode-ends": structural.check_episode_ends,
    "hidden-state": structural.check_hidden_state,
    "reward": learning.check_reward,
    "observation": learning.check_observation,
    "group-reward": learning.check_group_reward,
    "discount": learning.check_discount,
    "time-limit": learning.check_time_limit,
    "masked-value": learning.check_masked_value,
    "entropy": learning.check_entropy,
    "recall": learning.check_recall,
    "values": values.check_values,
}
"""Check by name, in the order in which they run. The first line of a check's docstring states what it proves."""

COMPARE_BITS = ("isolation", "resume", "masks", "dead-agents", "episode-ends", "hidden-state")
"""Checks that compare the bits of trainings, which requires that equal seeds give equal bits."""


def run_checks(
    subject: Subject,
    only: Sequence[str] = (),
    on_start: Callable[[str, int, int], None] = lambda name, number, total: None,
    on_result: Callable[[CheckResult], None] = lambda result: None,
) -> AlgorithmReport:
    """Runs the checks.

    Args:
        subject: The algorithm.
        only: Names of the checks to run; empty for all.
        on_start: Called before each check with its name, its number from 1 on, and the number of checks.
        on_result: Called after each check.

    Raises:
        UserError: If there is no check of a name in `only`.
    """
    for name in only:
        if name not in CHECKS:
            raise UserError(f"--only {name}: there is no such check. {nearest(name, CHECKS)}")
    chosen = [name for name in CHECKS if not only or name in only]
    results: list[CheckResult] = []
    for k, name in enumerate(chosen):
        on_start(name, k + 1, len(chosen))
        results.append(_run(name, subject, results))
        on_result(results[-1])
    return AlgorithmReport(subject.name, tuple(results))


def _run(name: str, subject: Subject, earlier: Iterable[CheckResult]) -> CheckResult:
    check = CHECKS[name]
    proves = (inspect.getdoc(check) or "").partition("\n")[0]
    start = time.perf_counter()
    failed = {finding.mistake: finding.message for result in earlier for finding in result.findings}
    if name in COMPARE_BITS and "unseeded-randomness" in failed:
        return CheckResult(name, proves, "skipped", reason="needs equal bits for equal seeds, see `determinism`")
    findings: tuple[AlgorithmFinding, ...] = ()
    try:
        findings = tuple(_finding(subject, mistake, evidence) for mistake, evidence in check(subject))
    except NotApplicable as error:
        return CheckResult(name, proves, "skipped", reason=str(error), seconds=time.perf_counter() - start)
    except AlgorithmRaised as error:
        if failed.get("raises", "").startswith(str(error)):
            return CheckResult(name, proves, "skipped", reason="stopped by the same error as an earlier check")
        findings = (_finding(subject, "raises", str(error)),)
    seconds = time.perf_counter() - start
    return CheckResult(name, proves, "failed" if findings else "passed", findings, seconds=seconds)


def _finding(subject: Subject, mistake: str, evidence: str) -> AlgorithmFinding:
    known = MISTAKES[mistake]
    where = "" if mistake == "raises" else _place(subject, known.method)
    return AlgorithmFinding(mistake, explanation(mistake, evidence), known.fix, where)


def _place(subject: Subject, method: Method) -> str:
    """Returns file and line of a method of the algorithm, such as `mine.py:21 (Mine.update)`; "" if it is unknown."""
    name = "__init__" if method == "policy.act" else method  # where the policy is created
    function = inspect.unwrap(getattr(subject.cls, name))
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return ""
    if file is None:
        return ""
    here = os.path.relpath(file)
    shown = Path(file).name if here.startswith("..") else here
    return f"{shown}:{line} ({function.__qualname__})"

"""`check-algo`: runs the checks of an algorithm and reports the mistakes with evidence, fix and place."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from coterie.algos import registry
from coterie.algos.algorithm import Algorithm
from coterie.assembly.resolve import resolve
from coterie.checks.algorithm import bit_checks, learning_checks
from coterie.checks.algorithm.mistakes import MISTAKES, Method
from coterie.checks.algorithm.subject import AlgorithmRaised, Found, Subject
from coterie.checks.findings import Finding, Skipped, render, wrap
from coterie.core.errors import UserError, nearest
from coterie.core.markup import Markup, preformatted

CHECKS: dict[str, Callable[[Subject], Found]] = {
    "updates": bit_checks.check_updates,
    "determinism": bit_checks.check_determinism,
    "isolation": bit_checks.check_isolation,
    "resume": bit_checks.check_resume,
    "masks": bit_checks.check_masks,
    "dead-agents": bit_checks.check_dead_agents,
    "episode-ends": bit_checks.check_episode_ends,
    "hidden-state": bit_checks.check_hidden_state,
    "reward": learning_checks.check_reward,
    "observation": learning_checks.check_observation,
    "group-reward": learning_checks.check_group_reward,
    "discount": learning_checks.check_discount,
    "time-limit": learning_checks.check_time_limit,
    "masked-value": learning_checks.check_masked_value,
    "entropy": learning_checks.check_entropy,
    "recall": learning_checks.check_recall,
    "values": learning_checks.check_values,
}
"""Check by name, in the order in which they run. The first line of a check's docstring states what it proves."""

COMPARE_BITS = ("isolation", "resume", "masks", "dead-agents", "episode-ends", "hidden-state")
"""Checks that compare the bits of trainings, which requires that equal seeds give equal bits."""

_NO_PROBE = {"frozen": "plays a trained run", "scripted": "plays the script of an environment"}

# ------------------------------------------------------------------------------------------------------------- report


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
    status: Literal["passed", "failed", "skipped"]
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    seconds: float = 0.0


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
    def findings(self) -> tuple[Finding, ...]:
        """The mistakes that the checks found. Several checks can find the same one."""
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Names of the mistakes, each once."""
        return tuple(dict.fromkeys(finding.name for finding in self.findings))

    def _repr_html_(self) -> Markup:
        """Returns the report, which notebooks show."""
        return preformatted(self.render())

    def render(self, width: int = 80) -> str:
        """Returns the report as plain text with lines of at most `width` characters."""
        counts = {status: sum(r.status == status for r in self.results) for status in ("passed", "failed", "skipped")}
        counted = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        lines = [*wrap(f"{self.name}: {'passed' if self.ok else 'failed'} ({counted})", width), ""]
        column = max((len(result.check) for result in self.results), default=0)
        for result in self.results:
            text = result.reason if result.status == "skipped" else result.proves
            lines += wrap(text, width, start=f"  {result.check:<{column}}  {result.status:<7}  ")
        return "\n".join(lines + render(self.findings, width)) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data, as printed by `coterie check-algo --json`."""
        checks = [
            vars(result) | {"findings": [_plain(finding) for finding in result.findings]} for result in self.results
        ]
        return {"algo": self.name, "ok": self.ok, "mistakes": list(self.mistakes), "checks": checks}


def _plain(finding: Finding) -> dict[str, str]:
    return {"mistake": finding.name, "message": finding.evidence, "fix": finding.fix, "where": finding.where}


# ---------------------------------------------------------------------------------------------- algorithm under test


def subject_of_name(name: str, overrides: Sequence[str] = ()) -> Subject:
    """Returns the algorithm with a name, such as `mappo`, `mappo/original` or `package.module:Class`.

    Args:
        name: Its name.
        overrides: Settings, `algo.KEY=VALUE`.

    Raises:
        UserError: If there is no such algorithm or setting.
    """
    for text in overrides:
        if not text.startswith("algo."):
            raise UserError(f"{text}: not a setting of the algorithm. Write algo.KEY=VALUE.")
    if name in _NO_PROBE:
        raise UserError(f"algo={name}: nothing to check, it {_NO_PROBE[name]}. Name an algorithm that acts on its own.")
    choice = resolve([f"algo={name}", "env=probe/both", *overrides]).config.algo
    given = frozenset(text.removeprefix("algo.").partition("=")[0] for text in overrides)
    return Subject(name, _algorithm_class(registry.algorithm(name)), choice.params, given)


def subject_of_class(cls: type[Algorithm], settings: dict[str, Any]) -> Subject:
    """Returns the algorithm of a class with the defaults of its `Config`, apart from `settings`.

    Raises:
        UserError: If it is no class of an algorithm, or a setting is wrong.
    """
    cls = _algorithm_class(cls)
    try:
        params = cls.Config(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{key}={first.get('input')!r}: {first['msg']}. Settings are those of its Config.") from error
    return Subject(cls.__name__, cls, params, frozenset(settings))


def _algorithm_class(cls: Any) -> type[Algorithm]:
    if not isinstance(cls, type) or not issubclass(cls, Algorithm):
        raise UserError(f"{cls!r}: not an algorithm. Derive a class from coterie.algos.algorithm.Algorithm.")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    missing += [name for name in ("Config", "capabilities") if not hasattr(cls, name)]
    if missing:
        raise UserError(f"{cls.__name__}: it lacks {', '.join(missing)}. See Algorithm in coterie.algos.algorithm.")
    return cls


# ------------------------------------------------------------------------------------------------------------ running


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
    failed = {finding.name: finding.evidence for result in earlier for finding in result.findings}
    if name in COMPARE_BITS and "unseeded-randomness" in failed:
        return CheckResult(name, proves, "skipped", reason="needs equal bits for equal seeds, see `determinism`")
    findings: tuple[Finding, ...] = ()
    try:
        findings = tuple(_finding(subject, mistake, evidence) for mistake, evidence in check(subject))
    except Skipped as error:
        return CheckResult(name, proves, "skipped", reason=str(error), seconds=time.perf_counter() - start)
    except AlgorithmRaised as error:
        if failed.get("raises", "").startswith(str(error)):
            return CheckResult(name, proves, "skipped", reason="stopped by the same error as an earlier check")
        findings = (_finding(subject, "raises", str(error)),)
    seconds = time.perf_counter() - start
    return CheckResult(name, proves, "failed" if findings else "passed", findings, seconds=seconds)


def _finding(subject: Subject, mistake: str, evidence: str) -> Finding:
    known = MISTAKES[mistake]
    where = "" if mistake == "raises" else _place(subject, known.method)
    return Finding("error", f"{evidence}: {known.meaning}.", known.fix, mistake, where=where)


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

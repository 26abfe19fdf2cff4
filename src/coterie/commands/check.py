"""Checks environments and algorithms of Python code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coterie.algos.algorithm import Algorithm
from coterie.assembly.resolve import resolve_kwargs
from coterie.checks.algorithm.check_algorithm import AlgorithmReport, run_checks, subject_of_class, subject_of_name
from coterie.checks.environment.check_env import check_env as check
from coterie.checks.environment.rules import Report


def check_env(env: str | Callable[..., Any], **params: Any) -> Report:
    """Checks an environment against the contract like `coterie check-env`.

    Args:
        env: Name of the environment, or a function or class that makes it.
        **params: Settings of the environment, such as `size=8`.

    Returns:
        The report: `ok`, `findings`, each with its fix, and `render(width)` for the text of the command.

    Raises:
        UserError: If there is no such environment, or a setting is invalid.
    """
    config = resolve_kwargs(env={"name": env, **params}, algo="random").config
    return check(config.env.name, config.env.params)


def check_algorithm(algorithm: str | type[Algorithm], *, only: Sequence[str] = (), **settings: Any) -> AlgorithmReport:
    """Checks an algorithm in tiny worlds with known answers like `coterie check-algo`.

    Args:
        algorithm: The class, or a name such as `mappo` or `package.module:Class`.
        only: Names of the checks to run; empty for all.
        **settings: Settings of the algorithm, such as `lr=1e-3`. The checks choose small values for the others.

    Returns:
        The report: `ok`, `mistakes` (their names), `findings`, each with its evidence and fix, `results` of all checks,
        and `render(width)` for the text of the command.

    Raises:
        UserError: If it is no algorithm, or a setting is invalid.
    """
    if isinstance(algorithm, str):
        subject = subject_of_name(algorithm, [f"algo.{key}={value}" for key, value in settings.items()])
    else:
        subject = subject_of_class(algorithm, settings)
    return run_checks(subject, only)

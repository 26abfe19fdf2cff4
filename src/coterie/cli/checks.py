"""`coterie check-env`, `check-algo` and `diagnose`: what is wrong with an environment, an algorithm or a run."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from coterie.cli.options import (
    Checkpoint,
    EnvName,
    Json,
    Overrides,
    RunPath,
    Trust,
    require_environment,
    with_names,
)
from coterie.core.terminal import print_json, print_line, print_progress

if TYPE_CHECKING:
    from coterie.checks.algorithm.check_algorithm import CheckResult


class Report(Protocol):
    """Result of checks."""

    def render(self, width: int) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...


def check_env(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [KEY=VALUE]...",
            show_default=False,
            help="Name of an environment, or package.module:factory, and settings env.KEY=VALUE.",
        ),
    ] = None,
    env: EnvName = None,
    json: Json = False,
) -> int:
    """Check an environment against the contract and suggest fixes. The exit code is 1 if the check fails.

    Example: coterie check-env my_package.my_env:make env.size=8
    """
    settings = with_names(what, env=env)
    if settings and "=" not in settings[0]:
        settings[0] = f"env={settings[0]}"
    require_environment(settings)
    from coterie.assembly.resolve import resolve
    from coterie.checks.environment.check_env import check_env
    from coterie.core.process import configure_process

    configure_process(threads=1)  # more threads would only wait for each other with this few environments
    config = resolve(["algo=random", *settings]).config
    report = check_env(config.env.name, config.env.params)
    _print(report, json, env=config.env.name)
    return 0 if report.ok else 1


def check_algo(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an algorithm, or package.module:Class.")],
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", show_default=False, help="Run this check only. Can be repeated."),
    ] = None,
    json: Json = False,
) -> int:
    """Check an algorithm in worlds with known answers. Likely mistakes are named. The exit code is 1 if a check fails.

    Example: coterie check-algo my_package.my_algorithm:MyAlgorithm algo.lr=1e-3
    """
    from coterie.checks.algorithm.check_algorithm import run_checks, subject_of_name
    from coterie.core.process import configure_process
    from coterie.kernels import switch

    subject = subject_of_name(name, overrides or [])
    configure_process(threads=1)  # the networks are too small for more
    switch.configure("auto")
    report = run_checks(subject, only or [], _print_start, _print_result)
    if not json:
        print_line()
    _print(report, json)
    return 0 if report.ok else 1


def diagnose(
    run: RunPath,
    checkpoint: Checkpoint = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if there is a finding.")] = False,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Report what looks wrong in a run, worst first. Each finding has its evidence and a fix to try.

    Reads metrics and the last checkpoint, and lets policies act for a few steps. The exit code is 0 despite findings.

    Examples:

    coterie diagnose RUN

    coterie diagnose RUN --json --strict
    """
    from coterie.commands import diagnose as command

    report = command.diagnose(run, checkpoint)
    _print(report, json)
    return 1 if strict and report.findings else 0


def _print(report: Report, json: bool, **values: str) -> None:
    """Prints a report as text as wide as the terminal, or as JSON with `values` instead of its own."""
    if json:
        print_json(report.to_dict() | values)
    else:
        for line in report.render(max(60, min(120, shutil.get_terminal_size().columns))).splitlines():
            print_line(line)


def _print_start(name: str, number: int, total: int) -> None:
    """Shows on a terminal which check runs."""
    print_progress(f"{number:2}/{total} {name:<13}")


def _print_result(result: CheckResult) -> None:
    """Prints the result of a check as progress."""
    print_line(f"      {result.check:<13} {result.status:<7} {result.seconds:6.1f} s", sys.stderr)

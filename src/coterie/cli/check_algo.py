"""The command `check-algo`."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import Json, Overrides
from coterie.core.json_output import print_json
from coterie.core.terminal import print_line, print_progress

if TYPE_CHECKING:
    from coterie.commands.algorithm_check.report import CheckResult


def check_algo(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an algorithm, or package.module:Class.")],
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", show_default=False, help="Run this check only. Can be repeated."),
    ] = None,
    json: Json = False,
) -> int:
    """Check an algorithm in worlds with known answers and name likely mistakes. The exit code is 1 if a check fails.

    Example: coterie check-algo my_package.my_algorithm:MyAlgorithm algo.lr=1e-3
    """
    from coterie.commands.algorithm_check.resolver import subject_of_name
    from coterie.commands.algorithm_check.run import run_checks
    from coterie.core.process import configure_process
    from coterie.kernels import switch

    subject = subject_of_name(name, overrides or [])
    configure_process(threads=1)  # the networks are too small for more
    switch.configure("auto")
    report = run_checks(subject, only or [], _print_start, _print_result)
    if json:
        print_json(report.to_dict())
    else:
        print_line()
        for line in report.render(max(60, min(120, shutil.get_terminal_size().columns))).splitlines():
            print_line(line)
    return 0 if report.ok else 1


def _print_start(name: str, number: int, total: int) -> None:
    """Shows on a terminal which check runs."""
    print_progress(f"{number:2}/{total} {name:<13}")


def _print_result(result: CheckResult) -> None:
    """Prints the result of a check as progress."""
    print_line(f"      {result.check:<13} {result.status:<7} {result.seconds:6.1f} s", sys.stderr)

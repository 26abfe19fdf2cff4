"""`coterie diagnose`: find out why a run does not learn."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.options import Checkpoint, Json, RunPath, Trust
from coterie.core.json_output import print_json
from coterie.core.terminal import print_line


def diagnose(
    run: RunPath,
    checkpoint: Checkpoint = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if there is a finding.")] = False,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Report what looks wrong in a run, worst first, with the evidence and a fix to try.

    Reads metrics and the last checkpoint, and lets policies act for a few steps. The exit code is 0 despite findings.

    Examples:

    coterie diagnose RUN

    coterie diagnose RUN --json --strict
    """
    from coterie.commands import diagnose as command
    from coterie.diagnosis.rendering import render

    found = command.diagnose(run, checkpoint)
    if json:
        print_json(found.report())
    else:
        for line in render(found).splitlines():
            print_line(line)
    return 1 if strict and found.findings else 0

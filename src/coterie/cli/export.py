"""`coterie export`: take a trained team to other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie.cli.options import Checkpoint, Json, RunPath, Trust
from coterie.core.terminal import print_json, print_line


def export(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to write.", show_default=False)],
    format_: Annotated[
        Literal["onnx", "torch", "numpy", "mlagents"],
        typer.Option(
            "--format",
            help="onnx: a graph for ONNX runtimes of any language. numpy and torch: weights and a description of the "
            "layers, played with NumPy alone or with PyTorch. mlagents: ONNX models for Unity.",
        ),
    ] = "onnx",
    team: Annotated[
        str | None, typer.Option("--team", metavar="TEAM", show_default=False, help="Export this team only.")
    ] = None,
    checkpoint: Checkpoint = "auto",
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Export the teams of a run. The player in the export needs neither Coterie nor PyTorch.

    Examples:

    coterie export RUN --out exported

    coterie export RUN --format numpy --out exported --team adversary --checkpoint best:adversary
    """
    from coterie.export.export import export as export_run

    report = export_run(run, out, format_, checkpoint=checkpoint, team=team)
    if json:
        print_json(report)
    else:
        chosen = report["checkpoint"]
        print_line(f"checkpoint: {chosen['name']}, step {chosen['steps']:,}")
        for name, files in report["teams"].items():
            print_line(f"{out / name}: {', '.join(files)}")
        if format_ != "mlagents":
            print_line(f"{out / 'coterie_player.py'}: acts with them, without Coterie and PyTorch")
        if format_ in {"numpy", "torch"}:
            print_line(f"{out / 'coterie_player.mjs'}: the same for JavaScript, without packages")
    return 0

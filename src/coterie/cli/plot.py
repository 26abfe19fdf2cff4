"""`coterie plot`: metrics of runs as figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie.core.terminal import print_line


def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", show_default=False, help="Folders of runs, or folders that contain runs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="PNG file; an SVG is written next to it. Default: curves.png in the run's folder, or in the current "
            "folder for several runs.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Metric, such as loss/policy. May be repeated. Default: evaluation or training returns.",
        ),
    ] = None,
    x: Annotated[
        Literal["steps", "seconds"] | None,
        typer.Option("--x", show_default=False, help="Horizontal axis. Default: a panel for each."),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="Average runs with the same value of a setting, such as algo.lr. Default: runs that differ only in "
            "the seed.",
        ),
    ] = None,
    smooth: Annotated[
        int, typer.Option(min=1, max=10**6, metavar="N", help="Mean of the last N log entries; 1: no smoothing.")
    ] = 1,
    csv: Annotated[bool, typer.Option("--csv", help="Write the values to a .csv file next to the figure.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write the figure as .pdf, too.")] = False,
) -> int:
    """Plot learning curves or other metrics. Seeds are averaged, with a confidence band, as PNG and SVG.

    Examples:

    coterie plot runs/particle/simple_spread/* --out spread.png

    coterie plot RUN --metric loss/policy --metric loss/value --x seconds --smooth 20

    coterie plot runs --group-by algo.lr --csv --pdf
    """
    from coterie.runs import plots

    options = plots.PlotOptions(metrics=tuple(metric or ()), x=x, group_by=group_by, smooth=smooth, csv=csv, pdf=pdf)
    for file in plots.plot(runs, out, options=options):
        print_line(str(file))
    return 0

"""`coterie report`: runs as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie.cli.options import Json, Trust
from coterie.core.json_output import print_json
from coterie.core.terminal import print_line, print_message


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            show_default=False,
            help="Folders of runs, or that contain runs, patterns such as 'runs/**', or JSON files of marl-eval.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="HTML file to write.")] = Path("report.html"),
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Metric, such as won or rollout/return_mean; with a minus sign, lower is better. Default: evaluation "
            "returns.",
        ),
    ] = None,
    team: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="Only this team. Default: teams that learn.")
    ] = None,
    score: Annotated[
        Literal["final", "peak", "fresh", "absolute"] | None,
        typer.Option(show_default=False, help="Score of a run, as in `coterie compare`."),
    ] = None,
    normalize: Annotated[
        str, typer.Option(metavar="random|reference|range|none|MIN,MAX", help="As in `coterie compare`.")
    ] = "auto",
    baseline: Annotated[
        str | None,
        typer.Option(metavar="ALGO", show_default=False, help="Compare all others with it. Default: all pairs."),
    ] = None,
    videos: Annotated[
        bool, typer.Option("--videos/--no-videos", help="Embed videos of the best run of each group.")
    ] = True,
    episodes: Annotated[
        int, typer.Option(min=1, max=1000, help="Episodes that the best and the median one are chosen from for videos.")
    ] = 9,
    league: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Result of `coterie league` (.json). May be repeated. Also: league.json in the given folders.",
        ),
    ] = None,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Include runs that are not finished.")] = False,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Accept evaluations with different numbers of episodes.")
    ] = False,
    file_returns: Annotated[
        Literal["team", "agent"] | None,
        typer.Option(show_default=False, help="Convention of returns in JSON files: per team or per agent."),
    ] = None,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Write a report of runs: one HTML file with findings, curves, tables and videos that opens without a network.

    Runs that differ only in the seed are one group. Intervals are those of `coterie compare`.

    Examples:

    coterie report runs

    coterie report runs/particle runs/matrix --out results.html --no-videos
    """
    from coterie.commands import report as command
    from coterie.commands.compare import RunSelection
    from coterie.reports.options import CompareOptions

    written = command.report(
        RunSelection(tuple(runs or ()), metric, team, file_returns, unfinished),
        command.ReportOptions(
            out=out,
            videos=command.VideoOptions(episodes=episodes) if videos else None,
            leagues=tuple(league or ()),
            command=tuple(sys.argv),
        ),
        CompareOptions(score=score, normalize=normalize, baseline=baseline, mixed=mixed),
    )
    comparison = written.comparison
    for note in comparison.notes:
        print_message(note)
    if json:
        print_json({"report": str(written.path), "sentences": comparison.sentences, "notes": comparison.notes})
        return 0
    for sentence in comparison.sentences:
        print_line(sentence)
    size = written.path.stat().st_size
    print_line(f"wrote {written.path} ({size / 1e6:.1f} MB)", sys.stderr)
    return 0

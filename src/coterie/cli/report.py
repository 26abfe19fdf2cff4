"""`coterie report`: runs as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.compare import OptionalRuns, with_compare_options
from coterie.cli.options import Json, Trust
from coterie.core.terminal import print_json, print_line, print_message
from coterie.reports.options import CompareOptions

Videos = Annotated[bool, typer.Option("--videos/--no-videos", help="Embed videos of the best run of each group.")]
VideoEpisodes = Annotated[
    int, typer.Option(min=1, max=1000, help="Episodes that the best and the median one are chosen from for videos.")
]
Leagues = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Result of `coterie league` (.json). May be repeated. Also: league.json in the given folders.",
    ),
]


@with_compare_options
def report(
    runs: OptionalRuns = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="HTML file to write.")] = Path("report.html"),
    options: CompareOptions = CompareOptions(),
    videos: Videos = True,
    episodes: VideoEpisodes = 9,
    league: Leagues = None,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Write a report of runs as one HTML file. It has findings, curves, tables and videos, and needs no network.

    Runs that differ only in the seed are one group. Intervals are those of `coterie compare`.

    Examples:

    coterie report runs

    coterie report runs/particle runs/matrix --out results.html --no-videos
    """
    from coterie.commands import report as command

    written = command.write_report(
        runs or [],
        command.ReportOptions(
            out=out,
            video_episodes=episodes if videos else 0,
            leagues=tuple(league or ()),
            command=tuple(sys.argv),
        ),
        options,
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

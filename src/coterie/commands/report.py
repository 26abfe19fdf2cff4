"""Reports: compares runs and writes the result as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.commands.compare import RunSelection, compare_runs
from coterie.commands.report_videos import VideoOptions, record
from coterie.core.errors import UserError
from coterie.core.terminal import print_message
from coterie.reports.comparison import Comparison
from coterie.reports.options import CompareOptions
from coterie.reports.page import ReportContent, page, report_path, write_page
from coterie.reports.page_media import Matrix, Video, read_league
from coterie.runs.progress import PeriodicProgress

LEAGUE_FILE = "league.json"
"""Name of the result of a league in a folder of runs."""


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        out: File to write, or a folder for `report.html`.
        videos: How to record videos of episodes; None for none.
        leagues: Results of `coterie league` to show, besides the files `league.json` in the folders of the runs.
        command: Words of the command line, for readers who want to repeat it.
    """

    out: Path = Path("report.html")
    videos: VideoOptions | None = None
    leagues: Sequence[Path] = ()
    command: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        path: The file.
        comparison: The comparison that it shows.
    """

    path: Path
    comparison: Comparison


def report(runs: RunSelection, options: ReportOptions | None = None, compare: CompareOptions | None = None) -> Report:
    """Compares runs and writes a page with findings, curves, tables and videos.

    Args:
        runs: The runs.
        options: Output file, videos and league results.
        compare: Options of the comparison.

    Raises:
        UserError: If there are no runs, they cannot be compared, or the file cannot be written.
    """
    options = options or ReportOptions()
    path = report_path(options.out)
    matrices = read_leagues(runs.paths, options.leagues)
    found = compare_runs(runs, compare)
    videos: list[Video] = []
    failed: dict[str, str] = {}
    if options.videos is not None:
        progress = PeriodicProgress(print_message, "videos", unit="groups")
        videos, failed = record(found.comparison, options.videos, progress)
    content = ReportContent(
        found.comparison,
        left_out=found.unfinished,
        command=options.command,
        videos=videos,
        failed=failed,
        matrices=matrices,
    )
    write_page(path, page(content))
    return Report(path, found.comparison)


def read_leagues(runs: Sequence[str], files: Sequence[Path]) -> list[Matrix]:
    """Returns the matrices of results of leagues, each file once.

    Args:
        runs: Folders of runs, or folders that contain runs, which may have a `league.json`.
        files: Further files.

    Raises:
        UserError: If a file does not exist or is not the result of a league.
    """
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise UserError(
            f"--league {missing}: no such file. Name a file that `coterie league` wrote, such as league.json."
        )
    stored = [file for path in runs if (file := Path(path) / LEAGUE_FILE).is_file()]
    chosen = {file.resolve(): file for file in [*files, *stored]}
    return [matrix for file in chosen.values() for matrix in read_league(file)]

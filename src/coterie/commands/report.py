"""Reports: compares runs and writes the result as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.commands.compare import RunSelection, compare_runs
from coterie.reports.comparison import Comparison
from coterie.reports.options import CompareOptions
from coterie.reports.page import ReportContent, page, report_path, write_page


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        out: File to write, or a folder for `report.html`.
        videos: True to embed videos of episodes.
        command: Words of the command line, for readers who want to repeat it.
    """

    out: Path = Path("report.html")
    videos: bool = True
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
        options: What to write, and where.
        compare: Options of the comparison.

    Raises:
        UserError: If there are no runs, they cannot be compared, or the file cannot be written.
    """
    options = options or ReportOptions()
    path = report_path(options.out)
    found = compare_runs(runs, compare)
    content = ReportContent(found.comparison, left_out=found.unfinished, command=options.command)
    write_page(path, page(content))
    return Report(path, found.comparison)

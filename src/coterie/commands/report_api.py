"""Reports of runs from Python."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from coterie.commands.arguments import run_folder
from coterie.commands.compare import RunSelection
from coterie.commands.report import ReportOptions, VideoOptions
from coterie.commands.report import report as write_report
from coterie.reports.comparison import Score
from coterie.reports.options import CompareOptions
from coterie.reports.records import Scale


def report(
    runs: Any,
    *,
    out: str | PathLike[str] = "report.html",
    metric: str | None = None,
    team: str | None = None,
    videos: bool = True,
    episodes: int = 9,
    leagues: Sequence[str | PathLike[str]] = (),
    unfinished: bool = False,
    file_returns: Scale | None = None,
    score: Score | None = None,
    normalize: str = "auto",
    baseline: str | None = None,
    mixed: bool = False,
) -> Path:
    """Writes a report of runs as one HTML file, like `coterie report`.

    Args:
        runs: Folders of runs, or that contain runs, patterns, JSON files of marl-eval, or results of `coterie.train`;
            one of them or a list.
        out: File to write, or a folder for `report.html`.
        metric: Metric, such as `won`; with a minus sign, lower is better. Default: mean returns of evaluations.
        team: Team. Default: all that learn.
        videos: True to embed videos of the best run of each group.
        episodes: Episodes that the best and the median one are chosen from.
        leagues: Results of `coterie league` to show.
        unfinished: True to include runs that are not finished.
        file_returns: Convention of returns in files of marl-eval: `team` or `agent`.
        score, normalize, baseline, mixed: As in `coterie.compare`.

    Returns:
        The file.

    Raises:
        UserError: If there are no runs, they cannot be compared, or the file cannot be written.
    """
    given = list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    paths = tuple(str(run) if isinstance(run, str | PathLike) else str(run_folder(run)) for run in given)
    options = ReportOptions(
        out=Path(out),
        videos=VideoOptions(episodes=episodes) if videos else None,
        leagues=tuple(map(Path, leagues)),
    )
    compare = CompareOptions(score=score, normalize=normalize, baseline=baseline, mixed=mixed)
    return write_report(RunSelection(paths, metric, team, file_returns, unfinished), options, compare).path

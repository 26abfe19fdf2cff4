"""Reports: compares runs and writes the result as one HTML page."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from coterie.commands.compare import compare_runs, paths_of
from coterie.core.errors import UserError
from coterie.core.terminal import print_message
from coterie.reports.comparison import Comparison, TaskResult
from coterie.reports.options import CompareOptions
from coterie.reports.page import ReportContent, page, report_path, write_page
from coterie.reports.page_media import Matrix, Video, read_league
from coterie.reports.records import Trial
from coterie.runs.progress import PeriodicProgress

_SIZE = 320
"""Longer side of the images in pixels."""

_MOST_FRAMES = 400
"""Timesteps of an episode that are recorded; the rest is left out."""

_FPS = 10


def report(
    runs: Any,
    *,
    out: str | PathLike[str] = "report.html",
    videos: bool = True,
    episodes: int = 9,
    leagues: Sequence[str | PathLike[str]] = (),
    **options: Any,
) -> Path:
    """Writes a report of runs as one HTML file, like `coterie report`.

    Args:
        runs: Folders of runs, or that contain runs, patterns, JSON files of marl-eval, or results of `coterie.train`;
            one of them or a list.
        out: File to write, or a folder for `report.html`.
        videos: True to embed videos of the best run of each group.
        episodes: Episodes that the best and the median one are chosen from.
        leagues: Results of `coterie league` to show.
        **options: Further arguments of `coterie.compare`, such as `metric` and `baseline`, but not `evaluate`.

    Returns:
        The file.

    Raises:
        UserError: If there are no runs, they cannot be compared, or the file cannot be written.
    """
    page_options = ReportOptions(
        out=Path(out), video_episodes=episodes if videos else 0, leagues=tuple(map(Path, leagues))
    )
    return write_report(paths_of(runs), page_options, CompareOptions(**options)).path


def best_runs(comparison: Comparison) -> dict[tuple[str, str], Trial]:
    """Returns the run with the best score of each group, by task and algorithm. Files of marl-eval have no policies."""

    def best(result: TaskResult) -> Trial | None:
        order = np.argsort(result.scores if comparison.lowest else -result.scores, kind="stable")
        ranked = [result.trials[i] for i in order]
        return next((trial for trial in ranked if trial.run.origin == "coterie"), None)

    found = {key: best(result) for key, result in comparison.results.items()}
    return {key: trial for key, trial in found.items() if trial is not None}


def record(
    comparison: Comparison, episodes: int, on_progress: Callable[[int, int], None]
) -> tuple[list[Video], dict[str, str]]:
    """Plays episodes of the best run of each group.

    Args:
        comparison: The comparison.
        episodes: Episodes that the best and the median one are chosen from.
        on_progress: Called with the number of groups that are finished and their total.

    Returns:
        The videos, and the reasons by run why there is none.
    """
    found: list[Video] = []
    failed: dict[str, str] = {}
    chosen = best_runs(comparison)
    for i, ((task, algo), trial) in enumerate(chosen.items()):
        on_progress(i, len(chosen))
        try:
            found += _videos(task, algo, trial, episodes)
        except UserError as error:
            failed[trial.run.name] = str(error).removeprefix(f"{trial.run.name}: ")
    on_progress(len(chosen), len(chosen))
    return found, failed


def _videos(task: str, algo: str, trial: Trial, count: int) -> list[Video]:
    from coterie.envs.video import write_video

    episodes = list(_episodes(Path(trial.run.name), trial.team, count))
    order = sorted(range(len(episodes)), key=lambda i: episodes[i].total)
    chosen = {"best": order[-1], "median": order[(len(order) - 1) // 2]}
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, i in chosen.items():
            episode = episodes[i]
            file = write_video(Path(folder) / f"{kind}.mp4", episode.images(), _FPS)
            made.append(
                Video(
                    task=task,
                    algo=algo,
                    run=trial.run.name,
                    kind=kind,
                    episode_return=episode.total,
                    episodes=len(episodes),
                    shown=min(1.0, len(episode.packed) / episode.timesteps),
                    content=file.read_bytes(),
                )
            )
    return made


@dataclass(frozen=True)
class _Episode:
    """Compressed images of an episode's first timesteps, and its return."""

    packed: Sequence[tuple[tuple[int, ...], bytes]]
    timesteps: int
    total: float

    def images(self) -> Iterator[np.ndarray]:
        for shape, content in self.packed:
            yield np.frombuffer(zlib.decompress(content), np.uint8).reshape(shape)


def _episodes(run: Path, team: str, count: int) -> Iterator[_Episode]:
    """Plays episodes of a run's best checkpoint, one after the other."""
    from coterie.assembly.learners import device_of_run, eval_modes, load_run
    from coterie.commands.rendering import Episodes, render_timesteps
    from coterie.core.process import configure_process
    from coterie.core.seeds import seed_of
    from coterie.training.curriculum import lesson_of_checkpoint

    trained = load_run(run, "auto", device_of_run(run), announce=False)
    config, learners = trained.config, trained.algorithms
    configure_process(config.threads)
    episodes = Episodes(
        policies={name: learner.policy for name, learner in learners.items()},
        modes=eval_modes("auto", learners),
        count=count,
        seed=seed_of(0, "play"),
    )
    lesson = None
    if trained.checkpoint is not None and config.curriculum.lessons:
        lesson = lesson_of_checkpoint(trained.checkpoint.state)
    name = team if team in learners else next(iter(learners))
    packed: list[tuple[tuple[int, ...], bytes]] = []
    timesteps = 0
    for image, is_final in render_timesteps(config, episodes, size=_SIZE, lesson=lesson):
        timesteps += 1
        if timesteps <= _MOST_FRAMES:
            packed.append((image.shape, zlib.compress(np.ascontiguousarray(image).data, 1)))
        if is_final:
            yield _Episode(packed, timesteps, episodes.returns[name][-1])
            packed, timesteps = [], 0


LEAGUE_FILE = "league.json"
"""Name of the result of a league in a folder of runs."""


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        out: File to write, or a folder for `report.html`.
        video_episodes: Episodes that the best and the median one are chosen from for videos; 0 for no videos.
        leagues: Results of `coterie league` to show, besides the files `league.json` in the folders of the runs.
        command: Words of the command line, for readers who want to repeat it.
    """

    out: Path = Path("report.html")
    video_episodes: int = 0
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


def write_report(
    paths: Sequence[str | Path], options: ReportOptions | None = None, compare: CompareOptions | None = None
) -> Report:
    """Compares runs and writes a page with findings, curves, tables and videos.

    Args:
        paths: Folders of runs, folders that contain runs, patterns, and JSON files of marl-eval.
        options: Output file, videos and league results.
        compare: Options of the comparison.

    Raises:
        UserError: If there are no runs, they cannot be compared, or the file cannot be written.
    """
    options = options or ReportOptions()
    path = report_path(options.out)
    matrices = read_leagues(paths, options.leagues)
    found = compare_runs(paths, compare)
    videos: list[Video] = []
    failed: dict[str, str] = {}
    if options.video_episodes:
        progress = PeriodicProgress(print_message, "videos", unit="groups")
        videos, failed = record(found.comparison, options.video_episodes, progress)
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


def read_leagues(runs: Sequence[str | Path], files: Sequence[Path]) -> list[Matrix]:
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

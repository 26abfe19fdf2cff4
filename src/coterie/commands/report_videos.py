"""Videos of a report: the best and the median episode of the best run of each group."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.errors import UserError
from coterie.reports.comparison import Comparison, TaskResult
from coterie.reports.page_media import Video
from coterie.reports.records import Trial

_SIZE = 320
"""Longer side of the images in pixels."""

_MOST_FRAMES = 400
"""Timesteps of an episode that are recorded; the rest is left out."""

_FPS = 10


@dataclass(frozen=True)
class VideoOptions:
    """Options of the videos.

    Attributes:
        episodes: Episodes that the best and the median one are chosen from.
        seed: Seed of the episodes.
    """

    episodes: int = 9
    seed: int = 0


def best_runs(comparison: Comparison) -> dict[tuple[str, str], Trial]:
    """Returns the run with the best score of each group, by task and algorithm. Files of marl-eval have no policies."""

    def best(result: TaskResult) -> Trial | None:
        order = np.argsort(result.scores if comparison.lowest else -result.scores, kind="stable")
        ranked = [result.trials[i] for i in order]
        return next((trial for trial in ranked if trial.run.origin == "coterie"), None)

    found = {key: best(result) for key, result in comparison.results.items()}
    return {key: trial for key, trial in found.items() if trial is not None}


def record(
    comparison: Comparison, options: VideoOptions, on_progress: Callable[[int, int], None]
) -> tuple[list[Video], dict[str, str]]:
    """Plays episodes of the best run of each group.

    Args:
        comparison: The comparison.
        options: Options of the videos.
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
            found += _videos(task, algo, trial, options)
        except UserError as error:
            failed[trial.run.name] = str(error).removeprefix(f"{trial.run.name}: ")
    on_progress(len(chosen), len(chosen))
    return found, failed


def _videos(task: str, algo: str, trial: Trial, options: VideoOptions) -> list[Video]:
    from coterie.envs.video import write_video

    episodes = list(_episodes(Path(trial.run.name), trial.team, options))
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


def _episodes(run: Path, team: str, options: VideoOptions) -> Iterator[_Episode]:
    """Plays episodes of a run's best checkpoint, one after the other."""
    from coterie.commands.learners import device_of_run, eval_modes, load_run
    from coterie.commands.rendering import Episodes, render_timesteps
    from coterie.core.process import configure_process
    from coterie.core.seeds import seed_of
    from coterie.training.curriculum.lessons import lesson_of_checkpoint

    trained = load_run(run, "auto", device_of_run(run), announce=False)
    config, learners = trained.config, trained.algorithms
    configure_process(config.threads)
    episodes = Episodes(
        policies={name: learner.policy for name, learner in learners.items()},
        modes=eval_modes("auto", learners),
        count=options.episodes,
        seed=seed_of(options.seed, "play"),
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

"""Playing episodes: shown in a window, recorded to a video, or saved as a replay of the environment's library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.assembly.learners import EvalMode, TrainedRun, eval_modes, load_run_or_make
from coterie.assembly.resolve import Resolved
from coterie.commands.rendering import Episodes, print_returns, render_episodes, save_replay, show
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.core.terminal import message_stream, print_line
from coterie.envs.video import write_video
from coterie.training.curriculum import lesson_of_checkpoint


@dataclass(frozen=True)
class PlayOptions:
    """Options of `play`.

    Attributes:
        video: File to record to; None to show a window.
        replay: Folder for a replay written by the environment's library; takes precedence over the video.
        episodes: Number of episodes.
        mode: Action selection.
        checkpoint: auto, best, best:TEAM, last or a number of steps.
        seed: Seed of the episodes; by default derived from the run's.
        size: Longer side of the images in pixels.
        announce: Print the checkpoint, if it is not the preferred one.
    """

    video: Path | None = None
    replay: Path | None = None
    episodes: int = 1
    mode: EvalMode = "auto"
    checkpoint: str = "auto"
    seed: int | None = None
    size: int = 480
    announce: bool = True


def play(run: Path | None, resolved: Resolved | None = None, options: PlayOptions | None = None) -> Path | None:
    """Plays episodes of a trained run or, without a run, of algorithms that need no training.

    Args:
        run: Folder of the run.
        resolved: Configuration to play with if there is no run.
        options: What to play and how to show it.

    Returns:
        The file or folder that was written; None if a window was shown.
    """
    options = options or PlayOptions()
    trained, episodes = _episodes(run, resolved, options)
    written = None
    if options.replay is not None:
        written = save_replay(trained.config, episodes, options.replay)
    elif options.video is None:
        show(_images(trained, episodes, options), f"{trained.config.algo.name} on {trained.config.env.name}")
    else:
        written = write_video(options.video, _images(trained, episodes, options))
        print_line(f"wrote {written}", message_stream())
    print_returns(episodes.returns)
    return written


def record_video(run: Path, options: PlayOptions) -> None:
    """Records episodes of a run to `options.video`, as `play`, without printing."""
    assert options.video is not None
    trained, episodes = _episodes(run, None, options)
    write_video(options.video, _images(trained, episodes, options))


def _episodes(run: Path | None, resolved: Resolved | None, options: PlayOptions) -> tuple[TrainedRun, Episodes]:
    """Returns the policies, and the episodes that they are to play."""
    trained = load_run_or_make(run, resolved, options.checkpoint, announce=options.announce)
    config, learners = trained.config, trained.algorithms
    configure_process(config.threads)
    return trained, Episodes(
        policies={name: learner.policy for name, learner in learners.items()},
        modes=eval_modes(options.mode, learners),
        count=options.episodes,
        seed=seed_of(config.seed if options.seed is None else options.seed, "play"),
    )


def _images(trained: TrainedRun, episodes: Episodes, options: PlayOptions) -> Iterator[np.ndarray]:
    """Yields the images of the episodes while they are played."""
    config, lesson = trained.config, None
    if trained.checkpoint is not None and config.curriculum.lessons:
        lesson = lesson_of_checkpoint(trained.checkpoint.state)
    return render_episodes(config, episodes, size=options.size, lesson=lesson)

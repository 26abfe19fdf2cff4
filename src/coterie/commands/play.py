"""Playing episodes: shown in a window, recorded to a video, or saved as a replay of the environment's library."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from coterie.assembly.learners import EvalMode, eval_modes, load_run_or_make
from coterie.assembly.resolve import Resolved
from coterie.commands.rendering import Episodes, print_returns, render_episodes, save_replay, show
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.core.terminal import print_line
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
    """

    video: Path | None = None
    replay: Path | None = None
    episodes: int = 1
    mode: EvalMode = "auto"
    checkpoint: str = "auto"
    seed: int | None = None
    size: int = 480


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
    trained = load_run_or_make(run, resolved, options.checkpoint)
    config, learners = trained.config, trained.algorithms
    configure_process(config.threads)
    episodes = Episodes(
        policies={name: learner.policy for name, learner in learners.items()},
        modes=eval_modes(options.mode, learners),
        count=options.episodes,
        seed=seed_of(config.seed if options.seed is None else options.seed, "play"),
    )
    if options.replay is not None:
        folder = save_replay(config, episodes, options.replay)
        print_returns(episodes.returns)
        return folder
    lesson = None
    if trained.checkpoint is not None and config.curriculum.lessons:
        lesson = lesson_of_checkpoint(trained.checkpoint.state)
    images = render_episodes(config, episodes, size=options.size, lesson=lesson)
    if options.video is None:
        show(images, f"{config.algo.name} on {config.env.name}")
        print_returns(episodes.returns)
        return None
    written = write_video(options.video, images)
    print_line(f"wrote {written}", sys.stderr)
    print_returns(episodes.returns)
    return written

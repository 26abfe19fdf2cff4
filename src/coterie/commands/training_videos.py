"""Videos of episodes that a run records while it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from coterie.algos.algorithm import Algorithm
from coterie.assembly.learners import eval_modes
from coterie.commands.rendering import Episodes, render_episodes
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.seeds import seed_of
from coterie.core.terminal import print_message
from coterie.envs.video import write_video
from coterie.runs.loggers import Logger
from coterie.training.callback import Callback, Event

_SIZE = 320


class TrainingVideos(Callback):
    """Records an episode every `log.video_every` steps, after an evaluation, and at the end.

    Args:
        config: Configuration of the run.
        folder: Folder of the videos.
        learners: Algorithms by team, whose policies act as in evaluations.
        logger: Shows the videos.
    """

    def __init__(self, config: RunConfig, folder: Path, learners: Mapping[str, Algorithm], logger: Logger):
        super().__init__(on_evaluation=self._record_if_due, on_end=self._record)
        self._config, self._folder, self._learners, self._logger = config, folder, learners, logger
        self._next = config.log.video_every
        self._recorded: set[int] = set()
        self._can_record = True

    def _record_if_due(self, event: Event) -> None:
        if self._next is not None and event.steps >= self._next:
            self._record(event)

    def _record(self, event: Event) -> None:
        every = self._config.log.video_every
        if every is not None:
            self._next = (event.steps // every + 1) * every
        if not self._can_record or event.steps in self._recorded:
            return
        self._recorded.add(event.steps)
        episodes = Episodes(
            policies=dict(event.policies),
            modes=eval_modes("auto", dict(self._learners)),
            count=1,
            seed=seed_of(self._config.seed, "play"),
        )
        path = self._folder / f"{event.steps:012d}.gif"
        try:
            write_video(path, render_episodes(self._config, episodes, size=_SIZE))
        except UserError as error:  # the environment cannot be drawn
            self._can_record = False
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            print_message(f"no videos of this run: {error}")
            return
        self._logger.video(event.steps, path)


def wants_videos(config: RunConfig) -> bool:
    """True if a run with these settings records videos."""
    return config.log.wandb if config.log.video_every is None else config.log.video_every > 0

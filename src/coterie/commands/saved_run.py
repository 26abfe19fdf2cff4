"""Saved runs in Python code and notebooks: evaluate, plot, record a video, and read their metrics."""

from __future__ import annotations

import base64
import importlib
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.assembly.learners import EvalMode
from coterie.assembly.result import RunResult
from coterie.commands import evaluate as evaluation
from coterie.commands.arguments import changed_run
from coterie.commands.play import PlayOptions, record_video
from coterie.core.errors import UserError
from coterie.core.files import disk_error, write_bytes
from coterie.core.markup import Markup, element
from coterie.runs import loggers, plots
from coterie.runs.folder import RunFolder

_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".gif": "image/gif", ".mp4": "video/mp4"}


@dataclass(frozen=True)
class Picture:
    """A figure or video, which notebooks show.

    Attributes:
        content: Content of the file.
        suffix: `.png`, `.svg`, `.gif` or `.mp4`.
    """

    content: bytes = field(repr=False)
    suffix: str

    def save(self, path: str | Path) -> Path:
        """Writes the file and returns its path. UserError for another suffix, or if it cannot be written."""
        path = Path(path)
        if path.suffix != self.suffix:
            raise UserError(f"{path}: unexpected suffix '{path.suffix}'. Expected {self.suffix}.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, self.content)
        except OSError as error:
            raise disk_error("the file", path, error) from error
        return path

    def _repr_html_(self) -> Markup:
        """Returns the picture with its content, so that a notebook needs no other file."""
        kind = _TYPES[self.suffix]
        source = f"data:{kind};base64,{base64.b64encode(self.content).decode()}"
        if kind.startswith("video"):
            return element("video", src=source, controls=True, loop=True, muted=True, style="max-width: 100%")
        return element("img", src=source, style="max-width: 100%")


class SavedRun:
    """A run on disk. Subclasses have its folder, and may name a checkpoint.

    Attributes:
        run: Folder of the run.
        chosen_checkpoint: Checkpoint that methods use by default.
    """

    run: Path
    chosen_checkpoint: str = "auto"

    def evaluate(
        self,
        *,
        episodes: int = 100,
        mode: EvalMode = "auto",
        checkpoint: str | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Evaluates the run, as `coterie.evaluate(run, ...)`.

        Args:
            episodes: Minimum number of episodes.
            mode: Action selection: `greedy`, `sample`, or `auto` for that of the algorithm's publication.
            checkpoint: `best`, `best:TEAM`, `last` or a number of steps.
            seed: Seed of the episodes. Default: the run's.
            **settings: Settings that differ from the run's.

        Raises:
            UserError: If a setting is invalid.
        """
        folder, overrides = changed_run(self.run, settings)
        which = checkpoint or self.chosen_checkpoint
        return evaluation.evaluate_run(folder, episodes, mode, which, seed=seed, overrides=overrides)

    def plot(
        self, *metrics: str, x: Literal["steps", "seconds"] | None = "steps", smooth: int = 1, svg: bool = False
    ) -> Picture:
        """Draws metrics of the run.

        Args:
            *metrics: Metrics without the name of a team, such as `loss/policy`. Default: learning curves.
            x: Horizontal axis; None for a panel for each.
            smooth: Number of log entries of the trailing mean; 1 for none.
            svg: True for a vector graphic.

        Raises:
            UserError: If there is no such metric, or there are no returns yet.
        """
        figure = plots.figure_of([self.run], plots.PlotOptions(metrics=metrics, x=x, smooth=smooth))
        suffix = ".svg" if svg else ".png"
        return Picture(plots.rendered(figure, suffix, dpi=100), suffix)

    def video(
        self,
        out: str | Path | None = None,
        *,
        episodes: int = 1,
        mode: EvalMode = "auto",
        checkpoint: str | None = None,
        seed: int | None = None,
        size: int = 320,
    ) -> Picture:
        """Records episodes.

        Args:
            out: File to write (.gif or .mp4). Default: none, a GIF in memory.
            episodes: Number of episodes.
            mode: As in `evaluate`.
            checkpoint: As in `evaluate`.
            seed: As in `evaluate`.
            size: Length of the longer side in pixels.

        Raises:
            UserError: If the environment cannot be drawn, or the file cannot be written.
        """
        which = checkpoint or self.chosen_checkpoint
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "video.gif" if out is None else Path(out)
            options = PlayOptions(
                video=path, episodes=episodes, mode=mode, checkpoint=which, seed=seed, size=size, announce=False
            )
            record_video(self.run, options)
            return Picture(path.read_bytes(), path.suffix.lower())

    def metrics(self) -> Any:
        """Returns everything that the run has logged: a pandas DataFrame, or without pandas a dict of lists by column.

        Each row is a log entry, of training or of an evaluation. The column `steps` has its environment steps, the
        others the metrics by name, such as `eval/return_mean`, or NaN where an entry has none.

        Raises:
            UserError: If the log cannot be read.
        """
        rows = loggers.read(RunFolder(self.run).metrics_path)
        columns = _columns(rows)
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            return columns
        return pandas.DataFrame(columns)


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Returns the values of all rows by column, NaN where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


@dataclass(frozen=True)
class TrainingResult(RunResult, SavedRun):
    """Result of a training, with methods to evaluate, plot and show the run.

    Attributes:
        run: Folder of the run.
        summary: Summary of the run.
        exit_code: 0; 130 or 143 if the training was interrupted by SIGINT or SIGTERM.
    """

    def _repr_html_(self) -> Markup:
        """Returns the summary, which notebooks show."""
        return self.summary._repr_html_()

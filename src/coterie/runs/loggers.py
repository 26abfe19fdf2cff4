"""Loggers of metrics: `metrics.jsonl`, the source of truth, and TensorBoard. Others are in `trackers`."""

from __future__ import annotations

import importlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coterie.config.messages import show
from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import LARGEST_LOG, disk_error, read_bytes, without_links
from coterie.core.metrics import by_team

if TYPE_CHECKING:
    from coterie.runs.summary import Summary

Row = Mapping[str, float | int]
"""Names and values of the metrics at one time of a run. Every row contains `steps`."""


class Logger(ABC):
    """Writes the rows of metrics of one run, in the order of their steps."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """Writes one row. Raises UserError if that fails, for example because the disk is full."""

    def video(self, steps: int, path: Path) -> None:  # noqa: B027 (most loggers show no videos)
        """Shows the video of an episode that was played after `steps` environment steps."""

    def summarize(self, summary: Summary) -> None:  # noqa: B027
        """Shows the summary of the run at its end."""

    @abstractmethod
    def flush(self) -> None:
        """Makes written rows visible to other processes."""

    @abstractmethod
    def close(self) -> None:
        """Flushes and releases all resources. May be called twice."""


class NullLogger(Logger):
    """Discards all rows."""

    def write(self, row: Row) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class Loggers(Logger):
    """Several loggers as one."""

    def __init__(self, loggers: Sequence[Logger]):
        self.loggers = tuple(loggers)

    def write(self, row: Row) -> None:
        for logger in self.loggers:
            logger.write(row)

    def video(self, steps: int, path: Path) -> None:
        for logger in self.loggers:
            logger.video(steps, path)

    def summarize(self, summary: Summary) -> None:
        for logger in self.loggers:
            logger.summarize(summary)

    def flush(self) -> None:
        for logger in self.loggers:
            logger.flush()

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


# --------------------------------------------------------------------------------------------------------------- jsonl


class JsonlLogger(Logger):
    """Appends each row as a line of strict JSON. Non-finite numbers become null.

    Every row is passed to the operating system immediately, so that other processes can follow the file and a killed
    process loses none. An incomplete last line is removed when the file is opened.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            mode = "r+b" if self.path.exists() else "w+b"
            self._file = open(self.path, mode, buffering=0, opener=without_links)  # noqa: SIM115
            self.truncate(self._file.seek(0, os.SEEK_END))
        except OSError as error:
            raise disk_error("the file", self.path, error) from error

    def write(self, row: Row) -> None:
        line = json.dumps({name: _json_number(value) for name, value in row.items()}, allow_nan=False) + "\n"
        rest, start = line.encode(), self._file.tell()
        try:
            # A full disk accepts part of the line and raises only when the rest is written.
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.truncate(start)
            raise disk_error("the file", self.path, error) from error

    def flush(self) -> None:
        pass

    def position(self) -> int:
        """Flushes the file to disk and returns its length in bytes, which a checkpoint stores."""
        try:
            os.fsync(self._file.fileno())
            return self._file.tell()
        except OSError as error:
            raise disk_error("the file", self.path, error) from error

    def truncate(self, position: int) -> None:
        """Truncates the file at `position`, or after the last complete line before it. Used when a run resumes."""
        position = min(position, self._file.seek(0, os.SEEK_END))
        while position > 0:
            start = max(0, position - 65536)
            self._file.seek(start)
            line_end = self._file.read(position - start).rfind(b"\n")
            if line_end >= 0:
                position = start + line_end + 1
                break
            position = start
        self._file.truncate(position)
        self._file.seek(position)

    def close(self) -> None:
        self._file.close()


def _json_number(value: Any) -> float | int | None:
    """Converts a Python, NumPy or PyTorch number to JSON. None if it is not finite."""
    if isinstance(value, (bool, int)):
        return int(value)
    if not isinstance(value, float):
        value = value.item()
    return value if isinstance(value, int) or math.isfinite(value) else None


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a `metrics.jsonl`, or an empty list if the file does not exist.

    An incomplete last line is ignored. null is read as NaN.

    Raises:
        UserError: If another line is not a JSON object of numbers with `steps`.
    """
    try:
        lines = read_bytes(path, LARGEST_LOG).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Expected a metrics.jsonl.") from error
    rows = [_parse_row(line) for line in lines]
    for number, row in enumerate(rows[:-1], start=1):
        if row is None:
            raise UserError(f"{path}: line {number} is not a JSON object of numbers with `steps`. Remove the line.")
    return [row for row in rows if row is not None]


def complete_bytes(path: Path, known: int) -> int:
    """Returns how many of the first `known` bytes of a `metrics.jsonl` are complete lines.

    Raises:
        UserError: If one of these lines is not a JSON object of numbers with `steps`, or the file cannot be read.
    """
    try:
        content = read_bytes(path, LARGEST_LOG)[:known]
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}). Expected a metrics.jsonl.") from error
    lines = content.split(b"\n")[:-1]
    for number, line in enumerate(lines, start=1):
        if _parse_row(line) is None:
            raise UserError(f"{path}: line {number} is not a JSON object of numbers with `steps`. Remove the line.")
    return sum(len(line) + 1 for line in lines)


def _parse_row(line: bytes) -> dict[str, Any] | None:
    """Parses one line. None if it is not a JSON object of numbers with the steps."""
    try:
        row = strict_json.parse(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or type(row.get("steps")) is not int:
        return None
    if not all(value is None or type(value) in (int, float) for value in row.values()):
        return None
    return {name: math.nan if value is None else value for name, value in row.items()}


# --------------------------------------------------------------------------------------------------------- other views


_OVERVIEW = {
    "eval/return_mean": "evaluation_return",
    "rollout/return_mean": "training_return",
    "selfplay/elo": "elo",
    "time/steps_per_s": "steps_per_s",
}
"""Metrics that come first in TensorBoard, and their names there."""


class TensorBoardLogger(Logger):
    """Writes scalars for TensorBoard, against environment steps, and the settings for its tab HPARAMS.

    TensorBoard sorts its cards by name, so the metrics that matter most are also in the group `0_overview`, its first.

    Args:
        folder: Folder of the event files.
        purge_step: Steps of the checkpoint from which a run resumes. TensorBoard hides later points, which were written
            before the run was resumed.
        settings: Settings of the run by dotted key.
        returns: Metrics that HPARAMS compares, such as `eval/return_mean`.
    """

    def __init__(
        self,
        folder: Path,
        purge_step: int | None = None,
        settings: Mapping[str, Any] | None = None,
        returns: Sequence[str] = (),
    ):
        writer = library(
            "torch.utils.tensorboard", setting="log.tensorboard", name="TensorBoard", install="pip install tensorboard"
        ).SummaryWriter
        try:
            # TensorBoard also hides the point at purge_step itself, so pass the next step.
            self._writer = writer(str(folder), purge_step=None if purge_step is None else purge_step + 1)
        except OSError as error:
            raise disk_error("the folder", folder, error) from error
        if settings:
            shown = {key: x if type(x) in (int, float) else show(x) for key, x in settings.items()}
            summary = importlib.import_module("torch.utils.tensorboard.summary")
            for part in summary.hparams(shown, dict.fromkeys(returns, 0.0)):
                self._writer.file_writer.add_summary(part)

    def write(self, row: Row) -> None:
        steps = int(row["steps"])
        for name, value in row.items():
            if name != "steps":
                self._writer.add_scalar(name, float(value), steps)
        for name, value in _overview(row).items():
            self._writer.add_scalar(f"0_overview/{name}", float(value), steps)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _overview(row: Row) -> dict[str, float]:
    """Returns the metrics that matter most by the names that TensorBoard shows."""
    found = {}
    for metric, label in _OVERVIEW.items():
        for team, value in by_team(row, metric).items():
            found[f"{label}/{team}".rstrip("/")] = value
    for name, value in row.items():
        area, *words = name.split("/")
        if area == "eval" and "metric" in words[:-1]:
            words.remove("metric")
            found["/".join(("evaluation", *words))] = value
    return found


def library(module: str, *, setting: str, name: str, install: str) -> ModuleType:
    """Imports a library. Raises UserError with the install command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{setting}: {name} is not installed ({error}). Install it: {install}") from error

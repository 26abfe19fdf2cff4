"""Where the rows of metrics go: to `metrics.jsonl`, the source of truth, and to the views that a user asks for."""

from __future__ import annotations

import importlib
import json
import math
import os
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.errors import UserError
from coterie.rundir import disk_error, write_text

Row = Mapping[str, float | int]
"""Names and values of one moment of a run; every row holds `steps`."""


class Logger(ABC):
    """Takes the rows of one run in the order of their steps."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """Takes one row. UserError if it cannot be kept, e.g. because the disk is full."""

    @abstractmethod
    def flush(self) -> None:
        """Makes sure that what was written can be seen by others."""

    @abstractmethod
    def close(self) -> None:
        """Flushes and gives back what the logger holds. May be called twice."""


class NullLogger(Logger):
    """Keeps nothing."""

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

    def flush(self) -> None:
        for logger in self.loggers:
            logger.flush()

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


# --------------------------------------------------------------------------------------------------------------- jsonl


class JsonlLogger(Logger):
    """Appends each row as a line of strict JSON; a number that is not finite becomes null.

    Every row is handed to the operating system at once, so that others can follow the file and a killed process loses
    none. A line that was torn by a crash is cut away when the file is opened.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            self._file = open(self.path, "r+b" if self.path.exists() else "w+b", buffering=0)  # noqa: SIM115
            self.truncate(self._file.seek(0, os.SEEK_END))
        except OSError as error:
            raise disk_error("the file", self.path, error) from error

    def write(self, row: Row) -> None:
        line = json.dumps({name: _json_number(value) for name, value in row.items()}, allow_nan=False) + "\n"
        rest, start = line.encode(), self._file.tell()
        try:
            while (
                rest
            ):  # a disk that fills up takes a part, and says only when asked for the rest why it does not take it
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.truncate(start)
            raise disk_error("the file", self.path, error) from error

    def flush(self) -> None:
        pass

    def position(self) -> int:
        """Length of the file in bytes, after making sure that it is on the disk; a checkpoint notes it."""
        try:
            os.fsync(self._file.fileno())
            return self._file.tell()
        except OSError as error:
            raise disk_error("the file", self.path, error) from error

    def truncate(self, position: int) -> None:
        """Cuts the file at `position`, or at the end of the last whole line before it; resuming goes on from there."""
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
    """A number of Python, numpy or PyTorch as JSON has it."""
    if isinstance(value, (bool, int)):
        return int(value)
    if not isinstance(value, float):
        value = value.item()
    return value if isinstance(value, int) or math.isfinite(value) else None


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, without a last line that is torn; null is NaN. No file is no rows.

    UserError if another line is no JSON object.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; expected a metrics.jsonl") from error
    rows = [_row(line) for line in lines]
    for number, row in enumerate(rows[:-1], start=1):
        if row is None:
            raise UserError(f"{path} line {number} is not a JSON object; remove the line")
    return [row for row in rows if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """One line's row, None if it is none."""
    try:
        return {name: math.nan if value is None else value for name, value in json.loads(line).items()}
    except (ValueError, AttributeError):
        return None


# --------------------------------------------------------------------------------------------------------- other views


class TensorBoardLogger(Logger):
    """Writes scalars for TensorBoard, against steps.

    purge_step: when a run is resumed, the steps of its checkpoint: what was written past them is hidden.
    """

    def __init__(self, folder: Path, purge_step: int | None = None):
        writer = _library("torch.utils.tensorboard", "TensorBoard", "pip install tensorboard").SummaryWriter
        try:
            # A step that equals purge_step is hidden as well, so the first one to hide is the one after it.
            self._writer = writer(str(folder), purge_step=None if purge_step is None else purge_step + 1)
        except OSError as error:
            raise disk_error("the folder", folder, error) from error

    def write(self, row: Row) -> None:
        steps = int(row["steps"])
        for name, value in row.items():
            if name != "steps":
                self._writer.add_scalar(name, float(value), steps)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger(Logger):
    """Sends rows to Weights & Biases (`pip install 'coterie[wandb]'`).

    folder: the run's; a file `wandb-id` in it makes a resumed run go on in the same place; project, name, config: as
    the service shows them; mode: `online`, `offline` (kept on disk until `wandb sync`), `disabled`, or None for what
    WANDB_MODE says. Offline needs neither network nor account.
    """

    def __init__(self, folder: Path, project: str, name: str, config: Mapping[str, Any], mode: str | None = None):
        wandb = _library("wandb", "Weights & Biases", "pip install 'coterie[wandb]'")
        known = folder / "wandb-id"
        if not known.exists():
            write_text(known, uuid.uuid4().hex[:12] + "\n")
        self._run = wandb.init(
            project=project,
            name=name,
            config=dict(config),
            dir=str(folder),
            id=known.read_text().strip(),
            resume="allow",
            mode=mode,
            settings=wandb.Settings(console="off"),  # the terminal belongs to the progress display
        )
        # Against steps, not against the service's own counter, which refuses to go back when a run is resumed.
        self._run.define_metric("*", step_metric="steps")
        self._open = True

    def write(self, row: Row) -> None:
        self._run.log(dict(row))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._open:
            self._run.finish()
            self._open = False


class MlflowLogger(Logger):
    """Sends rows to MLflow (`pip install 'coterie[mlflow]'`).

    folder: the run's; a file `mlflow-id` in it makes a resumed run go on in the same place; experiment, name, config:
    as MLflow shows them; uri: of the tracking server or store, None for what MLFLOW_TRACKING_URI says, else the folder
    `mlruns` of the run, which needs no network.
    """

    def __init__(self, folder: Path, experiment: str, name: str, config: Mapping[str, Any], uri: str | None = None):
        mlflow = _library("mlflow", "MLflow", "pip install 'coterie[mlflow]'")
        self._entities = _library("mlflow.entities", "MLflow", "pip install 'coterie[mlflow]'")
        self._refusal = mlflow.exceptions.MlflowException
        if not (uri or os.environ.get("MLFLOW_TRACKING_URI")):
            uri = (folder / "mlruns").resolve().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # asked for since version 3; databases need more
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            self._id = self._start(folder / "mlflow-id", experiment, name, config)
        except self._refusal as error:
            first = str(error).splitlines()[0]
            raise UserError(
                f"MLflow refuses the run: {first}; check its tracking uri {uri or 'in the environment'}"
            ) from error
        self._open = True

    def _start(self, known: Path, experiment: str, name: str, config: Mapping[str, Any]) -> str:
        """The id of the run that the file `known` names, or of a new one with its settings."""
        if known.exists():
            run_id = known.read_text().strip()
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        found = self._client.get_experiment_by_name(experiment)
        place = self._client.create_experiment(experiment) if found is None else found.experiment_id
        run_id = self._client.create_run(place, run_name=name).info.run_id
        for key, value in _flat(config).items():
            self._client.log_param(run_id, key, value)
        write_text(known, run_id + "\n")
        return run_id

    def write(self, row: Row) -> None:
        steps, now = int(row["steps"]), int(time.time() * 1000)
        metrics = [self._entities.Metric(key, float(value), now, steps) for key, value in row.items() if key != "steps"]
        if not self._open:
            return
        try:
            for start in range(0, len(metrics), 1000):  # a server takes at most a thousand at once
                self._client.log_batch(self._id, metrics=metrics[start : start + 1000])
        except self._refusal as error:
            # A server that went away is no reason to lose the training: metrics.jsonl has every row.
            self._open = False
            warnings.warn(f"MLflow gets no more rows, all are in metrics.jsonl: {error}", stacklevel=2)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._open:
            self._client.set_terminated(self._id)
            self._open = False


def _library(module: str, name: str, install: str) -> ModuleType:
    """The imported module; UserError with the command that installs it if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"logging to {name} needs a library that is not installed ({error}): {install}") from error


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings as one level: {"algo": {"lr": 1}} is {"algo.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat

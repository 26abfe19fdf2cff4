"""Loggers that send metrics to experiment trackers: Weights & Biases and MLflow."""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coterie.config.schema import LogConfig
from coterie.core.errors import UserError
from coterie.core.files import read_text, write_text
from coterie.core.installation import install_extra
from coterie.runs.loggers import Logger, Row, library
from coterie.runs.summary import Summary


@dataclass(frozen=True)
class Labels:
    """Labels of a run in an experiment tracker.

    Attributes:
        project: W&B project, or MLflow experiment.
        name: Name of the run.
        group: Group of runs, for example the seeds of one setting.
        tags: Further words.
    """

    project: str
    name: str
    group: str | None = None
    tags: tuple[str, ...] = ()


def trackers(log: LogConfig, folder: Path, *, env: str, settings: Mapping[str, Any]) -> list[Logger]:
    """Returns the trackers that the settings `log.*` ask for.

    Args:
        log: The settings.
        folder: Folder of the run.
        env: Name of the environment.
        settings: All settings of the run as nested dicts, which the trackers show.
    """
    found = []

    def labels(project: str) -> Labels:
        return Labels(log.project or project, log.name or folder.name, log.group, log.tags)

    if log.wandb:
        found.append(WandbLogger(folder, labels("coterie"), settings))
    if log.mlflow:
        found.append(MlflowLogger(folder, labels(env), settings, uri=log.mlflow_uri))
    return found


class WandbLogger(Logger):
    """Sends rows to Weights & Biases (extra `wandb`).

    Args:
        folder: Folder of the run. The file `wandb-id` in it lets a resumed run continue the same W&B run.
        labels: Project, group, name and tags of the run.
        config: Configuration of the run.
        mode: `online`, `offline` (stored locally until `wandb sync`, needs neither network nor account), `disabled`, or
            None for the environment variable WANDB_MODE.
    """

    def __init__(self, folder: Path, labels: Labels, config: Mapping[str, Any], *, mode: str | None = None):
        wandb = library("wandb", setting="log.wandb", name="Weights & Biases", install=install_extra("wandb"))
        id_file = folder / "wandb-id"
        if not id_file.exists():
            write_text(id_file, uuid.uuid4().hex[:12] + "\n")
        self._run = wandb.init(
            project=labels.project,
            group=labels.group,
            name=labels.name,
            tags=list(labels.tags),
            config=dict(config),
            dir=str(folder),
            id=read_text(id_file).strip(),
            resume="allow",
            mode=mode,
            settings=wandb.Settings(console="off"),  # the progress display uses the terminal
        )
        self._wandb = wandb
        # Plotted against steps: the service's own counter cannot go back when a run resumes.
        self._run.define_metric("*", step_metric="steps")
        self._open = True

    def write(self, row: Row) -> None:
        self._run.log(dict(row))

    def video(self, steps: int, path: Path) -> None:
        self._run.log({"video": self._wandb.Video(str(path), format=path.suffix[1:]), "steps": steps})

    def summarize(self, summary: Summary) -> None:
        """Logs the table that training prints, and its numbers as the summary that W&B's table of runs shows."""
        numbers = summary.numbers()
        columns = [
            name for name in next(iter(numbers.values()), {}) if any(own[name] is not None for own in numbers.values())
        ]
        rows = [[team, *(own[name] for name in columns)] for team, own in numbers.items()]
        if rows:
            self._run.log({"summary": self._wandb.Table(columns=["team", *columns], data=rows), "steps": summary.steps})
        for team, own in numbers.items():
            prefix = "return/" if len(numbers) == 1 else f"return/{team}/"
            self._run.summary.update({f"{prefix}{name}": own[name] for name in columns})

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._open:
            self._run.finish()
            self._open = False


class MlflowLogger(Logger):
    """Sends rows to MLflow (extra `mlflow`).

    The store is `uri`, otherwise the one that the run was logged to before it was resumed, that of the environment
    variable MLFLOW_TRACKING_URI, or the folder `mlruns` in the current folder, which all runs share and which needs no
    network.

    Args:
        folder: Folder of the run. The file `mlflow-id` in it lets a resumed run continue the same MLflow run.
        labels: Project (the MLflow experiment), group (a tag), name and tags of the run.
        config: Configuration of the run.
        uri: Tracking server or store, any URI that MLflow supports.
    """

    def __init__(self, folder: Path, labels: Labels, config: Mapping[str, Any], *, uri: str | None = None):
        mlflow = library("mlflow", setting="log.mlflow", name="MLflow", install=install_extra("mlflow"))
        self._entities = library(
            "mlflow.entities", setting="log.mlflow", name="MLflow", install=install_extra("mlflow")
        )
        self._error = mlflow.exceptions.MlflowException
        self._file = folder / "mlflow-id"
        known = read_text(self._file).split() if self._file.exists() else []
        uri = uri or self._default_uri(folder, known)
        if uri and urlsplit(uri).scheme in ("", "file"):
            # Required since MLflow 3; a database needs more libraries.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            continues = known if known and (known[1:] or [uri]) == [uri] else []
            self._id = self._resume(continues[0]) if continues else self._start(labels, config, uri)
        except self._error as error:
            first = str(error).splitlines()[0]
            raise UserError(
                f"MLflow rejected the run: {first}. Check its tracking URI {uri or '(MLFLOW_TRACKING_URI)'}."
            ) from error
        self._open = True

    @staticmethod
    def _default_uri(folder: Path, known: Sequence[str]) -> str | None:
        """Returns the URI of the store, None for that of the environment variable."""
        if known[1:]:
            return known[1]
        if os.environ.get("MLFLOW_TRACKING_URI"):
            return None
        own = folder / "mlruns"  # of a run that was started before runs shared a store
        return (own if own.is_dir() else Path("mlruns")).resolve().as_uri()

    def _resume(self, run_id: str) -> str:
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _start(self, labels: Labels, config: Mapping[str, Any], uri: str | None) -> str:
        """Creates a run with labels and settings, and returns its ID."""
        existing = self._client.get_experiment_by_name(labels.project)
        experiment_id = self._client.create_experiment(labels.project) if existing is None else existing.experiment_id
        tags = dict.fromkeys(labels.tags, "true") | ({"group": labels.group} if labels.group else {})
        run_id = self._client.create_run(experiment_id, tags=tags, run_name=labels.name).info.run_id
        for key, value in _flatten(config).items():
            self._client.log_param(run_id, key, value)
        write_text(self._file, "\n".join([run_id, *([uri] if uri else [])]) + "\n")
        return run_id

    def write(self, row: Row) -> None:
        steps, now = int(row["steps"]), int(time.time() * 1000)
        metrics = [self._entities.Metric(key, float(value), now, steps) for key, value in row.items() if key != "steps"]
        if not self._open:
            return
        try:
            for start in range(0, len(metrics), 1000):  # a server accepts at most 1,000 metrics per call
                self._client.log_batch(self._id, metrics=metrics[start : start + 1000])
        except self._error as error:
            # Training continues without the server: metrics.jsonl contains every row.
            self._open = False
            warnings.warn(f"MLflow: logging stopped ({error}). metrics.jsonl contains all metrics.", stacklevel=2)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._open:
            self._client.set_terminated(self._id)
            self._open = False


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested settings: {"algo": {"lr": 1}} becomes {"algo.lr": 1}."""
    flattened: dict[str, Any] = {}
    for key, value in config.items():
        flattened |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flattened

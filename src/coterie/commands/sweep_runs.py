"""The run of each job of a sweep that was started before: finished, broken, or missing.

A run belongs to a job if all settings that can affect its results are equal. The name of its folder does not decide.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.commands.result import TrainingResult
from coterie.commands.train import draw_curves
from coterie.config import messages, sources
from coterie.config.resolve import with_new_settings
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.runs import description, loggers
from coterie.runs import folder as folders
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.folder import RunFolder
from coterie.runs.summary import summarize

_WITHOUT_EFFECT = ("out", "progress", "threads", "log.tensorboard", "log.wandb", "log.mlflow")
"""Settings that may differ between a job and its run. A run is resumed with the threads with which it started."""

_WAIT_SECONDS = 10.0
"""Time in which the jobs of a killed sweep save their checkpoints and end."""

State = Literal["finished", "broken", "missing"]


@dataclass(frozen=True)
class Found:
    """The run of a job.

    Attributes:
        state: `finished`, `broken` if it can be resumed, or `missing`.
        path: Its folder; None if it is missing.
        note: What differs from a run that would be started now, such as the version of Coterie; empty for nothing.
        report: Its results, as `TrainingResult.report` returns them, if it is finished.
    """

    state: State
    path: Path | None = None
    note: str = ""
    report: dict[str, Any] = field(default_factory=dict)


def identity(settings: Mapping[str, Any]) -> str:
    """Returns eight hexadecimal digits that are equal for settings, by dotted key, with equal results."""
    relevant = {key: value for key, value in settings.items() if key not in _WITHOUT_EFFECT and value != {}}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True, default=str).encode()).hexdigest()[:8]


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Returns all settings of a configuration by dotted key."""
    return dict(sources.flatten(config.tree()))


def find(config: RunConfig, out: Path, *, named: bool) -> Found:
    """Returns the run of a job.

    Args:
        config: Configuration of the job.
        out: Folder of the run if it is started now.
        named: True if the user has chosen the folder. Then its siblings are searched, too; otherwise folders that end
            with the identity of the settings.

    Raises:
        UserError: If `out` contains a run with other settings, or if another process writes to the run.
    """
    wanted = settings_of(config)
    candidates = out.parent.glob("*") if named else out.parent.glob(f"*-{identity(wanted)}")
    for path in [out, *sorted(candidates)]:
        saved = _saved_settings(path)
        if saved is None:
            if path == out:  # a job that was interrupted before its first result may be about to remove it
                _wait_until_unlocked(RunFolder(path))
            continue
        saved = with_new_settings(saved, config)
        if identity(saved) == identity(wanted):
            _wait_until_unlocked(RunFolder(path))
            if _saved_settings(path) is None:  # it has removed itself
                continue
            return _inspect(RunFolder(path), config)
        if path == out:
            raise UserError(
                f"out={out}: contains a run with other settings ({_difference(saved, wanted)}). Choose another folder, "
                "or remove the run."
            )
    return Found("missing")


def _saved_settings(path: Path) -> dict[str, Any] | None:
    """Returns the settings of a run by dotted key; None if the folder is no run."""
    run = RunFolder(path)
    if not (run.config_path.is_file() and run.manifest_path.is_file()):
        return None
    return {setting.key: setting.value for setting in sources.from_file(run.config_path, saved=True)}


def _difference(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describes the first setting that differs."""
    for key in dict.fromkeys((*wanted, *saved)):
        if key not in _WITHOUT_EFFECT and saved.get(key) != wanted.get(key):
            return f"{key} is {messages.show(saved.get(key))} there, {messages.show(wanted.get(key))} here"
    return "their settings differ"


def _inspect(run: RunFolder, config: RunConfig) -> Found:
    """Returns the state of a run with the job's settings. Draws the curves of a run that was killed before that."""
    manifest = run.read_manifest()
    note = _changes(manifest)
    last = Checkpoints(run.checkpoints_path).latest(segments=False)
    if last is None or last.steps < config.steps:
        return Found("broken", run.path, note)
    entries = loggers.read(run.metrics_path)
    levels = {"random": manifest.get("random"), "published": manifest.get("published")}
    summary = summarize(run.path, entries, config.steps, **levels)
    if summary.teams and not (run.path / "curves.png").is_file():
        draw_curves(run)
    return Found("finished", run.path, note, TrainingResult(run.path, summary, 0).report())


def _wait_until_unlocked(run: RunFolder) -> None:
    """Raises UserError if another process writes to the run for longer than the jobs of a killed sweep."""
    until = time.monotonic() + _WAIT_SECONDS
    while run.is_in_use():
        if time.monotonic() > until:
            run.lock()
            run.close()
            return
        time.sleep(0.1)


def _changes(manifest: Mapping[str, Any]) -> str:
    """Describes the code that differs from that with which the run was started."""
    now, before = _code_versions(), manifest.get("versions", {})
    lines = [
        f"{name} was {before.get(name)} and is now {version}"
        for name, version in now["versions"].items()
        if before.get(name) != version
    ]
    git = manifest.get("git")
    revisions = [entry.get("revision") if isinstance(entry, Mapping) else None for entry in (git, now["git"])]
    if revisions[0] != revisions[1]:
        shown = [str(revision)[:7] if revision else "unknown" for revision in revisions]
        lines.append(f"the git revision was {shown[0]} and is now {shown[1]}")
    return "; ".join(lines)


@functools.cache
def _code_versions() -> dict[str, Any]:
    return description.code_versions()


def default_folder(config: RunConfig, name: str) -> Path:
    """Returns the folder of a job without `out`, which ends with the identity of its settings."""
    parent = folders.default_parent(config.env.name, config.algo.name)
    return parent / f"{name}-{identity(settings_of(config))}"

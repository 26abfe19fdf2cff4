"""Runs of a sweep's jobs: those that were started before, finished or broken, and tables of the results.

A run belongs to a job if all settings that can affect its results are equal. The name of its folder does not decide.
"""

from __future__ import annotations

import functools
import hashlib
import json as jsonlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.assembly.resolve import with_new_settings
from coterie.assembly.result import RunResult
from coterie.config import messages, sources
from coterie.config.schema import RunConfig
from coterie.config.sources import DERIVED
from coterie.core.errors import UserError
from coterie.core.terminal import print_json, print_line
from coterie.runs import description, loggers
from coterie.runs import folder as folders
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.evaluations import RETURN_CONVENTION
from coterie.runs.folder import RunFolder
from coterie.runs.plots import draw_curves
from coterie.runs.progress import duration
from coterie.runs.summary import summarize
from coterie.runs.tables import cell, print_table

_WITHOUT_EFFECT = (
    *("out", "progress", "threads", "check"),
    *("log.tensorboard", "log.wandb", "log.mlflow", "log.video_every"),
)
"""Settings that may differ between a job and its run. A run is resumed with the threads with which it started."""

_WAIT_SECONDS = 10.0
"""Time in which the jobs of a killed sweep save their checkpoints and end."""

State = Literal["finished", "broken", "missing"]

Outcome = Mapping[str, Any]
"""Result of a job: job, configuration, seed, state, exit_code, and the report of its run or an error."""


@dataclass(frozen=True)
class Found:
    """The run of a job.

    Attributes:
        state: `finished`, `broken` if it can be resumed, or `missing`.
        path: Its folder; None if it is missing.
        note: What differs from a run that would be started now, such as the version of Coterie; empty for nothing.
        report: Its results, as `RunResult.report` returns them, if it is finished.
    """

    state: State
    path: Path | None = None
    note: str = ""
    report: dict[str, Any] = field(default_factory=dict)


def identity(settings: Mapping[str, Any]) -> str:
    """Returns eight hexadecimal digits that are equal for settings, by dotted key, with equal results."""
    relevant = {key: value for key, value in settings.items() if key not in _WITHOUT_EFFECT and value != {}}
    return hashlib.sha256(jsonlib.dumps(relevant, sort_keys=True, default=str).encode()).hexdigest()[:8]


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
        saved = _saved_settings(path, wanted)
        if saved is None:
            if path == out:  # a job that was interrupted before its first result may be about to remove it
                _wait_until_unlocked(RunFolder(path))
            continue
        saved = with_new_settings(saved, config)
        if identity(saved) == identity(wanted):
            _wait_until_unlocked(RunFolder(path))
            if _saved_settings(path, wanted) is None:  # it has removed itself
                continue
            return _inspect(RunFolder(path), config)
        if path == out:
            raise UserError(
                f"out={out}: contains a run with other settings ({difference(saved, wanted)}). Choose another folder, "
                "or remove the run."
            )
    return Found("missing")


def _saved_settings(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the settings of a run by dotted key; None if the folder is no run.

    Values that the run has derived are null or auto again where they are so in the `wanted` settings.
    """
    run = RunFolder(path)
    if not (run.config_path.is_file() and run.manifest_path.is_file()):
        return None
    saved = sources.from_run(run.config_path)
    derived = {setting.key for setting in saved if setting.origin.startswith(DERIVED)}
    before = {key: sources.before_derivation(key) for key in derived}
    rules = {key: value for key, value in before.items() if wanted.get(key) == value}
    return {s.key: rules.get(s.key, s.value) for s in saved}


def difference(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describes the first setting that differs, of those that affect results."""
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
    levels = {name: manifest.get(name) for name in ("random", "random_error", "published")}
    summary = summarize(run.path, entries, config.steps, **levels)
    if summary.teams and not (run.path / "curves.png").is_file():
        draw_curves(run)
    return Found("finished", run.path, note, RunResult(run.path, summary, 0).report())


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


# -------------------------------------------------------------------------------------------------------------- results


def print_results(outcomes: Sequence[Outcome], json: bool) -> None:
    """Prints the tables, or one JSON object per job."""
    if json:
        for outcome in outcomes:
            print_json(dict(outcome))
        return
    succeeded = sum(outcome["exit_code"] == 0 for outcome in outcomes)
    columns, rows = _runs(outcomes)
    print_table(columns, rows, title=f"{succeeded} of {len(outcomes)} runs succeeded")
    print_line(RETURN_CONVENTION)
    columns, rows = _configurations(outcomes)
    print_table(columns, rows, title="Team returns at the end: mean ± standard error over seeds")


def _runs(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[Any]]]:
    columns_by_team = [(team, name) for team in _teams(outcomes) for name in ("random", "start", "now", "highest")]
    has_failed = any(outcome["exit_code"] != 0 for outcome in outcomes)
    columns = ["job", "state", *["exit"] * has_failed, "time"]
    columns += [*(f"{_prefix(team)}{name}" for team, name in columns_by_team), "run"]
    rows = [
        [
            outcome["job"],
            ", ".join([str(outcome["state"]), *_problems(outcome)]),
            *[outcome["exit_code"]] * has_failed,
            None if outcome.get("wall_s") is None else duration(outcome["wall_s"]),
            *(_return(outcome, team, name) for team, name in columns_by_team),
            outcome.get("run") or outcome.get("error"),
        ]
        for outcome in outcomes
    ]
    return columns, rows


def _configurations(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[Any]]]:
    """Returns one row per configuration, with the final and the best returns of its successful runs."""
    kinds = ("random", "now", "highest")
    teams = _teams(outcomes)
    columns = ["configuration", "seeds", *(f"{_prefix(team)}{kind}" for team in teams for kind in kinds)]
    rows = []
    for name in dict.fromkeys(str(outcome["configuration"]) for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome["configuration"] == name]
        done = [outcome for outcome in own if outcome["exit_code"] == 0]
        cells: list[Any] = []
        for team in teams:
            for kind in kinds:
                mean, error = mean_and_error([_return(outcome, team, kind) for outcome in done])
                cells.append(cell(mean) if error is None or kind == "random" else f"{cell(mean)} ± {error:.2g}")
        rows.append([name, _seeds(done), *cells, _states(own)])
    return [*columns, "state"], rows


def _return(outcome: Outcome, team: str, kind: str) -> float | None:
    """Returns a return of a team: `random`, `now` or `highest`, which reports name `best`; None if unknown."""
    return outcome.get("teams", {}).get(team, {}).get("best" if kind == "highest" else kind)


def _prefix(team: str) -> str:
    """Returns the start of the headings of a team; none for the only team of a run."""
    return "" if team == "team" else f"{team}: "


def mean_and_error(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Returns the mean of the values that exist, and its standard error s / sqrt(n), which needs two of them.

    s is the sample standard deviation, with n - 1 in its denominator.
    """
    found = [value for value in values if value is not None]
    if not found:
        return None, None
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
    return statistics.fmean(found), error


def _seeds(outcomes: Sequence[Outcome]) -> str:
    """Returns the seeds as text, consecutive ones as a range: `0-4, 7`."""
    seeds = sorted({int(outcome["seed"]) for outcome in outcomes})
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts) or "-"


def _states(outcomes: Sequence[Outcome]) -> str:
    """Returns e.g. `2 finished, 1 failed, 1 below random`."""
    states = [str(outcome["state"]) for outcome in outcomes]
    states += [problem for outcome in outcomes for problem in _problems(outcome)]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _problems(outcome: Outcome) -> list[str]:
    """Returns what is wrong with the end of a run: `below random`, `fell` or `nothing learned`; usually nothing."""
    return list(dict.fromkeys(team["problem"] for team in outcome.get("teams", {}).values() if team.get("problem")))


def _teams(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(team for outcome in outcomes for team in outcome.get("teams", {})))

"""Choice of a run's checkpoint, and what is said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.config.schema import parse_count
from coterie.core.errors import UserError, nearest
from coterie.core.terminal import print_message
from coterie.runs.checkpoints import Checkpoints, LoadedCheckpoint
from coterie.runs.evaluations import Measurement, better_last, measurement, read_evaluations
from coterie.runs.folder import RunFolder


@dataclass(frozen=True)
class CheckpointChoice:
    """A loaded checkpoint, and how it was chosen.

    Attributes:
        found: The checkpoint.
        name: `best`, `best:TEAM`, `last`, or `step` for one that was named by its steps.
        reason: Description of how it was chosen.
        metric: Metric by which it is the best; None for others.
        measured: Evaluation of that metric at its step; None if unknown.
        others: Best checkpoints of teams at other steps, such as `best:agent (step 2,400)`.
        warnings: Reasons to prefer another checkpoint, or why the preferred one was not loaded.
    """

    found: LoadedCheckpoint
    name: str
    reason: str
    metric: str | None = None
    measured: Measurement | None = None
    others: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def line(self) -> str:
        """Returns one line: the checkpoint, its step, and how it was chosen."""
        more = f"; there is also {', '.join(self.others)}" if self.others else ""
        return f"checkpoint: {self.name}, step {self.found.steps:,}, {self.reason}{more}"

    def report(self) -> dict[str, Any]:
        """Returns the choice as plain numbers and strings."""
        measured = {} if self.measured is None else self.measured.report()
        return {"name": self.name, "steps": self.found.steps, "chosen": self.reason, "metric": self.metric, **measured}


def find_checkpoint(
    folder: RunFolder, which: str, setting: str = "--checkpoint", *, team: str | None = None, announce: bool = True
) -> CheckpointChoice:
    """Loads a checkpoint: the best, the last, or the nearest one at or below a number of steps.

    With auto, it is the one that the folder was opened with, otherwise the best one, the last one if none is marked as
    best, or the newest intact one if these are corrupt. A best checkpoint of step 0, which older versions may have
    marked, is not chosen by auto. The choice and warnings are printed on stderr.

    Args:
        folder: Folder of the run.
        which: auto, best, best:TEAM, last or a number of steps, such as 20000 or 1e6.
        setting: Option or key that `which` comes from, for error messages.
        team: The only team that is needed, whose own best checkpoint auto and best then take, if it has one.
        announce: False to print warnings only.

    Raises:
        UserError: If there is no such checkpoint, with the existing ones, or if a checkpoint that was named is corrupt.
    """
    store = Checkpoints(folder.checkpoints_path)
    if which == "auto" and folder.checkpoint is not None:
        which = folder.checkpoint.resolve().name
    if which in {"auto", "best"} or which.startswith("best:"):
        choice = _best(folder, store, which, setting=setting, team=team)
    elif which == "last":
        choice = _last(store, setting)
    else:
        choice = _numbered(folder, store, which)
    for warning in choice.warnings:
        print_message(warning)
    if announce:
        print_message(choice.line())
    return choice


def _best(folder: RunFolder, store: Checkpoints, which: str, *, setting: str, team: str | None) -> CheckpointChoice:
    named = which.partition(":")[2] or None
    if named is not None and not store.has_best(named):
        known = [f"best:{name}" for name in store.teams_with_best()]
        hint = nearest(which, known) if known else "No team has a best checkpoint of its own. Use best or last."
        raise UserError(f"{setting} {which}: the run {folder.path} has no such checkpoint. {hint}")
    owner = named if named is not None else team if team is not None and store.has_best(team) else None
    warnings = []
    if which == "auto":
        untrained = store.best_steps(owner) == 0 and len(store.all()) > 1
        if untrained:
            warnings.append("the best checkpoint is of step 0, before training, and is not used. Use --checkpoint best")
        if untrained or not store.has_best(owner):
            found = _required(store.latest(segments=False), folder)
            reason = "because the best one is untrained" if untrained else "because no evaluation has marked a best one"
            return CheckpointChoice(found, "last", reason, warnings=(*_corrupt(found), *warnings))
    found = _required(store.load_best(owner), folder)
    if found.warning:
        if which != "auto":
            raise _unusable(found, setting, which)
        return CheckpointChoice(found, "step", "the newest intact one", warnings=(found.warning,))
    name = "best" if owner is None else f"best:{owner}"
    metric, measured, better = _measured(folder, found, owner)
    if found.steps == 0:
        warnings.append("the best checkpoint is of step 0, before training. Use --checkpoint last")
    reason = f"by the highest {metric}".replace("highest -", "lowest ") + (f", {measured}" if measured else "")
    steps = {team: store.best_steps(team) for team in store.teams_with_best()}
    others = tuple(f"best:{team} (step {at:,})" for team, at in steps.items() if at not in (None, found.steps))
    return CheckpointChoice(found, name, reason, metric.lstrip("-"), measured, others, (*warnings, *better))


def _last(store: Checkpoints, setting: str) -> CheckpointChoice:
    found = _required(store.latest(segments=False), RunFolder(store.folder.parent))
    if found.warning:
        raise _unusable(found, setting, "last")
    return CheckpointChoice(found, "last", f"by {setting} last")


def _numbered(folder: RunFolder, store: Checkpoints, which: str) -> CheckpointChoice:
    steps = parse_count(which)
    found = store.load_steps(steps) if isinstance(steps, int) else None
    if found is None and store.all():
        existing = ", ".join(str(int(path.name)) for path in store.all())
        raise UserError(f"the run {folder.path} has no checkpoint '{which}'. Use best, last or one of {existing}.")
    found = _required(found, folder)
    return CheckpointChoice(found, "step", "by its number of steps", warnings=_corrupt(found))


def _required(found: LoadedCheckpoint | None, folder: RunFolder) -> LoadedCheckpoint:
    if found is None:
        raise UserError(f"the run {folder.path} has no checkpoint yet. Wait for its first one.")
    return found


def _corrupt(found: LoadedCheckpoint) -> tuple[str, ...]:
    return (found.warning,) if found.warning else ()


def _unusable(found: LoadedCheckpoint, setting: str, which: str) -> UserError:
    return UserError(f"{setting} {which}: {(found.warning or '').partition('. Using')[0]}. Leave the option out.")


def _measured(
    folder: RunFolder, found: LoadedCheckpoint, team: str | None
) -> tuple[str, Measurement | None, list[str]]:
    """Returns the metric by which a checkpoint is the best, its value, and a warning if the last one is better."""
    by = found.metadata.get("best_by")
    metric = str(by.get(team or "", "")) if isinstance(by, Mapping) else ""
    rows = read_evaluations(folder.metrics_path)
    here = next((row for row in reversed(rows) if row["steps"] == found.steps), None)
    if not metric:  # of a run that an older version wrote: the first team's mean return
        names = [name for name in here or {} if name.startswith("eval/") and name.endswith("/return_mean")]
        metric = names[0] if names else "eval/return_mean"
    name = metric.lstrip("-")
    if here is None:
        return metric, None, []
    measured, warnings = measurement(here, name), []
    returns = name if name.endswith("/return_mean") else _return_of(name, here)
    for other in dict.fromkeys((name, returns)):
        ours, last = measurement(here, other), measurement(rows[-1], other)
        if ours is None or last is None or name.startswith("selfplay/"):
            continue  # returns against opponents that learn too do not measure progress
        better = better_last(ours, last, other, lowest=other == name and metric.startswith("-"))
        warnings += [] if better is None else [better]
    return metric, measured, warnings[:1]


def _return_of(metric: str, row: Mapping[str, Any]) -> str:
    """Returns the name of the mean return of the team that a metric belongs to, or of the only team."""
    own = f"eval/{metric.split('/')[1]}/return_mean"
    return own if own in row else "eval/return_mean"

"""Groups of runs: tasks, which are equal environments, and algorithms, whose runs differ only in the seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import UserError, nearest
from coterie.reports.collection import RETURN, Collection, series_of
from coterie.reports.options import Scale
from coterie.reports.records import CollectedRun, Trial
from coterie.reports.sentences import listed
from coterie.runs.curves import Run, differing_settings, group_label, settings_key

_TASK_SECTIONS = ("env.", "randomize.", "curriculum.")
"""Settings that define a task."""


@dataclass(frozen=True)
class Selection:
    """Metric to compare.

    Attributes:
        metric: Metric without the name of a team, such as `eval/return_mean`.
        lowest: True if lower values are better.
        team: Team; None for all teams that learn.
        scale: Convention of returns in files of marl-eval that do not state it.
    """

    metric: str = RETURN
    lowest: bool = False
    team: str | None = None
    scale: Scale | None = None


def select_metric(
    runs: Sequence[CollectedRun], name: str | None, team: str | None = None, scale: Scale | None = None
) -> Selection:
    """Returns the selection for a metric as a user names it.

    Args:
        runs: The runs.
        name: `return`, `won` for `eval/metric/won`, or a logged name without team. A minus sign in front means that
            lower values are better. None: mean returns of evaluations.
        team: Team to compare.
        scale: Convention of returns in files.

    Raises:
        UserError: If no run has logged the metric, or has the team.
    """
    known = {metric for run in runs for metric in run.metrics} - {"steps"}
    teams = {own for run in runs for own in run.teams}
    wanted = (name or RETURN).removeprefix("-")
    wanted = RETURN if wanted in ("return", "return_mean") else wanted
    if f"eval/metric/{wanted}" in known:
        wanted = f"eval/metric/{wanted}"
    if not any(run.teams_of(wanted) for run in runs):
        if not known:
            raise UserError(
                f"{runs[0].name}: metrics.jsonl is missing or empty. Leave the run out, or restore the file."
            )
        if name is None:
            raise UserError(
                "the runs have no evaluations (eval.every=0). Train with evaluations, or add --metric "
                "rollout/return_mean to compare returns of training, which include exploration."
            )
        short = {metric.removeprefix("eval/metric/") for metric in known}
        raise UserError(f"--metric {name}: not in the logs of these runs. {nearest(wanted, known | short)}")
    if team is not None and team not in teams:
        raise UserError(f"--team {team}: no run has a team of this name that learns. {nearest(team, teams - {''})}")
    return Selection(wanted, (name or "").startswith("-"), team, scale)


def group(collection: Collection, selection: Selection) -> tuple[list[Trial], list[str]]:
    """Groups runs by task and algorithm.

    Args:
        collection: The runs.
        selection: The metric to compare.

    Returns:
        The trials, ordered by task and algorithm as the runs are, with ascending seeds; and sentences for the user.

    Raises:
        UserError: If no run has the metric, or if returns of files cannot be compared with those of runs.
    """
    notes: list[str] = []
    pairs = [(run, team) for run in collection.runs for team in _teams(run, selection)]
    without = [run.name for run in collection.runs if not _teams(run, selection)]
    if without:
        notes.append(f"without {selection.metric}, left out: {listed(without)}")
    if not pairs:
        raise UserError(f"--metric {selection.metric}: not in the logs of these runs. Choose another metric or team.")
    tasks = _task_labels([run.log for run, _ in pairs])
    several = {env for env in tasks.values() if len({t for run, t in pairs if tasks[_task_key(run.log)] == env}) > 1}
    algos = _algo_labels([run for run, _ in pairs])
    trials = []
    for run, team in pairs:
        task = tasks[_task_key(run.log)]
        series = series_of(run, selection.metric, team)
        if series is None:
            notes.append(f"{selection.metric} is never finite, left out: {run.name}")
            continue
        trials.append(
            Trial(
                task=f"{task}: {team}" if task in several else task,
                algo=algos[run.name],
                run=run,
                team=team,
                series=series,
                fresh=run.fresh_values("final", team, selection.metric),
                absolute=run.fresh_values("best", team, selection.metric),
            )
        )
    if not trials:
        raise UserError(f"--metric {selection.metric}: has no finite value in these runs. Choose another metric.")
    trials = _same_scale(trials, selection)
    trials, repeated = _without_repetitions(trials)
    notes += repeated
    notes += [note for trial in trials if (note := _not_finite(trial, selection.metric))]
    order = {key: i for i, key in enumerate(dict.fromkeys((trial.task, trial.algo) for trial in trials))}
    return sorted(trials, key=lambda t: (order[t.task, t.algo], -1 if t.seed is None else t.seed)), notes


def _not_finite(trial: Trial, metric: str) -> str:
    """Returns which evaluations of a trial are left out because they are not finite; empty if none is."""
    steps, series = trial.series.not_finite, trial.series
    if not steps:
        return ""
    words = listed([f"{step:,}" for step in steps])
    last = f". The value of step {series.steps[-1]:,.0f} counts as its last one" if steps[-1] > series.steps[-1] else ""
    return f"{metric} of {trial.run.name} is not finite at step {words}, left out{last}"


def _teams(run: CollectedRun, selection: Selection) -> list[str]:
    """Returns the teams whose values of the metric are compared."""
    present = run.teams_of(selection.metric)
    learning = [team for team in present if team in run.teams] or present[:1]
    return learning if selection.team is None else [team for team in learning if team in ("", selection.team)]


# -------------------------------------------------------------------------------------------------------------- labels


def _is_of_task(key: str) -> bool:
    return key.startswith(_TASK_SECTIONS)


def _task_key(run: Run) -> str:
    return settings_key([run.env, {key: value for key, value in run.settings.items() if _is_of_task(key)}])


def _task_labels(runs: Sequence[Run]) -> dict[str, str]:
    """Returns labels of tasks by key: the environment, with the settings in which those of a name differ.

    Files of marl-eval have no settings: theirs is the task of the same name if there is only one.
    """
    firsts = {_task_key(run): run for run in runs}
    labels: dict[str, str] = {}
    for key, run in firsts.items():
        known = [other for other in firsts.values() if other.env == run.env and other.all_settings]
        if not run.all_settings:
            labels[key] = run.env if len(known) <= 1 else f"{run.env} (file)"
            continue
        differing = [name for name in differing_settings(known) if _is_of_task(name)]
        labels[key] = _unique(group_label(run.env, run, known, differing), labels.values())
    return labels


def _algo_labels(runs: Sequence[CollectedRun]) -> dict[str, str]:
    """Returns labels of algorithms by the run's name, equal for runs that differ only in the seed.

    The settings in a label are those in which groups of the algorithm differ within a task.
    """
    names = {run.algo for run in runs if run.origin == "coterie"}
    labels: dict[str, str] = {}
    keys: dict[str, str] = {}
    for run in runs:
        if run.origin != "coterie":
            file = Path(run.name.partition(".json:")[0]).name
            labels[run.name] = f"{run.algo} ({file})" if run.algo in names else run.algo
    own = [run for run in runs if run.origin == "coterie"]
    for run in own:
        similar = [other.log for other in own if other.algo == run.algo]
        by_task: dict[str, list[Run]] = {}
        for other in similar:
            by_task.setdefault(_task_key(other), []).append(other)
        differing = {key for same in by_task.values() for key in differing_settings(same) if not _is_of_task(key)}
        values = {key: run.log.settings.get(key) for key in sorted(differing)}
        group_key = settings_key([run.algo, values])
        if group_key not in keys:
            named = [key for key in differing_settings(similar) if key in differing]
            keys[group_key] = _unique(group_label(run.algo or "run", run.log, similar, named), keys.values())
        labels[run.name] = keys[group_key]
    return labels


def _unique(label: str, taken: Iterable[str]) -> str:
    known = set(taken)
    while label in known:
        label += "'"
    return label


def setting_differences(trials: Sequence[Trial]) -> dict[str, dict[str, Any]]:
    """Returns the settings in which groups differ: by dotted key, the value of each group, named `task | algorithm`.

    Settings that define the run's folder, its seed and its logs are left out.
    """
    firsts: dict[str, Run] = {}
    for trial in trials:
        if trial.run.origin == "coterie":
            firsts.setdefault(f"{trial.task} | {trial.algo}", trial.run.log)
    keys = differing_settings([run for run in firsts.values() if run.all_settings])
    return {key: {name: run.settings.get(key) for name, run in firsts.items()} for key in keys}


# --------------------------------------------------------------------------------------------------------- conventions


def _same_scale(trials: Sequence[Trial], selection: Selection) -> list[Trial]:
    """Returns trials whose returns have one convention in each task.

    Raises:
        UserError: If a file's convention is unknown and the task has other runs, or the number of agents is unknown.
    """
    if not selection.metric.endswith("return_mean"):
        return list(trials)
    out = []
    for trial in trials:
        others = [other for other in trials if other.task == trial.task and other.run.scale == "team"]
        scale = trial.run.scale or selection.scale
        if scale == "team" or not others:
            out.append(trial)
            continue
        if scale is None:
            raise UserError(
                f"{trial.run.name}: returns of {trial.task} may be per agent, those of {others[0].run.name} are of the "
                "team. State the convention of files: --file-returns team, or --file-returns agent to multiply theirs "
                "by the number of agents."
            )
        count = next((other.run.agents[other.team] for other in others if other.team in other.run.agents), None)
        if count is None:
            raise UserError(
                f"--file-returns agent: the number of agents of {trial.task} is unknown, so returns of "
                f"{trial.run.name} cannot be converted. Leave it out."
            )
        out.append(_scaled(trial, count))
    return out


def _scaled(trial: Trial, factor: int) -> Trial:
    series = trial.series
    return replace(
        trial,
        series=replace(series, mean=series.mean * factor, error=series.error * factor),
        fresh=None if trial.fresh is None else trial.fresh * factor,
        absolute=None if trial.absolute is None else trial.absolute * factor,
    )


def _without_repetitions(trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """Leaves out runs that repeat another one: same group and seed, which is no independent result."""
    kept: list[Trial] = []
    repeated: dict[str, str] = {}
    for trial in trials:
        same = [t for t in kept if (t.task, t.algo, t.seed) == (trial.task, trial.algo, trial.seed)]
        same = [t for t in same if trial.run.origin == "coterie" or np.array_equal(t.series.mean, trial.series.mean)]
        if same and trial.seed is not None:
            repeated[trial.run.name] = same[0].run.name
        else:
            kept.append(trial)
    if not repeated:
        return kept, []
    words = [f"{name} (like {other})" for name, other in repeated.items()]
    return kept, [f"same seed and settings as another run, left out: {listed(words)}"]


def require_equal_episodes(trials: Sequence[Trial]) -> None:
    """Raises UserError if evaluations of a task have different numbers of episodes.

    The noise of an evaluation depends on them, and with it the peak and the time to a threshold.
    """
    for task in dict.fromkeys(trial.task for trial in trials):
        counts: Mapping[float, str] = {}
        for trial in trials:
            known = trial.series.episodes[np.isfinite(trial.series.episodes)]
            if trial.task == task and len(known):
                counts = {**counts, float(np.median(known)): trial.run.name}
        if len(counts) > 1:
            (low, one), (high, other) = min(counts.items()), max(counts.items())
            raise UserError(
                f"{task}: evaluations have {low:.0f} episodes in {one} and {high:.0f} in {other}, so their noise "
                "differs. Evaluate all runs again with --evaluate, or add --mixed to compare them as they are."
            )

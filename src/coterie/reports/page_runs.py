"""Runs of a report: their table, settings, machines, versions, code and command lines."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from coterie.core.files import read_bytes
from coterie.core.markup import Markup, cell, element, folded, join, scrolling, table
from coterie.core.text import printable
from coterie.reports.comparison import Comparison
from coterie.reports.page_results import Colors
from coterie.reports.records import CollectedRun, Trial
from coterie.reports.sentences import count, number
from coterie.runs.evaluations import RETURN_CONVENTION
from coterie.runs.folder import RunFolder
from coterie.runs.progress import duration

_LONGEST_CONFIGURATION = 40_000
"""Characters of a configuration that are shown."""


def trials_of(comparison: Comparison) -> list[Trial]:
    """Returns all trials of a comparison, by task and algorithm."""
    return [trial for result in comparison.results.values() for trial in result.trials]


# --------------------------------------------------------------------------------------------------------------- table


def runs_table(comparison: Comparison, left_out: Sequence[CollectedRun], colors: Colors) -> Markup:
    """Returns a row per run: those compared, and the unfinished ones that were left out."""
    trials = trials_of(comparison)
    parent = _parent([*(trial.run.name for trial in trials), *(run.name for run in left_out)])
    rows = [[*_row(trial, comparison, colors), _name(trial.run.name, parent)] for trial in trials]
    rows += [
        [run.env, run.algo, _seed(run.seed), _state(run), *_steps(run), *[cell("–")] * 3, _name(run.name, parent)]
        for run in left_out
    ]
    columns = ["Task", "Algorithm", "Seed", "State", "Steps", "Wall time", "Final", "Best", "Folder"]
    caption = "Runs"
    found = scrolling(table(columns, rows, caption=caption, class_="sortable runs"), caption)
    where = (
        element("p", "Folders are below ", element("code", printable(parent)), ".", class_="note") if parent else None
    )
    known = any(math.isfinite(trial.series.error[-1]) for trial in trials)
    error = ", ± is the standard error over its episodes" if known else ""
    words = f"Final is the mean of the last evaluation{error}, Best the best mean."
    if comparison.metric.endswith("return_mean"):
        words += f" {RETURN_CONVENTION[0].upper()}{RETURN_CONVENTION[1:]}."
    meaning = element("p", words, class_="note")
    left = element("p", "Rows without values were left out of the comparison.", class_="note") if left_out else None
    return join([found, meaning, where, left])


def _parent(names: Sequence[str]) -> str:
    """Returns the deepest folder that contains all runs; empty without one."""
    try:
        parent = os.path.commonpath([os.path.dirname(name) for name in names])
    except ValueError:  # absolute and relative paths
        return ""
    return parent if len(parent) > 1 else ""


def _row(trial: Trial, comparison: Comparison, colors: Colors) -> list[Any]:
    best = trial.series.peak(lowest=comparison.lowest)
    seconds = trial.seconds
    return [
        trial.task,
        colors.swatch(trial.algo),
        _seed(trial.seed),
        _state(trial.run),
        *_steps(trial.run),
        cell(duration(seconds), value=seconds if math.isfinite(seconds) else None),
        cell(_with_error(trial.series.final, float(trial.series.error[-1])), value=trial.series.final),
        cell(number(best), value=best),
    ]


def _with_error(value: float, error: float) -> str:
    return f"{number(value)} ± {number(error)}" if math.isfinite(error) else number(value)


def _seed(seed: int | None) -> Markup:
    return cell("–" if seed is None else f"{seed}", value=seed)


def _steps(run: CollectedRun) -> list[Markup]:
    of = f" of {run.total:,}" if run.total and run.state != "finished" else ""
    return [cell(f"{run.steps:,}{of}", value=run.steps)]


def _state(run: CollectedRun) -> Markup:
    return cell(element("span", run.state, class_=f"state {run.state}"))


def _name(name: str, parent: str) -> Markup:
    short = os.path.relpath(name, parent) if parent else name
    return cell(element("code", printable(short), title=printable(name)), class_="path")


# ------------------------------------------------------------------------------------------------------------ settings


def settings(comparison: Comparison, colors: Colors) -> Markup:
    """Returns the settings in which groups differ, and the full configuration of each group, folded away."""
    differing: list[Markup] = []
    for title, columns, rows in _differences(comparison, colors):
        shown = scrolling(table(["Setting", *columns], rows, caption=title, class_="settings"), title)
        differing += [element("h3", title), shown]
    full = []
    for (task, algo), result in comparison.results.items():
        first = next(filter(None, (_configuration(trial.run) for trial in result.trials)), None)
        if first is not None:
            summary = join([colors.swatch(algo), " ", element("span", task, class_="muted")])
            full.append(folded(summary, _code(first)))
    title = element("h3", "Full configuration, of the first seed of each group")
    none = "The groups do not differ in any setting." if full else "The settings of the runs are unknown."
    parts = differing or [element("p", none)]
    return join([*parts, title, *full] if full else parts)


def _configuration(run: CollectedRun) -> str | None:
    """Returns the start of the `config.yaml` of a run; None if it cannot be read, or for a run of a file."""
    if run.origin != "coterie":
        return None
    try:
        return read_bytes(RunFolder(Path(run.name)).config_path).decode(errors="replace")[:_LONGEST_CONFIGURATION]
    except OSError:
        return None


def _differences(comparison: Comparison, colors: Colors) -> list[tuple[str, list[Any], list[list[Any]]]]:
    """Returns tables of settings: title, columns, rows.

    Settings that depend on the task only have a column per task, those of algorithms a column per algorithm, and others
    a column per group.
    """
    groups = {f"{task} | {algo}": (task, algo) for task, algo in comparison.results}
    tables: dict[str, tuple[list[Any], list[list[Any]]]] = {}
    for key, values in comparison.settings.items():
        if key in ("algo.name", "env.name"):
            continue
        present = {groups[name]: _setting(value) for name, value in values.items() if name in groups}
        by_task, by_algo = ({pair[i]: value for pair, value in present.items()} for i in (0, 1))
        name = [element("code", printable(key))]
        if all(value == by_algo[algo] for (_, algo), value in present.items()):
            columns = [colors.swatch(algo) for algo in by_algo]
            kind, shown = "Different between algorithms", list(by_algo.values())
        elif all(value == by_task[task] for (task, _), value in present.items()):
            kind, columns, shown = "Different between tasks", list(by_task), list(by_task.values())
        else:
            columns = [_group(task, colors.swatch(algo)) for task, algo in present]
            kind, shown = "Different between groups", list(present.values())
        tables.setdefault(kind, (columns, []))[1].append([*name, *map(cell, shown)])
    return [(title, columns, rows) for title, (columns, rows) in sorted(tables.items())]


def _group(task: str, algo: Markup) -> Markup:
    return element("span", algo, element("small", task), class_="group")


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))


def _code(text: str) -> Markup:
    """Returns a block of text with a button that copies it, which scripts show."""
    button = element("button", "Copy", type="button", class_="copy", hidden=True)
    return element("div", button, element("pre", text, tabindex=0), class_="code")


# ---------------------------------------------------------------------------------------------------------- provenance


def provenance(comparison: Comparison) -> Markup:
    """Returns machines, versions and code of the runs. Runs that agree share a row."""
    runs = list({trial.run.name: trial.run for trial in trials_of(comparison)}.values())
    machines = _shared({run.name: _machine(run) for run in runs})
    versions = _shared({run.name: _versions(run) for run in runs})
    code = _shared({run.name: _code_state(run) for run in runs})
    parts = [_shared_table("Hardware", machines), _shared_table("Versions", versions), _shared_table("Code", code)]
    return element("div", *parts, class_="facts")


def _shared(facts: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Returns facts with the runs that share them."""
    found: dict[str, list[str]] = {}
    for run, fact in facts.items():
        found.setdefault(fact, []).append(run)
    return list(found.items())


def _shared_table(title: str, facts: Sequence[tuple[str, list[str]]]) -> Markup:
    lines = []
    for fact, runs in facts:
        listed = element("ul", *(element("li", element("code", printable(run))) for run in runs))
        who = f"{'all ' if len(facts) == 1 else ''}{count(len(runs), 'run')}"
        lines.append(element("li", element("p", fact), folded(who, listed)))
    return element("section", element("h3", title), element("ul", *lines, class_="shared"))


def _machine(run: CollectedRun) -> str:
    if not run.hardware:
        return "unknown"
    found = run.hardware
    words = [str(found.get("cpu") or "unknown processor")]
    cores, memory, gpus = (found.get(name) for name in ("cores", "memory_bytes", "gpus"))
    if cores and isinstance(cores, int):
        words.append(count(cores, "core"))
    if memory and isinstance(memory, int):
        words.append(f"{memory / 2**30:.0f} GiB")
    words += [str(gpu) for gpu in gpus] if isinstance(gpus, list) else []
    return printable(", ".join([*words, f"device {found['device']}"] if found.get("device") else words))


def _versions(run: CollectedRun) -> str:
    return printable(", ".join(f"{name} {version}" for name, version in run.entry("versions").items())) or "unknown"


def _code_state(run: CollectedRun) -> str:
    """Returns revision and changes of the repository that a run was started in."""
    code, git = run.entry("project"), run.entry("git")
    revision = code.get("revision") or git.get("revision")
    if not revision:
        return "not in a git repository"
    size = code.get("patch_bytes")
    words = [f"revision {str(revision)[:12]}"]
    if size:
        digest = str(code.get("patch_sha256") or "unknown")[:12]
        words.append(f"with uncommitted changes ({int(size):,} bytes, SHA-256 {digest}; in manifest.json)")
    elif git.get("modified"):
        words.append("with uncommitted changes")
    else:
        words.append("without changes of tracked files")
    untracked = len(code.get("untracked") or ()) + int(code.get("untracked_more") or 0)
    return printable(" ".join(words) + (f", {count(untracked, 'untracked file')}" if untracked else ""))


def commands(comparison: Comparison, command: Sequence[str] = ()) -> Markup:
    """Returns the command lines of all runs, and that of the report."""
    manifests = {trial.run.name: trial.run.manifest for trial in trials_of(comparison)}.values()
    known = [words for manifest in manifests if isinstance(words := manifest.get("command"), list) and words]
    lines = [_command(words) for words in [*known, *([command] if command else [])]]
    started = sorted(printable(str(manifest.get("started") or ""))[:10] for manifest in manifests)
    days = ""
    if any(started):
        first = next(filter(None, started))
        days = f" Started {first}" + (f" to {started[-1]}." if started[-1] != first else ".")
    if not lines:
        return element("p", "The command lines are unknown.")
    note = element("p", f"{count(len(lines), 'command')}, run from the same folder.{days}", class_="note")
    return join([folded("Command lines to repeat all runs", _code("\n".join(lines)), class_="printed"), note])


def _command(words: Sequence[Any]) -> str:
    """Returns a command line for a shell, without the folder of the program."""
    program, *others = map(str, words)
    name = PurePath(program).name
    return printable(shlex.join(["coterie" if name in ("coterie", "__main__.py") else name, *others]))

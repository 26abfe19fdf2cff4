"""Metrics of runs as curves, grouped for plots and tables."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config.sources import from_run
from coterie.core.errors import UserError, nearest
from coterie.core.metrics import by_team
from coterie.core.text import csv_text
from coterie.runs.evaluations import return_error
from coterie.runs.folder import RunFolder
from coterie.runs.loggers import read

Levels = Mapping[str, Mapping[str, float]]
"""Returns for comparison by kind (`random`, `published`) and team."""

RETURNS = ("eval/return_mean", "rollout/return_mean")
"""Metrics that are plotted by default, the first one that all runs have."""

_IGNORED_SETTINGS = (
    "seed",
    "out",
    "progress",
    "threads",
    "log.",
    "checkpoint.",
    "eval.every",
    "eval.episodes",
    "eval.num_envs",
)
"""Settings, and sections of settings, that may differ between runs that are averaged."""

_MOST_WORDS = 3
"""Settings in the label of a group."""

_MAX_POINTS = 500
"""Longer curves are averaged to this number of points, enough for the width of a panel."""


@dataclass(frozen=True)
class Curve:
    """A metric of one team in one run.

    Shapes: `steps`, `wall_s`, `value` and `error` are [P], with ascending steps. `error` is the standard error of the
    value over episodes. It and `wall_s` are NaN where unknown.
    """

    steps: np.ndarray
    wall_s: np.ndarray
    value: np.ndarray
    error: np.ndarray

    def smoothed(self, entries: int) -> Curve:
        """Returns the curve of trailing means: of each value and the `entries` - 1 before it, fewer at the start."""
        if entries <= 1:
            return self
        ends = np.arange(1, len(self.value) + 1)
        starts = np.maximum(0, ends - entries)

        def mean(values: np.ndarray) -> np.ndarray:
            sums = np.concatenate([[0.0], np.cumsum(values)])
            return (sums[ends] - sums[starts]) / (ends - starts)

        error = np.sqrt(np.maximum(0.0, mean(self.error**2)) / (ends - starts))
        return Curve(self.steps, self.wall_s, mean(self.value), error)

    def downsampled(self) -> Curve:
        """Returns a curve of at most 500 points, averages of consecutive ones."""
        if len(self.steps) <= _MAX_POINTS:
            return self
        table = np.stack([self.steps, self.wall_s, self.value, self.error**2], axis=1)
        parts = np.array_split(table, _MAX_POINTS)
        steps, wall_s, value, variance = np.stack([part.mean(axis=0) for part in parts]).T
        return Curve(steps, wall_s, value, np.sqrt(variance / [len(part) for part in parts]))


@dataclass(frozen=True)
class Run:
    """Metrics and settings of a run to plot.

    `all_settings` has dotted keys. `settings` excludes those that may differ between runs that are averaged.
    """

    path: Path
    env: str
    algo: str
    seed: int | None
    settings: dict[str, Any]
    all_settings: dict[str, Any]
    rows: list[dict[str, Any]]
    levels: Levels

    @classmethod
    def load(cls, path: Path) -> Run:
        """Loads the run in a folder. Raises UserError if there is none or its files cannot be read."""
        run = RunFolder.open(path)
        settings = {setting.key: setting.value for setting in from_run(run.config_path)}
        manifest = run.read_manifest()
        seed = settings.get("seed", manifest.get("seed"))
        return cls(
            path=run.path,
            env=str(settings.get("env.name", manifest.get("env", ""))),
            algo=str(settings.get("algo.name", manifest.get("algo", ""))),
            seed=seed if isinstance(seed, int) else None,
            settings={key: value for key, value in settings.items() if not key.startswith(_IGNORED_SETTINGS)},
            all_settings=settings,
            rows=read(run.metrics_path),
            levels=manifest.get("levels") or {},
        )

    @property
    def group_key(self) -> str:
        """Key that is equal for runs that are averaged."""
        return settings_key([self.env, self.algo, self.settings])

    @property
    def task(self) -> str:
        """Key that is equal for runs with equal settings of the environment."""
        task = {key: value for key, value in self.settings.items() if key.startswith("env.")}
        return settings_key(task)

    def teams(self, names: Sequence[str] = RETURNS) -> list[str]:
        """Returns the teams that have one of the metrics, by default returns, in the order of the metrics."""
        return list(dict.fromkeys(team for row in self.rows for name in names for team in by_team(row, name)))

    def metrics(self) -> set[str]:
        """Returns the names of all metrics, as they are in the log."""
        return {name for row in self.rows for name in row} - {"steps"}

    def curve(self, team: str, name: str) -> Curve | None:
        """Returns the curve of the metric `name` of the team, or None if it has no values."""
        points = {}
        area, _, rest = name.partition("/")
        key = f"{area}/{team}/{rest}" if team else name
        has_error = name.endswith("/return_mean")
        for row in self.rows:
            value = by_team(row, name).get(team)
            if value is not None and math.isfinite(value):
                error = return_error(row, key) if has_error else math.nan
                points[row["steps"]] = (row["steps"], row.get("time/wall_s", math.nan), value, error)
        if not points:
            return None
        return Curve(*np.array([points[steps] for steps in sorted(points)], dtype=np.float64).T)

    def level(self, kind: str, team: str) -> float | None:
        """Returns the team's return for comparison, or None. A run with one team has metrics without a team name."""
        levels = self.levels.get(kind) or {}
        return next(iter(levels.values())) if team == "" and len(levels) == 1 else levels.get(team)


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups runs that differ only in the seed. Labels name the settings in which the groups differ."""
    by_key: dict[str, list[Run]] = {}
    for run in runs:
        by_key.setdefault(run.group_key, []).append(run)
    firsts = [members[0] for members in by_key.values()]
    groups: dict[str, list[Run]] = {}
    for first, members in zip(firsts, by_key.values(), strict=True):
        # Groups with the same algorithm and environment are labeled by their settings.
        similar = [run for run in firsts if (run.env, run.algo) == (first.env, first.algo)]
        label = group_label(first.algo or "run", first, similar, differing_settings(similar))
        while any(run.env == first.env for run in groups.get(label, ())):
            label += "'"
        groups.setdefault(label, []).extend(members)
    return groups


def group_by_setting(runs: Sequence[Run], key: str) -> dict[str, list[Run]]:
    """Groups runs by the value of one setting, `algo` and `env` included, whatever else differs.

    Raises:
        UserError: If no run has the setting.
    """
    key = {"algo": "algo.name", "env": "env.name"}.get(key, key)
    known = {name for run in runs for name in run.all_settings}
    if key not in known:
        raise UserError(f"--group-by {key}: not a setting of these runs. {nearest(key, known)}")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        value = run.all_settings.get(key)
        label = str(value) if key in ("algo.name", "env.name") else f"{key}={'null' if value is None else value}"
        groups.setdefault(label, []).append(run)
    return groups


def table(groups: Mapping[str, Sequence[Run]], metrics: Sequence[str], smooth: int = 1) -> str:
    """Returns the metrics of runs as CSV: a line per entry of each run's log, steps ascending.

    The columns are run, env, algo, group, seed, team, metric, steps, seconds, value, and smoothed if `smooth` > 1.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ["run", "env", "algo", "group", "seed", "team", "metric", "steps", "seconds", "value"]
    writer.writerow([*columns, *["smoothed"] * (smooth > 1)])
    for group, runs in groups.items():
        for run in runs:
            names = [*map(csv_text, (str(run.path), run.env, run.algo, group)), "" if run.seed is None else run.seed]
            for metric in metrics:
                for team in run.teams([metric]):
                    curve = run.curve(team, metric)
                    if curve is None:
                        continue
                    smoothed = curve.smoothed(smooth).value if smooth > 1 else None
                    for i, (steps, seconds, value) in enumerate(
                        zip(curve.steps, curve.wall_s, curve.value, strict=True)
                    ):
                        row = [int(steps), "" if math.isnan(seconds) else repr(float(seconds)), repr(float(value))]
                        more = [] if smoothed is None else [repr(float(smoothed[i]))]
                        writer.writerow([*names, csv_text(team), csv_text(metric), *row, *more])
    return text.getvalue()


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Returns the keys of the settings in which runs differ, without seeds, folders and logs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({settings_key(run.settings.get(key)) for run in runs}) > 1]


def group_label(name: str, run: Run, others: Sequence[Run], keys: Sequence[str]) -> str:
    """Returns a name with at most three of the settings in which a run differs from others.

    Args:
        name: Start of the label.
        run: The run.
        others: Runs of all groups that have the name.
        keys: Keys of these settings.
    """
    words = dict.fromkeys(setting_label(key, run, others) for key in keys if run.settings.get(key) is not None)
    return " ".join([name, *list(words)[:_MOST_WORDS]])


def settings_key(value: Any) -> str:
    """Returns a text that is equal for equal values of settings."""
    return json.dumps(value, sort_keys=True, default=str)


def setting_label(key: str, run: Run, others: Sequence[Run]) -> str:
    """Returns the label of a setting: its value, or the name of a section that is off (null) in another group."""
    for at in (at for at, letter in enumerate(key) if letter == "."):
        if any(other.settings.get(key[:at], "") is None for other in others):
            return f"+{key[:at].rpartition('.')[2]}"
    return (
        f"{key.removeprefix('algo.')}={_value_label(run.settings[key], [other.settings.get(key) for other in others])}"
    )


def _value_label(value: Any, others: Sequence[Any]) -> str:
    """Returns a value as text. Numbers with many digits have four, if that tells them from the other ones."""
    if not isinstance(value, float) or float(f"{value:.4g}") == value:
        return str(value)
    short = f"{value:.4g}"
    equal = {other for other in others if isinstance(other, float) and f"{other:.4g}" == short}
    return short if equal <= {value} else str(value)

"""Learning curves of one or several runs, against environment steps and wall time."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.config.sources import from_file
from coterie.core.errors import UserError
from coterie.core.files import disk_error, write_bytes
from coterie.core.metrics import by_team
from coterie.core.text import printable
from coterie.runs.folder import RunFolder, runs_below
from coterie.runs.loggers import read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Levels = Mapping[str, Mapping[str, float]]
"""Returns for comparison by kind (`random`, `published`) and team."""

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's color-blind-safe palette without yellow, which is too pale on white."""

_DASHES = {"random": (0, (1, 1.5)), "published": (0, (5, 2))}
_LEVEL_NAMES = {"random": "random policy", "published": "published score"}
_AREAS = {"eval/return_mean": "evaluation return", "rollout/return_mean": "training return"}

_STEP_UNITS = ((1e6, "environment steps (millions)"), (1e3, "environment steps (thousands)"), (1, "environment steps"))
_TIME_UNITS = ((3600, "wall time (hours)"), (60, "wall time (minutes)"), (1, "wall time (seconds)"))

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

_MAX_POINTS = 500
"""Longer curves are averaged to this number of points, enough for the width of a panel."""

_BAR_CHARACTERS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Returns the values as a line of at most `width` bars, scaled from the minimum to the maximum.

    Longer series are averaged. A value that is not finite becomes a space.
    """
    if len(values) == 0:
        return ""
    series = np.asarray(values, dtype=np.float64)
    chunks = [chunk[np.isfinite(chunk)] for chunk in np.array_split(series, min(width, len(series)))]
    means = [chunk.mean() if len(chunk) else math.nan for chunk in chunks]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(_BAR_CHARACTERS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BAR_CHARACTERS[round((mean - low) * scale)] if math.isfinite(mean) else " " for mean in means)


# ------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Curve:
    """Returns of one team in one run.

    Shapes: `steps`, `wall_s` and `value` are [P], with ascending steps; `wall_s` is NaN where unknown.
    """

    steps: np.ndarray
    wall_s: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Run:
    """Metrics and settings of a run to plot.

    `settings` has dotted keys and excludes those that may differ between runs that are averaged.
    """

    path: Path
    env: str
    algo: str
    seed: int | None
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    levels: Levels

    @classmethod
    def load(cls, path: Path) -> Run:
        """Loads the run in a folder. Raises UserError if there is none or its files cannot be read."""
        run = RunFolder.open(path)
        settings = {setting.key: setting.value for setting in from_file(run.config_path)}
        manifest = run.read_manifest()
        seed = settings.get("seed", manifest.get("seed"))
        return cls(
            path=run.path,
            env=str(settings.get("env.name", manifest.get("env", ""))),
            algo=str(settings.get("algo.name", manifest.get("algo", ""))),
            seed=seed if isinstance(seed, int) else None,
            settings={key: value for key, value in settings.items() if not key.startswith(_IGNORED_SETTINGS)},
            rows=read(run.metrics_path),
            levels=manifest.get("levels") or {},
        )

    @property
    def group_key(self) -> str:
        """Key that is equal for runs that are averaged."""
        return json.dumps([self.env, self.algo, self.settings], sort_keys=True, default=str)

    def teams(self) -> list[str]:
        """Returns the teams that have returns, in the order of the metrics."""
        return list(dict.fromkeys(team for row in self.rows for name in _AREAS for team in by_team(row, name)))

    def curve(self, team: str, name: str) -> Curve | None:
        """Returns the curve of the metric `name` of the team, or None if it has no values."""
        points = {}
        for row in self.rows:
            value = by_team(row, name).get(team)
            if value is not None and math.isfinite(value):
                points[row["steps"]] = (row["steps"], row.get("time/wall_s", math.nan), value)
        if not points:
            return None
        table = np.array([points[steps] for steps in sorted(points)], dtype=np.float64)
        if len(table) > _MAX_POINTS:
            table = np.stack([part.mean(axis=0) for part in np.array_split(table, _MAX_POINTS)])
        return Curve(*table.T)

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
    keys = dict.fromkeys(key for run in firsts for key in run.settings)
    groups: dict[str, list[Run]] = {}
    for first, members in zip(firsts, by_key.values(), strict=True):
        # Groups with the same algorithm and environment are labeled by their settings.
        similar = [run for run in firsts if (run.env, run.algo) == (first.env, first.algo)]
        differing = [key for key in keys if len({str(run.settings.get(key)) for run in similar}) > 1]
        present = [key for key in differing if first.settings.get(key) is not None]
        words = dict.fromkeys(_setting_label(key, first, similar) for key in present)
        label = " ".join([first.algo or "run", *list(words)[:3]])
        while any(run.env == first.env for run in groups.get(label, ())):
            label += "'"
        groups.setdefault(label, []).extend(members)
    return groups


def _setting_label(key: str, run: Run, others: Sequence[Run]) -> str:
    """Returns the label of a setting: its value, or the name of a section that is off (null) in another group."""
    for at in (at for at, letter in enumerate(key) if letter == "."):
        if any(other.settings.get(key[:at], "") is None for other in others):
            return f"+{key[:at].rpartition('.')[2]}"
    return f"{key.removeprefix('algo.')}={run.settings[key]}"


# ------------------------------------------------------------------------------------------------------ drawing


def mean_and_band(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...] | None:
    """Averages curves (x, y) of several seeds where all of them have data.

    The band ranges from the minimum to the maximum for up to four seeds. For more seeds it is the 95% bootstrap
    confidence interval of the mean.

    Returns:
        Grid, mean, lower and upper bound of the band, [P] each. None if the curves do not overlap.
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if first > last:
        return None
    same_grid = all(len(x) == len(curves[0][0]) and np.array_equal(x, curves[0][0]) for x, _ in curves)
    grid = curves[0][0] if same_grid else np.linspace(first, last, 300)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    if len(curves) <= 4:
        return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    picks = np.random.default_rng(0).integers(len(curves), size=(1000, len(curves)))
    weights = np.stack([(picks == seed).mean(axis=1) for seed in range(len(curves))], axis=1)  # [1000, seeds]
    low, high = np.quantile(weights @ values, (0.025, 0.975), axis=0)
    return grid, values.mean(axis=0), low, high


def _band_label(count: int) -> str:
    return "min to max" if count <= 4 else "95% CI"


def _with_labels(groups: Mapping[str, list[Run]], shown: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Returns the legend entry of every group and the runs of the group in one panel."""
    present = [(name, [run for run in members if run in shown]) for name, members in groups.items()]
    return [(_label(name, members), members) for name, members in present]


def _label(name: str, members: Sequence[Run]) -> str:
    """Returns the legend entry of a group, with the meaning of its band."""
    count = len(members)
    if count < 2:
        return f"{name} (seed {members[0].seed})" if members and members[0].seed is not None else name
    seeds = "seeds" if len({run.seed for run in members}) == count else "runs"
    return f"{name} ({count} {seeds}: mean, {_band_label(count)})"


def draw(runs: Sequence[Run]) -> Figure:
    """Draws the figure: one row per environment and team, against steps on the left and wall time on the right."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # dollar signs in names are not formulas
        return _draw(runs)


def _draw(runs: Sequence[Run]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    groups = group_runs(runs)
    panels = list(dict.fromkeys((run.env, team) for run in runs for team in run.teams()))
    figure = Figure(figsize=(9.2, 0.75 + 2.9 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 2, squeeze=False, sharey="row")
    colors = [color for _, color in zip(groups, cycle(_COLORS), strict=False)]
    handles: dict[str, Any] = {}
    levels: dict[str, Any] = {}
    for (env, team), (by_steps, by_time) in zip(panels, axes, strict=True):
        shown = [run for run in runs if run.env == env and team in run.teams()]
        # Evaluation and training returns are not comparable, so a panel shows only one of them.
        area = next((name for name in _AREAS if all(run.curve(team, name) for run in shown)), "rollout/return_mean")
        drawn = {
            label: (color, [curve for run in present if (curve := run.curve(team, area))])
            for (label, present), color in zip(_with_labels(groups, shown), colors, strict=True)
            if present
        }
        curves = [curve for _, members in drawn.values() for curve in members]
        step_size, step_label = _unit(max(curve.steps[-1] for curve in curves), _STEP_UNITS)
        time_size, time_label = _unit(max(np.nan_to_num(curve.wall_s).max() for curve in curves), _TIME_UNITS)
        for label, (color, members) in drawn.items():
            line = Line2D([], [], color=color, linewidth=1.8)
            handles[label] = (Patch(color=color, alpha=0.18, linewidth=0), line) if len(members) > 1 else (line,)
            _draw_group(by_steps, [(curve.steps / step_size, curve.value) for curve in members], color)
            timed = [curve for curve in members if np.isfinite(curve.wall_s).all()]
            _draw_group(by_time, [(curve.wall_s / time_size, curve.value) for curve in timed], color)
        for kind in _draw_levels((by_steps, by_time), shown, team):
            levels[_LEVEL_NAMES[kind]] = (Line2D([], [], color="0.35", linewidth=1.1, linestyle=_DASHES[kind]),)
        by_steps.set_ylabel(_AREAS[area])
        by_steps.set_title(" · ".join(printable(word) for word in (env, team) if word), loc="left", fontsize=10)
        _style_axes(by_steps, step_label)
        _style_axes(by_time, time_label)
    handles |= levels
    columns = 1 if max(map(len, handles)) > 60 else min(2, len(handles))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    return figure


def _draw_group(axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]], color: str) -> None:
    """Draws single seeds as thin lines, their mean as a thick line and the band around it."""
    if len(curves) == 1:
        axes.plot(*curves[0], color=color, linewidth=1.8, marker="o" if len(curves[0][0]) == 1 else None)
        return
    for x, y in curves:
        axes.plot(x, y, color=color, linewidth=0.6, alpha=0.45)
    common = mean_and_band(curves) if curves else None
    if common is not None:
        grid, mean, low, high = common
        axes.fill_between(grid, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(grid, mean, color=color, linewidth=1.8)


def _draw_levels(axes: Sequence[Axes], runs: Sequence[Run], team: str) -> list[str]:
    """Draws reference scores as dashed lines. Returns the kinds that were drawn."""
    drawn = []
    for kind, dashes in _DASHES.items():
        levels = {level for run in runs if (level := run.level(kind, team)) is not None}
        for level in levels:
            for panel in axes:
                panel.axhline(level, color="0.35", linewidth=1.1, linestyle=dashes, zorder=1)
        drawn += [kind] * bool(levels)
    return drawn


def _unit(largest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Returns the largest unit in which `largest` is at least 2, otherwise the smallest unit."""
    return next(((size, word) for size, word in units if largest >= 2 * size), units[-1])


def _style_axes(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot(runs: Sequence[Path], out: Path | None = None, levels: Levels | None = None) -> list[Path]:
    """Draws learning curves of runs.

    Args:
        runs: Folders of runs, or folders that contain runs.
        out: File (.png, .svg or .pdf), or a folder for `curves.png` and `curves.svg`. Default: the folder of the run,
            or
            the current folder for several runs.
        levels: Returns for comparison, instead of those in the runs' manifests.

    Returns:
        The files: PNG and SVG, or one PDF.

    Raises:
        UserError: If there is no run, if there are no returns yet, or if the files cannot be written.
    """
    paths = [path for folder in runs for path in (runs_below(Path(folder)) or [Path(folder)])]
    loaded = [Run.load(path) for path in dict.fromkeys(paths)]
    loaded = [run if levels is None else replace(run, levels=levels) for run in loaded]
    drawable = [run for run in loaded if run.teams()]
    if not drawable:
        raise UserError(f"{', '.join(map(str, runs)) or 'plot'}: no returns to plot yet. Train longer.")
    targets = _targets(out, drawable)
    figure = draw(drawable)
    for target in targets:
        content = io.BytesIO()
        # Without the date, so that equal plots are equal files.
        metadata = {"Date": None} if target.suffix == ".svg" else None
        figure.savefig(content, format=target.suffix[1:], dpi=200, metadata=metadata)
        figure.set_layout_engine("none")  # other formats have the same layout, which takes a third of the time
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, content.getvalue())
        except OSError as error:
            raise disk_error("the figure", target, error) from error
    return targets


def _targets(out: Path | None, runs: Sequence[Run]) -> list[Path]:
    """Returns the files to write."""
    if out is None:
        out = runs[0].path if len(runs) == 1 else Path()
    out = Path(out)
    if out.is_dir():
        out /= "curves"
    if out.suffix == ".pdf":
        return [out]
    if out.suffix not in ("", ".png", ".svg"):
        raise UserError(f"--out {out}: unsupported file type {out.suffix}. Expected .png, .svg or .pdf.")
    return [out.with_suffix(".png"), out.with_suffix(".svg")]

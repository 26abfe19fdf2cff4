"""Plots of metrics of one or several runs, by default learning curves, against environment steps and wall time."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.errors import UserError, nearest
from coterie.core.files import disk_error, write_bytes
from coterie.core.text import printable
from coterie.functional.intervals import Z_95
from coterie.runs.curves import RETURNS, Curve, Levels, Run, group_by_setting, group_runs, table
from coterie.runs.folder import RunFolder, runs_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's color-blind-safe palette without yellow, which is too pale on white."""

LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2, 1, 2, 1, 2)))
"""Line styles of the groups of one algorithm."""

_DASHES = {"random": (0, (1, 1.5)), "published": (0, (5, 2))}
_LEVEL_NAMES = {"random": "random policy", "published": "published score"}
_AREAS = {"eval/return_mean": "team return in evaluation", "rollout/return_mean": "team return in training"}

_UNITS = {
    "steps": ((1e6, "environment steps (millions)"), (1e3, "environment steps (thousands)"), (1, "environment steps")),
    "seconds": ((3600, "wall time (hours)"), (60, "wall time (minutes)"), (1, "wall time (seconds)")),
}

_SQUEEZED = 0.2
"""Part of a panel's height below which curves are squeezed by outliers."""
_FEWEST_POINTS = 5
"""Points of a curve below which none of them is an outlier."""

_LARGEST = 1e300
"""Largest absolute value that is drawn."""

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


# ------------------------------------------------------------------------------------------------------ drawing


def draw_curves(folder: RunFolder) -> None:
    """Draws the learning curves of a run into its folder. It takes about a second."""
    plot([folder.path], folder.path / "curves.png")


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


@dataclass(frozen=True)
class Style:
    """Color and line style of a group. `by_team` contains the colors of teams that differ from it."""

    color: str
    dashes: Any = "-"
    by_team: Mapping[str, str] = field(default_factory=dict)

    def of(self, team: str) -> Style:
        """Returns the style of a team's curves."""
        return Style(self.by_team.get(team, self.color), self.dashes)


def line_styles(groups: Mapping[str, Sequence[Run]], *, by_algorithm: bool = True) -> dict[str, Style]:
    """Returns the style of each group, the same in all panels.

    With several algorithms, a color belongs to an algorithm, and the groups of an algorithm in one environment differ
    in the line style. Otherwise, each group has a color. Colors repeat after seven, with other line styles.

    Args:
        groups: Runs by label.
        by_algorithm: False to give each group a color.
    """
    algorithms = list(dict.fromkeys(run.algo for runs in groups.values() for run in runs))
    if not by_algorithm or len(algorithms) < 2:
        return {name: _style(i, 0) for i, name in enumerate(groups)}
    taken: dict[tuple[str, str], set[int]] = {}
    styles = {}
    for name, runs in groups.items():
        places = [taken.setdefault((run.algo, run.env), set()) for run in runs]
        variant = next(i for i in range(len(groups)) if all(i not in place for place in places))
        for place in places:
            place.add(variant)
        styles[name] = _style(algorithms.index(runs[0].algo), variant)
    return styles


def _style(color: int, variant: int) -> Style:
    return Style(COLORS[color % len(COLORS)], LINES[(variant + color // len(COLORS)) % len(LINES)])


def _label(name: str, members: Sequence[Run], has_error: bool) -> str:
    """Returns the legend entry of a group, with the meaning of its band."""
    count = len(members)
    if count < 2:
        words = [f"seed {members[0].seed}"] if members and members[0].seed is not None else []
        words += ["95% CI over episodes"] if has_error else []
        return f"{name} ({': '.join(words)})" if words else name
    seeds = "seeds" if len({run.seed for run in members}) == count else "runs"
    return f"{name} ({count} {seeds}: mean, {_band_label(count)})"


@dataclass(frozen=True)
class PlotOptions:
    """Options of a plot.

    Attributes:
        metrics: Metrics such as `loss/policy`, without team names; by default evaluation or training returns.
        x: `steps` or `seconds` on the horizontal axis; by default one column of panels for each.
        group_by: Setting whose values are the groups, such as `algo.lr`; by default runs that differ in the seed only
            are one group.
        smooth: Number of log entries of the trailing mean; 1 for none.
        csv: Write the values next to the figure.
        pdf: Write the figure as PDF, too.
    """

    metrics: tuple[str, ...] = ()
    x: Literal["steps", "seconds"] | None = None
    group_by: str | None = None
    smooth: int = 1
    csv: bool = False
    pdf: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        """Horizontal axes, from left to right."""
        return ("steps", "seconds") if self.x is None else (self.x,)

    def groups(self, runs: Sequence[Run]) -> dict[str, list[Run]]:
        """Returns the groups of runs by label."""
        return group_runs(runs) if self.group_by is None else group_by_setting(runs, self.group_by)


@dataclass(frozen=True)
class _Row:
    """A row of panels: one metric of one team in one environment."""

    env: str
    team: str
    metric: str
    runs: tuple[Run, ...]


def draw(runs: Sequence[Run], options: PlotOptions | None = None) -> Figure:
    """Draws the figure: a row per environment, metric and team, by default against steps on the left and wall time on
    the right.

    If there are several algorithms, each has one color in all panels, and line styles tell its groups apart.
    """
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # dollar signs in names are not formulas
        return _draw(runs, options or PlotOptions())


def _draw(runs: Sequence[Run], options: PlotOptions) -> Figure:
    from matplotlib.figure import Figure

    groups = options.groups(runs)
    styles = line_styles(groups, by_algorithm=options.group_by is None)
    rows, columns = _rows(runs, options.metrics), len(options.axes)
    teams = list(dict.fromkeys(row.team for row in rows if row.team))
    if len(groups) == 1 and len(teams) > 1:  # as on the pages, where the second color is that of the first team
        colors = {team: COLORS[(i + 1) % len(COLORS)] for i, team in enumerate(teams)}
        styles = {name: replace(style, by_team=colors) for name, style in styles.items()}
    figure = Figure(figsize=(9.2 if columns == 2 else 6.4, 0.75 + 2.9 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, sharey="row")
    handles: dict[str, Any] = {}
    levels: dict[str, Any] = {}
    for row, axes in zip(rows, grid, strict=True):
        handles |= _draw_row(row, dict(zip(options.axes, axes, strict=True)), groups, styles, smooth=options.smooth)
        levels |= _draw_levels(axes, row)
        for panel in axes:
            _leave_out_early_outliers(panel)
        words = (row.env, row.team)
        axes[0].set_title(" · ".join(printable(word) for word in words if word), loc="left", fontsize=10)
    handles |= levels
    columns = 1 if max(map(len, handles)) > 30 * columns else min(2, len(handles))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    return figure


def _rows(runs: Sequence[Run], metrics: Sequence[str]) -> list[_Row]:
    rows = []
    for metric in metrics or (None,):
        names = RETURNS if metric is None else (metric,)
        for env, team in dict.fromkeys((run.env, team) for run in runs for team in run.teams(names)):
            shown = tuple(run for run in runs if run.env == env and team in run.teams(names))
            # Evaluation and training returns are not comparable, so a panel shows only one of them.
            name = next((name for name in names if all(run.curve(team, name) for run in shown)), names[-1])
            rows.append(_Row(env, team, name, shown))
    return rows


def _draw_row(
    row: _Row, axes: Mapping[str, Axes], groups: Mapping[str, list[Run]], styles: Mapping[str, Style], *, smooth: int
) -> dict[str, Any]:
    """Draws the groups of a row. Returns their legend entries."""
    drawn: dict[str, tuple[Style, list[Curve]]] = {}
    for name, members in groups.items():
        present = [run for run in members if run in row.runs]
        curves = [curve for run in present if (curve := run.curve(row.team, row.metric))]
        if present:
            shown = [curve.smoothed(smooth).downsampled() for curve in curves]
            style = styles[name].of(row.team)
            team = f"{name}, {printable(row.team)}" if style.color != styles[name].color else name
            drawn[_label(team, present, _has_error(shown))] = style, shown
    curves = [curve for _, members in drawn.values() for curve in members]
    for x, panel in axes.items():
        if x == "steps":
            size, label = axis_unit("steps", max((curve.steps[-1] for curve in curves), default=0))
        else:
            size, label = axis_unit("seconds", max((np.nan_to_num(c.wall_s).max() for c in curves), default=0))
        for style, members in drawn.values():
            timed = members if x == "steps" else [curve for curve in members if np.isfinite(curve.wall_s).all()]
            lines = [((curve.steps if x == "steps" else curve.wall_s) / size, curve.value) for curve in timed]
            _draw_group(panel, lines, style, error=timed[0].error if _has_error(timed) else None)
        style_axes(panel, label)
        panel.set_xlim(left=0)
    words = f"\n(mean of {smooth} log entries)" if smooth > 1 else ""
    next(iter(axes.values())).set_ylabel(f"{_AREAS.get(row.metric, printable(row.metric))}{words}")
    return {
        label: _handle(style, has_band=len(members) > 1 or _has_error(members))
        for label, (style, members) in drawn.items()
    }


def _has_error(curves: Sequence[Curve]) -> bool:
    """True for a single curve whose standard errors are known."""
    return len(curves) == 1 and len(curves[0].steps) > 1 and bool(np.isfinite(curves[0].error).any())


def _handle(style: Style, *, has_band: bool) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    line = Line2D([], [], color=style.color, linestyle=style.dashes, linewidth=1.8)
    return (Patch(color=style.color, alpha=0.18, linewidth=0), line) if has_band else (line,)


def _draw_group(
    axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]], style: Style, *, error: np.ndarray | None
) -> None:
    """Draws single seeds as thin lines, their mean as a thick line and the band around it.

    Args:
        axes: The panel.
        curves: x and y of each seed.
        style: Color and line style.
        error: Standard errors of the only curve, whose band they are; None for no band.
    """
    color, thick = style.color, {"color": style.color, "linestyle": style.dashes, "linewidth": 1.8}
    if len(curves) == 1:
        if error is not None:
            (x, y), width = curves[0], Z_95 * error
            axes.fill_between(x, y - width, y + width, color=color, alpha=0.18, linewidth=0)
        axes.plot(*curves[0], **thick, marker="o" if len(curves[0][0]) == 1 else None)
        return
    for x, y in curves:
        axes.plot(x, y, color=color, linewidth=0.6, alpha=0.45)
    common = mean_and_band(curves) if curves else None
    if common is not None:
        grid, mean, low, high = common
        axes.fill_between(grid, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(grid, mean, **thick)


def _draw_levels(axes: Sequence[Axes], row: _Row) -> dict[str, Any]:
    """Draws reference scores of returns as dashed lines. Returns their legend entries.

    Random policies have one line, the mean over the runs, if the runs have the same environment settings.
    """
    from matplotlib.lines import Line2D

    handles: dict[str, Any] = {}
    for kind, dashes in _DASHES.items() if row.metric in _AREAS else ():
        by_task: dict[str, list[float]] = {}
        for run in row.runs:
            level = run.level(kind, row.team)
            if level is not None:
                by_task.setdefault(run.task if kind == "random" else str(level), []).append(level)
        for levels in by_task.values():
            for panel in axes:
                panel.axhline(float(np.mean(levels)), color="0.35", linewidth=1.1, linestyle=dashes, zorder=1)
            handles[_LEVEL_NAMES[kind]] = (Line2D([], [], color="0.35", linewidth=1.1, linestyle=dashes),)
    return handles


def _leave_out_early_outliers(axes: Axes) -> None:
    """Sets the range of a panel so that single outliers in the first fifth of a curve do not squeeze everything else.

    They are left out if all other values, reference scores included, would have less than a fifth of the height. An
    arrow at the edge has the value that is outside.
    """
    kept: list[float] = []
    outside: list[tuple[float, float, Any]] = []
    for line in axes.get_lines():
        x, y = (np.asarray(values, dtype=np.float64) for values in line.get_data())
        early = len(y) // 5 if len(y) >= _FEWEST_POINTS else 0
        distance = np.abs(y[:early] - np.median(y))
        far = set(np.argsort(distance)[-max(1, len(y) // 50) :].tolist()) if early else set()
        kept += [value for k, value in enumerate(y) if k not in far]
        outside += [(float(x[k]), float(y[k]), line.get_color()) for k in far]
    if not kept or not outside:
        return
    hidden = {x for x, _, _ in outside}
    for band in axes.collections:
        corners = np.asarray(band.get_paths()[0].vertices)
        kept += [float(y) for x, y in corners if math.isfinite(y) and float(x) not in hidden]
    low, high = min(kept), max(kept)
    values = [*kept, *(y for _, y, _ in outside)]
    if high - low >= _SQUEEZED * (max(values) - min(values)) or high == low:
        return
    margin = 0.1 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    for x, y, color in outside:
        if low - margin <= y <= high + margin:
            continue
        is_below = y < low
        axes.annotate(
            f"{'↓' if is_below else '↑'} {y:.4g}",
            (x, 0.02 if is_below else 0.98),
            xycoords=("data", "axes fraction"),
            va="bottom" if is_below else "top",
            color=color,
            fontsize=8,
        )


def axis_unit(axis: Literal["steps", "seconds"], largest: float) -> tuple[float, str]:
    """Returns size and label of the largest unit in which `largest` is at least 2, otherwise of the smallest unit."""
    units = _UNITS[axis]
    return next(((size, word) for size, word in units if largest >= 2 * size), units[-1])


def style_axes(axes: Axes, label: str) -> None:
    """Gives a panel its grid and the label of its horizontal axis."""
    axes.set_xlabel(printable(label))
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot(
    runs: Sequence[Path], out: Path | None = None, levels: Levels | None = None, options: PlotOptions | None = None
) -> list[Path]:
    """Draws metrics of runs, by default learning curves.

    Args:
        runs: Folders of runs, or folders that contain runs.
        out: File (.png, .svg or .pdf), or a folder for `curves.png` and `curves.svg`. Default: the folder of the run,
            or the current folder for several runs.
        levels: Returns for comparison, instead of those in the runs' manifests.
        options: Metrics, axes, groups and further files.

    Returns:
        The files: PNG and SVG, or one PDF, and those of the options.

    Raises:
        UserError: If there is no run, if a metric has no values, or if the files cannot be written.
    """
    options = options or PlotOptions()
    drawable = _drawable(runs, levels, options)
    targets = _targets(out, drawable)
    csv_file = targets[0].with_suffix(".csv")
    if options.pdf and targets[0].suffix != ".pdf":
        targets.append(targets[0].with_suffix(".pdf"))
    figure = draw(drawable, options)
    for target in targets:
        write_figure(figure, target)
        figure.set_layout_engine("none")  # other formats have the same layout, which takes a third of the time
    if options.csv:
        names = options.metrics or tuple(dict.fromkeys(row.metric for row in _rows(drawable, ())))
        _write(csv_file, table(options.groups(drawable), names, options.smooth).encode())
        targets.append(csv_file)
    return targets


def figure_of(runs: Sequence[Path], options: PlotOptions | None = None) -> Figure:
    """Draws metrics of runs, as `plot`, without writing files."""
    options = options or PlotOptions()
    return draw(_drawable(runs, None, options), options)


def _drawable(runs: Sequence[Path], levels: Levels | None, options: PlotOptions) -> list[Run]:
    """Returns the runs that have values of the metrics. UserError if there are none."""
    paths = [path for folder in runs for path in (runs_below(Path(folder)) or [Path(folder)])]
    loaded = [Run.load(path) for path in dict.fromkeys(paths)]
    loaded = [run if levels is None else replace(run, levels=levels) for run in loaded]
    _check_metrics(loaded, options.metrics)
    drawable = [run for run in loaded if run.teams(options.metrics or RETURNS)]
    if not drawable:
        raise UserError(f"{', '.join(map(str, runs)) or 'plot'}: no returns to plot yet. Train longer.")
    _check_range(drawable, options.metrics or RETURNS)
    return drawable


def _check_metrics(runs: Sequence[Run], metrics: Sequence[str]) -> None:
    """Raises UserError for a metric that no run has logged, or that has no finite value."""
    for name in metrics:
        if not any(run.curve(team, name) for run in runs for team in run.teams([name])):
            known = {metric for run in runs for metric in run.metrics()}
            raise UserError(f"--metric {name}: not in the logs of these runs. {nearest(name, known)}")


def _check_range(runs: Sequence[Run], names: Sequence[str]) -> None:
    """Raises UserError for values near the largest floating-point number, of which no axis can be computed."""
    for run in runs:
        curves = [curve for team in run.teams(names) for name in names if (curve := run.curve(team, name)) is not None]
        if any(np.abs(curve.value).max() > _LARGEST for curve in curves):
            raise UserError(f"{run.path}: cannot be drawn, its log contains values beyond {_LARGEST:g}. Plot others.")


def write_figure(figure: Figure, path: Path) -> None:
    """Writes a figure as .png, .svg or .pdf. Equal figures give equal files.

    Raises:
        UserError: If the file cannot be written.
    """
    _write(path, rendered(figure, path.suffix))


def rendered(figure: Figure, suffix: str, dpi: int = 200) -> bytes:
    """Returns a figure as .png, .svg or .pdf. Equal figures give equal bytes."""
    content = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    figure.savefig(content, format=suffix[1:], dpi=dpi, metadata=metadata)
    return content.getvalue()


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    except OSError as error:
        raise disk_error("the file" if path.suffix == ".csv" else "the figure", path, error) from error


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

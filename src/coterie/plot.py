"""Learning curves of one or many runs, against steps and against wall time."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from coterie.errors import UserError
from coterie.log import read
from coterie.metrics import by_team
from coterie.rundir import RunDir, disk_error, runs_below, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Levels = Mapping[str, Mapping[str, float]]
"""Returns to compare with, by kind (`random`, `published`) and team."""

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which any colour vision tells apart; yellow, too pale on white, is left out."""

_DASHES = {"random": (0, (1, 1.5)), "published": (0, (5, 2))}
_LEVEL_WORDS = {"random": "random policy", "published": "published level"}
_AREAS = {"eval/return_mean": "evaluation return", "rollout/return_mean": "training return"}

_STEP_UNITS = ((1e6, "environment steps (millions)"), (1e3, "environment steps (thousands)"), (1, "environment steps"))
_TIME_UNITS = ((3600, "wall time (hours)"), (60, "wall time (minutes)"), (1, "wall time (seconds)"))

_SAME_KIND = ("seed", "out", "progress", "threads", "log.", "checkpoint.", "eval.every", "eval.episodes", "eval.copies")
"""Settings, and sections of settings, in which runs of one kind may differ."""

_MOST_POINTS = 500
"""Longer curves are averaged in that many stretches, which the eye cannot tell apart at a panel's width."""

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The values as a line of at most `width` bars, from the lowest to the highest; longer ones are averaged.

    A value that is not finite is a gap.
    """
    if len(values) == 0:
        return ""
    series = np.asarray(values, dtype=np.float64)
    parts = [part[np.isfinite(part)] for part in np.array_split(series, min(width, len(series)))]
    means = [part.mean() if len(part) else math.nan for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] if math.isfinite(mean) else " " for mean in means)


# ------------------------------------------------------------------------------------------------------- what was run


@dataclass(frozen=True)
class Curve:
    """Returns of one team in one run: steps, wall_s, value [P], steps ascending; wall_s NaN where unknown."""

    steps: np.ndarray
    wall_s: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Run:
    """What a plot needs of a run. settings: flat, without those in which runs of one kind may differ."""

    path: Path
    env: str
    algo: str
    seed: int | None
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    levels: Levels

    @classmethod
    def load(cls, path: Path) -> Run:
        """The run in a folder. UserError if it is none or its files cannot be read."""
        run = RunDir.open(path)
        try:
            config = yaml.safe_load(run.config_path.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{run.config_path} cannot be read ({reason}); restore it from a copy") from error
        settings = _flat(config if isinstance(config, dict) else {})
        manifest = run.read_manifest()
        return cls(
            path=run.path,
            env=str(settings.get("env.name", settings.get("env", manifest.get("env", "")))),
            algo=str(settings.get("algo.name", settings.get("algo", manifest.get("algo", "")))),
            seed=settings.get("seed", manifest.get("seed")),
            settings={key: value for key, value in settings.items() if not key.startswith(_SAME_KIND)},
            rows=read(run.metrics_path),
            levels=manifest.get("levels") or {},
        )

    @property
    def kind(self) -> str:
        """What runs that are gathered have in common."""
        return json.dumps([self.env, self.algo, self.settings], sort_keys=True, default=str)

    def teams(self) -> list[str]:
        """Teams that have returns, in the order of the metrics."""
        return list(dict.fromkeys(team for row in self.rows for name in _AREAS for team in by_team(row, name)))

    def curve(self, team: str, name: str) -> Curve | None:
        """The values of the metric `name` for the team, None if there are none."""
        points = {}
        for row in self.rows:
            value = by_team(row, name).get(team)
            if value is not None and math.isfinite(value):
                points[row["steps"]] = (row["steps"], row.get("time/wall_s", math.nan), value)
        if not points:
            return None
        table = np.array([points[steps] for steps in sorted(points)], dtype=np.float64)
        if len(table) > _MOST_POINTS:
            table = np.stack([part.mean(axis=0) for part in np.array_split(table, _MOST_POINTS)])
        return Curve(*table.T)

    def level(self, word: str, team: str) -> float | None:
        """The return of the team to compare with; a run with one team does not say its name in its metrics."""
        known = self.levels.get(word) or {}
        return next(iter(known.values())) if team == "" and len(known) == 1 else known.get(team)


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return flat


def gather(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs of one kind (all settings but the seed) under a label that says in what the kinds differ."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    firsts = [members[0] for members in kinds.values()]
    keys = dict.fromkeys(key for run in firsts for key in run.settings)
    gathered: dict[str, list[Run]] = {}
    for first, members in zip(firsts, kinds.values(), strict=True):
        # Kinds of one algorithm in one environment are told apart by their settings, others by their names.
        rivals = [run for run in firsts if (run.env, run.algo) == (first.env, first.algo)]
        differing = [key for key in keys if len({str(run.settings.get(key)) for run in rivals}) > 1]
        known = [key for key in differing if first.settings.get(key) is not None]
        words = dict.fromkeys(_word(key, first, rivals) for key in known)
        label = " ".join([first.algo or "run", *list(words)[:3]])
        while any(run.env == first.env for run in gathered.get(label, ())):
            label += "'"
        gathered.setdefault(label, []).extend(members)
    return gathered


def _word(key: str, run: Run, rivals: Sequence[Run]) -> str:
    """In what a run differs from its rivals: a setting, or the section that is off (null) in one of them."""
    for at in (at for at, letter in enumerate(key) if letter == "."):
        if any(other.settings.get(key[:at], "") is None for other in rivals):
            return f"+{key[:at].rpartition('.')[2]}"
    return f"{key.removeprefix('algo.')}={run.settings[key]}"


# ------------------------------------------------------------------------------------------------------ what is drawn


def spread(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...] | None:
    """Grid, mean, lower and upper edge of the band [P] over curves (x, y) of several seeds, where all have data.

    The band goes from the lowest to the highest of up to four seeds; of more, it is the 95% bootstrap interval of the
    mean. None where the curves have no stretch in common.
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if first > last:
        return None
    same = all(len(x) == len(curves[0][0]) and np.array_equal(x, curves[0][0]) for x, _ in curves)
    grid = curves[0][0] if same else np.linspace(first, last, 300)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    if len(curves) <= 4:
        return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    picks = np.random.default_rng(0).integers(len(curves), size=(1000, len(curves)))
    weights = np.stack([(picks == seed).mean(axis=1) for seed in range(len(curves))], axis=1)  # [1000, seeds]
    low, high = np.quantile(weights @ values, (0.025, 0.975), axis=0)
    return grid, values.mean(axis=0), low, high


def _band_words(count: int) -> str:
    return "lowest to highest" if count <= 4 else "95% interval"


def _labelled(gathered: Mapping[str, list[Run]], shown: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Every kind's entry in the legend and those of its runs that a panel shows."""
    present = [(kind, [run for run in members if run in shown]) for kind, members in gathered.items()]
    return [(_label(kind, members), members) for kind, members in present]


def _label(kind: str, members: Sequence[Run]) -> str:
    """A kind's entry in the legend, with what its band means."""
    count = len(members)
    if count < 2:
        return f"{kind} (seed {members[0].seed})" if members and members[0].seed is not None else kind
    seeds = "seeds" if len({run.seed for run in members}) == count else "runs"
    return f"{kind} ({count} {seeds}: mean, {_band_words(count)})"


def draw(runs: Sequence[Run]) -> Figure:
    """The figure: a row a team of an environment, steps on the left and wall time on the right."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    gathered = gather(runs)
    panels = list(dict.fromkeys((run.env, team) for run in runs for team in run.teams()))
    figure = Figure(figsize=(9.2, 0.75 + 2.9 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 2, squeeze=False, sharey="row")
    colours = [colour for _, colour in zip(gathered, cycle(_COLOURS), strict=False)]
    handles: dict[str, Any] = {}
    levels: dict[str, Any] = {}
    for (env, team), (by_steps, by_time) in zip(panels, axes, strict=True):
        shown = [run for run in runs if run.env == env and team in run.teams()]
        # Evaluation and training returns are different things, so that one panel shows one of them.
        area = next((name for name in _AREAS if all(run.curve(team, name) for run in shown)), "rollout/return_mean")
        drawn = {
            label: (colour, [curve for run in present if (curve := run.curve(team, area))])
            for (label, present), colour in zip(_labelled(gathered, shown), colours, strict=True)
            if present
        }
        curves = [curve for _, members in drawn.values() for curve in members]
        step_size, step_label = _unit(max(curve.steps[-1] for curve in curves), _STEP_UNITS)
        time_size, time_label = _unit(max(np.nan_to_num(curve.wall_s).max() for curve in curves), _TIME_UNITS)
        for label, (colour, members) in drawn.items():
            line = Line2D([], [], color=colour, linewidth=1.8)
            handles[label] = (Patch(color=colour, alpha=0.18, linewidth=0), line) if len(members) > 1 else (line,)
            _draw_kind(by_steps, [(curve.steps / step_size, curve.value) for curve in members], colour)
            timed = [curve for curve in members if np.isfinite(curve.wall_s).all()]
            _draw_kind(by_time, [(curve.wall_s / time_size, curve.value) for curve in timed], colour)
        for word in _draw_levels((by_steps, by_time), shown, team):
            levels[_LEVEL_WORDS[word]] = (Line2D([], [], color="0.35", linewidth=1.1, linestyle=_DASHES[word]),)
        by_steps.set_ylabel(_AREAS[area])
        by_steps.set_title(" · ".join(word for word in (env, team) if word), loc="left", fontsize=10)
        _dress(by_steps, step_label)
        _dress(by_time, time_label)
    handles |= levels
    columns = 1 if max(map(len, handles)) > 60 else min(2, len(handles))
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    return figure


def _draw_kind(axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]], colour: str) -> None:
    """Single seeds thin, their mean thick, their spread as a band."""
    if len(curves) == 1:
        axes.plot(*curves[0], color=colour, linewidth=1.8, marker="o" if len(curves[0][0]) == 1 else None)
        return
    for x, y in curves:
        axes.plot(x, y, color=colour, linewidth=0.6, alpha=0.45)
    common = spread(curves) if curves else None
    if common is not None:
        grid, mean, low, high = common
        axes.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(grid, mean, color=colour, linewidth=1.8)


def _draw_levels(axes: Sequence[Axes], runs: Sequence[Run], team: str) -> list[str]:
    """Dashed lines for what the runs know to compare with; returns the kinds that were drawn."""
    drawn = []
    for word, dashes in _DASHES.items():
        levels = {level for run in runs if (level := run.level(word, team)) is not None}
        for level in levels:
            for panel in axes:
                panel.axhline(level, color="0.35", linewidth=1.1, linestyle=dashes, zorder=1)
        drawn += [word] * bool(levels)
    return drawn


def _unit(most: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit of which there are two at least, else the smallest."""
    return next(((size, word) for size, word in units if most >= 2 * size), units[-1])


def _dress(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot(runs: Sequence[Path], out: Path | None = None, levels: Levels | None = None) -> list[Path]:
    """Draws learning curves and returns the files: PNG and SVG, or the one file that `out` names if it is a PDF.

    runs: folders of runs, or folders that hold runs; out: a file, or a folder for `curves`; by default the run's
    folder, or the present one for several; levels: to compare with, instead of those that the runs' manifests know.
    UserError if there is no run, nothing to draw yet, or the files cannot be written.
    """
    paths = [path for given in runs for path in (runs_below(Path(given)) or [Path(given)])]
    found = [Run.load(path) for path in dict.fromkeys(paths)]
    found = [run if levels is None else Run(**{**vars(run), "levels": levels}) for run in found]
    drawable = [run for run in found if run.teams()]
    if not drawable:
        raise UserError(f"there are no returns to draw in {', '.join(map(str, runs)) or 'nothing'}; train for longer")
    targets = _targets(out, drawable)
    figure = draw(drawable)
    for target in targets:
        content = io.BytesIO()
        # Without the date, so that drawing again changes nothing in a repository.
        metadata = {"Date": None} if target.suffix == ".svg" else None
        figure.savefig(content, format=target.suffix[1:], dpi=200, metadata=metadata)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, content.getvalue())
        except OSError as error:
            raise disk_error("the picture", target, error) from error
    return targets


def _targets(out: Path | None, runs: Sequence[Run]) -> list[Path]:
    """The files to write."""
    if out is None:
        out = runs[0].path if len(runs) == 1 else Path()
    out = Path(out)
    if out.is_dir():
        out /= "curves"
    if out.suffix == ".pdf":
        return [out]
    if out.suffix not in ("", ".png", ".svg"):
        raise UserError(f"--out {out}: pictures are not written as {out.suffix}; expected .png, .svg or .pdf")
    return [out.with_suffix(".png"), out.with_suffix(".svg")]

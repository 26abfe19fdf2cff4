"""Figures of a comparison: learning curves, intervals, performance profiles and probabilities of improvement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.text import printable
from coterie.reports.comparison import Axis, Band, Comparison, PairResult
from coterie.reports.sentences import metric_name
from coterie.reports.tables import STATISTICS
from coterie.runs.plots import Style, axis_unit, line_styles, style_axes, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DOTS = (0, (1, 1.5))
_MOST_PAIRS = 15
"""Pairs of algorithms that fit into a panel."""


def styles_of(comparison: Comparison) -> dict[str, Style]:
    """Returns color and line style of each algorithm, as in `coterie plot`: one color per algorithm."""
    groups: dict[str, list[Any]] = {algo: [] for algo in comparison.algos}
    for (_, algo), result in comparison.results.items():
        groups[algo] += [trial.run.log for trial in result.trials]
    return line_styles(groups)


def draw(comparison: Comparison) -> Figure:
    """Draws all panels: curves of each task, and of several tasks together, then statistics, profiles and pairs."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    several = len(comparison.tasks) > 1
    curve_rows = len(comparison.tasks) + several
    heights = [2.6] * curve_rows + [0.9 + 0.3 * len(comparison.algos), 2.6]
    with rc_context({"text.parse_math": False}):  # dollar signs in names are not formulas
        figure = Figure(figsize=(9.2, 0.7 + sum(heights)), layout="constrained")
        rows = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        styles = styles_of(comparison)
        tasks: list[str | None] = [*comparison.tasks]
        for row, task in zip(rows, [*tasks, None] if several else tasks, strict=False):
            steps, seconds = row.subplots(1, 2, sharey=True)
            learning_panel(steps, comparison, styles, task, "steps")
            learning_panel(seconds, comparison, styles, task, "seconds")
        panels = rows[-2].subplots(1, 4, sharey=True)
        for panel, statistic in zip(panels, STATISTICS, strict=True):
            interval_panel(panel, comparison, styles, statistic)
        if comparison.pairs:
            left, right = rows[-1].subplots(1, 2)
            probability_panel(right, comparison, None if several else next(iter(comparison.tasks)))
        else:
            left = rows[-1].subplots(1, 1)
        profile_panel(left, comparison, styles)
        _legend(figure, styles, with_random=any(task.random is not None for task in comparison.tasks.values()))
    return figure


def learning_panel(
    axes: Axes, comparison: Comparison, styles: Mapping[str, Style], task: str | None, axis: Axis
) -> None:
    """Draws the interquartile mean of the evaluations of each algorithm with its band.

    Args:
        axes: The panel.
        comparison: The comparison.
        styles: Style of each algorithm.
        task: Task; None for normalized evaluations over all tasks.
        axis: Horizontal axis.
    """
    bands: dict[str, Band] = {}
    for algo in comparison.algos:
        result = comparison.overall.get(algo) if task is None else comparison.results.get((task, algo))
        found = None if result is None else result.steps if axis == "steps" else result.seconds
        if found is not None:
            bands[algo] = found
    largest = max((float(found.x[-1]) for found in bands.values()), default=0.0)
    size, label = axis_unit(axis, largest)
    for algo, found in bands.items():
        _draw_band(axes, found, styles[algo], size)
    if task is not None and (random := comparison.tasks[task].random) is not None and bands:
        axes.axhline(random, color="0.35", linewidth=1, linestyle=_DOTS, zorder=1)
    if not bands:
        axes.text(0.5, 0.5, "unknown or not overlapping", transform=axes.transAxes, ha="center", color="0.4")
    if axis == "steps":
        name = metric_name(comparison.metric)
        axes.set_ylabel(comparison.score_name if task is None else f"{printable(name)}, IQM")
        axes.set_title(f"{len(comparison.tasks)} tasks" if task is None else printable(task), loc="left", fontsize=10)
    style_axes(axes, label)
    axes.set_xlim(left=0)


def interval_panel(axes: Axes, comparison: Comparison, styles: Mapping[str, Style], statistic: str) -> None:
    """Draws a statistic of each algorithm with its interval: of normalized scores over tasks, or of the only task.

    Args:
        axes: The panel.
        comparison: The comparison.
        styles: Style of each algorithm.
        statistic: `mean`, `median`, `iqm` or `optimality_gap`.
    """
    several = len(comparison.tasks) > 1
    axes.use_sticky_edges = False
    for place, algo in enumerate(comparison.algos):
        one = None if several else comparison.results.get((next(iter(comparison.tasks)), algo))
        result = comparison.overall[algo] if one is None else one
        estimate = getattr(result.statistics, statistic)
        if estimate.has_interval:
            width = estimate.high - estimate.low
            axes.barh(place, width, left=estimate.low, height=0.6, color=styles[algo].color, alpha=0.35)
        axes.plot([estimate.value] * 2, [place - 0.3, place + 0.3], color=styles[algo].color, linewidth=2)
    axes.set_yticks(range(len(comparison.algos)), [printable(algo) for algo in comparison.algos])
    axes.set_ylim(len(comparison.algos) - 0.5, -0.5)
    axes.set_title(STATISTICS[statistic], fontsize=10)
    is_score = several or statistic == "optimality_gap"
    style_axes(axes, comparison.score_name if is_score else metric_name(comparison.metric))


def profile_panel(axes: Axes, comparison: Comparison, styles: Mapping[str, Style]) -> None:
    """Draws the performance profiles: the fraction of runs with a normalized score above each threshold."""
    for algo, result in comparison.overall.items():
        _draw_band(axes, result.profile, styles[algo], 1.0)
    axes.set_ylabel("fraction of runs above")
    axes.set_ylim(-0.02, 1.02)
    axes.set_title("performance profile", loc="left", fontsize=10)
    style_axes(axes, comparison.score_name)


def probability_panel(axes: Axes, comparison: Comparison, task: str | None) -> None:
    """Draws the probabilities of improvement with their intervals, on a task or over all tasks if None."""
    pairs = [pair for pair in comparison.pairs if pair.task == task][:_MOST_PAIRS]
    for place, pair in enumerate(pairs):
        found = pair.probability
        color = "0.25" if pair.is_significant else "0.6"
        if found.has_interval:
            axes.plot(
                [found.low, found.high], [place, place], color=color, linewidth=4, solid_capstyle="butt", alpha=0.5
            )
        axes.plot(found.value, place, "o", color=color, markersize=5)
    axes.axvline(0.5, color="0.35", linewidth=1, linestyle=(0, (5, 2)), zorder=1)
    axes.set_yticks(range(len(pairs)), [_pair_label(pair) for pair in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_title("probability of improvement (dark: significant)", loc="left", fontsize=10)
    style_axes(axes, "P(first is better)")


def _pair_label(pair: PairResult) -> str:
    return f"{printable(pair.algo)} > {printable(pair.other)}"


def _draw_band(axes: Axes, found: Band, style: Style, size: float) -> None:
    single = len(found.x) == 1
    marker = "o" if single else None
    axes.plot(found.x / size, found.value, color=style.color, linestyle=style.dashes, linewidth=1.8, marker=marker)
    if not np.isnan(found.low).any() and not single:
        axes.fill_between(found.x / size, found.low, found.high, color=style.color, alpha=0.18, linewidth=0)


def _legend(figure: Figure, styles: Mapping[str, Style], *, with_random: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=s.color, linestyle=s.dashes, linewidth=1.8) for s in styles.values()]
    names = [printable(name) for name in styles]
    if with_random:
        handles.append(Line2D([], [], color="0.35", linewidth=1, linestyle=_DOTS))
        names.append("random policy")
    columns = max(1, min(len(names), math.floor(110 / (6 + max(map(len, names))))))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def save(comparison: Comparison, path: Path) -> None:
    """Draws the figure into a file, .png, .svg or .pdf. Equal comparisons give equal files.

    Raises:
        UserError: If the file cannot be written.
    """
    write_figure(draw(comparison), path)

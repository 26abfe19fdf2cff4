"""Report of a search: the best trials with intervals, importances, the file of the best settings, and a figure."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.commands.sweep_runs import settings_of
from coterie.commands.tuning.plan import TunePlan
from coterie.commands.tuning.search import best_record
from coterie.commands.tuning.study import Study, TrialRecord
from coterie.config.overrides import parse
from coterie.config.provenance import lines_of
from coterie.config.resolve import resolve
from coterie.config.sources import nest
from coterie.core.files import disk_error, write_bytes, write_text
from coterie.core.shell import coterie_command
from coterie.core.terminal import print_line
from coterie.math.student_t import mean_interval_95
from coterie.runs.tables import cell, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_ROWS = 10
_BLUE, _ORANGE, _GRAY = "#0072B2", "#D55E00", "0.6"  # of the palette of learning curves
_LEFT_OUT = ("seed", "out", "progress", "threads")


@dataclass(frozen=True)
class TuneReport:
    """Results of a search.

    Attributes:
        plan: Its plan.
        records: All trials.
        importances: Share of each setting in the differences between trials; empty with too few.
    """

    plan: TunePlan
    records: tuple[TrialRecord, ...]
    importances: dict[str, float]

    @classmethod
    def of(cls, plan: TunePlan, study: Study) -> TuneReport:
        """Reads the report of a study."""
        return cls(plan, tuple(study.records), study.importances())

    @property
    def best(self) -> TrialRecord | None:
        return best_record(self.records, self.plan.minimize)

    @property
    def default(self) -> TrialRecord | None:
        """Trial 0 if it has finished."""
        return next((record for record in self.records if record.number == 0 and record.state == "finished"), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain numbers and strings."""
        best, default = self.best, self.default
        return {
            "folder": str(self.plan.folder),
            "metric": self.plan.metric,
            "seeds": list(self.plan.seeds),
            "space": {key: dimension.text for key, dimension in self.plan.space.items()},
            "best": None if best is None else _row(best),
            "default": None if default is None else _row(default),
            "importances": self.importances,
            "best_file": None if best is None else str(self.plan.folder / "best.yaml"),
            "trials": [_row(record) for record in self.records],
        }

    def write(self) -> list[Path]:
        """Writes `best.yaml`, `tune.png` and `tune.svg` into the folder. Returns the files; none without a result."""
        if self.best is None:
            return []
        best_file = self.plan.folder / "best.yaml"
        write_text(best_file, best_settings(self.plan, self.best))
        return [best_file, *self._draw()]

    def print(self) -> None:
        """Prints the tables and the lines below them."""
        for line in self._tables():
            print_line(line)

    def _tables(self) -> list[str]:
        plan, best, default = self.plan, self.best, self.default
        ranked = sorted(
            (record for record in self.records if record.state == "finished"),
            key=lambda record: (record.value if plan.minimize else -record.value, record.number),
        )
        shown = ranked[:_MAX_ROWS] + [record for record in ranked[_MAX_ROWS:] if record.number == 0]
        columns = ["trial", _name(plan), "95% interval", *plan.space]
        defaults = settings_of(plan.resolved.config)
        rows = [
            [
                f"{record.number} (default)" if record.number == 0 else str(record.number),
                record.value,
                interval_text(record.values),
                *(_shown(record.settings.get(key), defaults.get(key)) for key in plan.space),
            ]
            for record in shown
        ]
        states = [record.state for record in self.records]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        print_table(columns, rows, title=f"{len(states)} trials: {counts}")
        if self.importances:
            print_table(["setting", "importance"], list(self.importances.items()))
        lines = [f"trial {r.number} failed: {r.reason}" for r in self.records if r.state == "failed"]
        return [*lines, *([] if best is None else self._conclusion(best, default))]

    def _conclusion(self, best: TrialRecord, default: TrialRecord | None) -> list[str]:
        plan = self.plan
        lines = []
        if default is not None and best.number == 0:
            lines.append(f"no trial is better than the default settings, {_with_interval(default)}")
        else:
            other = "" if default is None else f"; default settings: {_with_interval(default)}"
            lines.append(f"best: trial {best.number}, {_with_interval(best)}{other}")
        if default is not None and best.number and _overlap(best, default):
            lines.append("These intervals overlap or are unknown: more seeds are needed to tell the difference.")
        seeds = ", ".join(map(str, plan.seeds))
        file = plan.folder / "best.yaml"
        lines.append(
            f"Seeds {seeds} chose these settings, so their values are too good on average. Measure others: "
            f"{coterie_command('train', '-m', '--config', file, 'seed=0,1,2')}"
        )
        return lines

    def _draw(self) -> list[Path]:
        """Draws the history of the trials and the importances."""
        from matplotlib.figure import Figure

        panels = 2 if self.importances else 1
        figure = Figure(figsize=(5.5 * panels, 3.6), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        _draw_history(axes[0], self)
        if self.importances:
            _draw_importances(axes[1], self.importances)
        targets = [self.plan.folder / "tune.png", self.plan.folder / "tune.svg"]
        for target in targets:
            content = io.BytesIO()
            metadata = {".svg": {"Date": None}}.get(target.suffix)
            figure.savefig(content, format=target.suffix[1:], dpi=200, metadata=metadata)
            try:
                write_bytes(target, content.getvalue())
            except OSError as error:
                raise disk_error("the figure", target, error) from error
        return targets


def best_settings(plan: TunePlan, best: TrialRecord) -> str:
    """Returns the YAML of the settings that were given and those of a trial, for `coterie train --config`."""
    words = [*plan.words, *(f"{key}={text}" for key, text in best.settings.items())]
    resolved = resolve(words, plan.config_file)
    values = settings_of(resolved.config)
    given = [
        key for key, origin in resolved.origins.items() if not origin.startswith(("default", "preset", "inherits"))
    ]
    keys = dict.fromkeys(("algo.name", "env.name", "steps", *given))
    tree = nest({key: values[key] for key in keys if key not in _LEFT_OUT})
    head = [
        f"# Best of {plan.folder}: trial {best.number}, {_name(plan)} {_with_interval(best)}",
        f"# Chosen on seeds {', '.join(map(str, plan.seeds))}. Use it: coterie train --config FILE seed=0",
    ]
    return "\n".join([*head, *lines_of(tree)]) + "\n"


def interval_text(values: Sequence[float]) -> str | None:
    """Returns the 95% confidence interval of the mean of the values; None for a single one."""
    mean, half = mean_interval_95(values)
    return None if math.isnan(half) else f"{cell(mean - half)} to {cell(mean + half)}"


def _row(record: TrialRecord) -> dict[str, Any]:
    return {
        "trial": record.number,
        "state": record.state,
        "settings": {key: parse(f"{key}={text}").values[0] for key, text in record.settings.items()},
        "value": record.value if record.values else None,
        "half_width_95": _finite(mean_interval_95(record.values)[1]) if record.values else None,
        "values": list(record.values),
        "reason": record.reason or None,
        "runs": list(record.runs),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _name(plan: TunePlan) -> str:
    return "mean return" if plan.metric == "auto" else plan.metric


def _with_interval(record: TrialRecord) -> str:
    interval = interval_text(record.values)
    return cell(record.value) + ("" if interval is None else f" ({interval})")


def _overlap(one: TrialRecord, other: TrialRecord) -> bool:
    (a, half_a), (b, half_b) = mean_interval_95(one.values), mean_interval_95(other.values)
    return not abs(a - b) > half_a + half_b


def _shown(text: str | None, default: Any) -> Any:
    return default if text is None else parse(f"key={text}").values[0]


def _draw_history(axes: Axes, report: TuneReport) -> None:
    from matplotlib.ticker import MaxNLocator

    finished = [record for record in report.records if record.state == "finished"]
    numbers, values = [r.number for r in finished], [r.value for r in finished]
    halves = [mean_interval_95(r.values)[1] for r in finished]
    best = [min(values[: i + 1]) if report.plan.minimize else max(values[: i + 1]) for i in range(len(values))]
    axes.errorbar(numbers, values, yerr=halves, fmt="o", color=_BLUE, markersize=4, elinewidth=1, label="trial, 95% CI")
    axes.step(numbers, best, where="post", color=_BLUE, linewidth=1, label="best so far")
    pruned = [(r.number, r.reached[1]) for r in report.records if r.state == "pruned" and r.reached is not None]
    if pruned:
        axes.plot(*zip(*pruned, strict=True), "x", color=_GRAY, markersize=5, label="pruned, last evaluation")
    if report.default is not None:
        axes.axhline(report.default.value, color=_ORANGE, linestyle="--", linewidth=1, label="default settings")
    axes.set(xlabel="trial", ylabel=_name(report.plan))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small")
    _style(axes)


def _draw_importances(axes: Axes, importances: dict[str, float]) -> None:
    names = list(reversed(importances))
    axes.barh(names, [importances[name] for name in names], color=_BLUE)
    axes.set(xlabel="importance (PED-ANOVA)", xlim=(0, 1))
    _style(axes)


def _style(axes: Axes) -> None:
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)

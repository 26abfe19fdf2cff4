"""Report of a search: tables of trials and importances, the file of the best settings, and figures."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from coterie.assembly.resolve import resolve
from coterie.config.overrides import parse
from coterie.config.provenance import lines_of
from coterie.config.sources import nest
from coterie.core.files import disk_error, write_bytes, write_text
from coterie.core.terminal import print_line
from coterie.core.text import coterie_command
from coterie.functional.intervals import mean_interval_95
from coterie.runs.tables import cell, print_table
from coterie.sweeps.job_runs import settings_of
from coterie.sweeps.tuning.space import range_text
from coterie.sweeps.tuning.study import (
    STARTUP_TRIALS,
    STATES,
    TunePlan,
    checked,
    ranking,
    settings_of_trial,
    started,
)

_MAX_ROWS = 10
_LEFT_OUT = ("seed", "out", "progress", "threads")


def report_of(plan: TunePlan, study: optuna.Study) -> dict[str, Any]:
    """Returns the results of a search as plain numbers and strings."""
    ranked = ranking(study)
    default = next((trial for trial in ranked if trial.number == 0), None)
    return {
        "folder": str(plan.folder),
        "metric": plan.metric,
        "seeds": list(plan.seeds),
        "space": {key: range_text(distribution) for key, distribution in plan.space.items()},
        "best": _entry(plan, ranked[0]) if ranked else None,
        "default": None if default is None else _entry(plan, default),
        "importances": importances(plan, study),
        "best_file": str(plan.folder / "best.yaml") if ranked else None,
        "trials": [_entry(plan, trial) for trial in started(study)],
    }


def importances(plan: TunePlan, study: optuna.Study) -> dict[str, float]:
    """Returns the share of each setting in the differences between finished trials, by PED-ANOVA.

    Empty with fewer than five finished trials, or if all their values are equal.
    """
    ranked = ranking(study)
    if len(ranked) <= STARTUP_TRIALS or ranked[0].value == ranked[-1].value:
        return {}
    with checked(plan):
        found = optuna.importance.get_param_importances(study)
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def write_report(plan: TunePlan, study: optuna.Study) -> list[Path]:
    """Writes `best.yaml` and figures into the folder. Returns the files; none without a finished trial."""
    ranked = ranking(study)
    if not ranked:
        return []
    best_file = plan.folder / "best.yaml"
    write_text(best_file, best_settings(plan, ranked[0]))
    return [best_file, *_draw(plan, study)]


def print_report(plan: TunePlan, study: optuna.Study) -> None:
    """Prints the tables and the lines below them."""
    trials, ranked = started(study), ranking(study)
    shown = ranked[:_MAX_ROWS] + [trial for trial in ranked[_MAX_ROWS:] if trial.number == 0]
    defaults = settings_of(plan.resolved.config)
    rows = []
    for trial in shown:
        values = defaults | _values(settings_of_trial(plan, trial))
        name = f"{trial.number} (default)" if trial.number == 0 else str(trial.number)
        rows.append([name, trial.value, interval_text(_scores(trial)), *(values[key] for key in plan.space)])
    states = [STATES[trial.state.name] for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    columns = ["trial", plan.metric_name, "95% interval", *plan.space]
    print_table(columns, rows, title=f"{len(states)} trials: {counts}")
    if shares := importances(plan, study):
        print_table(["setting", "importance"], list(shares.items()))
    for trial in trials:
        if trial.state == TrialState.FAIL:
            print_line(f"trial {trial.number} failed: {trial.user_attrs.get('reason', '')}")
    if ranked:
        for line in _conclusion(plan, ranked):
            print_line(line)


def _conclusion(plan: TunePlan, ranked: Sequence[FrozenTrial]) -> list[str]:
    best, default = ranked[0], next((trial for trial in ranked if trial.number == 0), None)
    if best is default:
        lines = [f"no trial is better than the default settings, {_with_interval(best)}"]
    else:
        other = "" if default is None else f"; default settings: {_with_interval(default)}"
        lines = [f"best: trial {best.number}, {_with_interval(best)}{other}"]
        if default is not None and _overlap(best, default):
            lines.append("These intervals overlap or are unknown: more seeds are needed to tell the difference.")
    command = coterie_command("train", "-m", "--config", plan.folder / "best.yaml", "seed=0,1,2")
    seeds = ", ".join(map(str, plan.seeds))
    lines.append(
        f"Seeds {seeds} chose these settings, so their values are too good on average. Measure others: {command}"
    )
    return lines


def best_settings(plan: TunePlan, best: FrozenTrial) -> str:
    """Returns the YAML of the settings that were given and those of a trial, for `coterie train --config`."""
    words = [*plan.words, *(f"{key}={text}" for key, text in settings_of_trial(plan, best).items())]
    resolved = resolve(words, plan.config_file)
    values = settings_of(resolved.config)
    given = [
        key for key, origin in resolved.origins.items() if not origin.startswith(("default", "preset", "inherits"))
    ]
    keys = dict.fromkeys(("algo.name", "env.name", "steps", *given))
    tree = nest({key: values[key] for key in keys if key not in _LEFT_OUT})
    head = [
        f"# Best of {plan.folder}: trial {best.number}, {plan.metric_name} {_with_interval(best)}",
        f"# Chosen on seeds {', '.join(map(str, plan.seeds))}. Use it: coterie train --config FILE seed=0",
    ]
    return "\n".join([*head, *lines_of(tree)]) + "\n"


def interval_text(values: Sequence[float]) -> str | None:
    """Returns the 95% confidence interval of the mean of the values; None for a single one."""
    mean, half = mean_interval_95(values)
    return None if math.isnan(half) else f"{cell(mean - half)} to {cell(mean + half)}"


def _entry(plan: TunePlan, trial: FrozenTrial) -> dict[str, Any]:
    scores, folder = _scores(trial), plan.trial_folder(trial.number)
    half = mean_interval_95(scores)[1] if scores else math.nan
    runs = [folder / f"seed{seed}" for seed in plan.seeds]
    return {
        "trial": trial.number,
        "state": STATES[trial.state.name],
        "settings": _values(settings_of_trial(plan, trial)),
        "value": trial.value if scores else None,
        "half_width_95": half if math.isfinite(half) else None,
        "values": scores,
        "reason": trial.user_attrs.get("reason") or None,
        "runs": [str(run) for run in runs if (run / "config.yaml").is_file()],
    }


def _scores(trial: FrozenTrial) -> list[float]:
    """Returns the metric at the end of the run of each seed; none unless the trial has finished."""
    return trial.user_attrs["values"] if trial.state == TrialState.COMPLETE else []


def _values(settings: dict[str, str]) -> dict[str, Any]:
    return {key: parse(f"{key}={text}").values[0] for key, text in settings.items()}


def _with_interval(trial: FrozenTrial) -> str:
    interval = interval_text(_scores(trial))
    return cell(trial.value) + ("" if interval is None else f" ({interval})")


def _overlap(one: FrozenTrial, other: FrozenTrial) -> bool:
    (a, half_a), (b, half_b) = mean_interval_95(_scores(one)), mean_interval_95(_scores(other))
    return not abs(a - b) > half_a + half_b


def _draw(plan: TunePlan, study: optuna.Study) -> list[Path]:
    """Draws Optuna's figures: the history of the trials, here with 95% intervals, and the importances."""
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    pyplot.switch_backend("agg")
    files = []
    with warnings.catch_warnings(), pyplot.rc_context():  # Optuna's figures are experimental, and change the style
        warnings.simplefilter("ignore")
        history = plots.plot_optimization_history(study, target_name=plan.metric_name)
        for trial in ranking(study):
            half = mean_interval_95(_scores(trial))[1]
            history.errorbar(trial.number, trial.value or 0.0, yerr=half, color="tab:blue")
        drawn = {"tune": history}
        if importances(plan, study):
            drawn["importances"] = plots.plot_param_importances(study, target_name=plan.metric_name)
        for name, axes in drawn.items():
            figure = pyplot.figure(axes.figure)
            for suffix, metadata in ((".png", None), (".svg", {"Date": None})):
                content, file = io.BytesIO(), plan.folder / f"{name}{suffix}"
                figure.savefig(content, format=suffix[1:], dpi=200, metadata=metadata, bbox_inches="tight")
                try:
                    write_bytes(file, content.getvalue())
                except OSError as error:
                    raise disk_error("the figure", file, error) from error
                files.append(file)
            pyplot.close(figure)
    return files

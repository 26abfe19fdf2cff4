"""Read-only view of a run that checks read: settings, metrics, observations and activations."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coterie.checks.findings import Skipped
from coterie.runs.evaluations import return_error
from coterie.runs.outcome import Level, Outcome, outcome_of

LEARNED = 0.5
"""Improvement of the return, in standard deviations of single episodes' returns at the start, above which a run has
learned something. Less is within reach of the noise of a mean over few episodes.
"""

FEW_HIGH, FEW_MEDIUM = 100, 500
"""Gradient steps of a run. Adam's steps are at most about `lr` long, so that 100 steps with lr=5e-4 move a weight by at
most 0.05, a fraction of its initial size; tasks with an exact answer take some hundreds (see the probes).
"""

LARGEST_LR = 0.003
"""Largest learning rate that is advised, three times the largest default. A larger one is the first thing to change."""

MIN_ENTRIES = 5
"""Log entries below which a median says little."""

_EDGE = 0.1
"""Fraction of the entries at the start or end of a series that their mean is taken of."""


@dataclass(frozen=True)
class Series:
    """Finite values of a metric, oldest first, with the environment steps at which they were logged."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def median(self, since: float = 0.0) -> float:
        """Returns the median of the entries after the fraction `since` of them; NaN without entries."""
        values = self.values[int(since * len(self.values)) :]
        return statistics.median(values) if values else math.nan

    def at_steps(self) -> dict[int, float]:
        """Returns the values by environment steps, the newest of equal ones."""
        return dict(zip(self.steps, self.values, strict=True))

    def start(self) -> float:
        """Returns the mean of the first tenth of the entries, at least one; NaN without entries."""
        return _mean(self.values[: max(1, int(_EDGE * len(self.values)))])

    def end(self) -> float:
        """Returns the mean of the last tenth of the entries, at least one; NaN without entries."""
        return _mean(self.values[-max(1, int(_EDGE * len(self.values))) :])

    def last(self) -> float:
        """Returns the newest value; NaN without entries."""
        return self.values[-1] if self.values else math.nan

    def max(self) -> float:
        """Returns the largest value; NaN without entries."""
        return max(self.values, default=math.nan)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


@dataclass(frozen=True)
class LayerActivity:
    """Activity of a hidden layer over observations.

    Attributes:
        name: Layer, such as `agent layer 1`.
        activation: Name of the activation function.
        units: Number of units.
        dead: Fraction of the units that never become active.
        saturated: Fraction of the activations beyond +-0.97; 0 for activations other than tanh.
    """

    name: str
    activation: str
    units: int
    dead: float
    saturated: float


@dataclass(frozen=True)
class ObservationScale:
    """Size of a role's vector observations.

    Attributes:
        role: Name of the role.
        largest: Largest absolute value of any feature.
        feature: Index of that feature.
        smallest: Smallest standard deviation of a feature that varies; NaN if none does.
        widest: Largest standard deviation of a feature.
    """

    role: str
    largest: float
    feature: int
    smallest: float
    widest: float


@dataclass(frozen=True)
class Sample:
    """Observations of a team, and the activity of its networks on them.

    Attributes:
        source: Origin of the observations, as a phrase.
        observations: Number of observations.
        scales: Scales of vector observations by role.
        layers: Hidden layers of the networks that act.
        missing: Why there are no observations, or no layers; "" if there are both.
        continuous: Continuous actions of an agent; None if unknown or if they are mixed with choices.
    """

    source: str = ""
    observations: int = 0
    scales: tuple[ObservationScale, ...] = ()
    layers: tuple[LayerActivity, ...] = ()
    missing: str = "the run has no checkpoint that could be read"
    continuous: int | None = 0


@dataclass(frozen=True)
class TeamView:
    """Settings and measurements of a team that learns.

    Attributes:
        name: Name of the team; "" if there is only one.
        prefix: Start of the keys of its algorithm's settings, such as `algo.`.
        settings: Settings of its algorithm without the prefix.
        metrics: Series by metric.
        random_return: Return of the random policy; NaN if unknown.
        random_error: Its standard error; NaN if unknown.
        alone: True if no other team learns and there is no self-play, so that a constant return means no progress.
        sample: Observations and activity of the networks.
        log_every: Updates per entry of the log.
    """

    name: str
    prefix: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, Series]
    random_return: float = math.nan
    random_error: float = math.nan
    alone: bool = True
    sample: Sample = Sample()
    log_every: float = 1

    def series(self, metric: str) -> Series:
        """Returns the values of a metric such as `policy/entropy`; empty if it was not logged."""
        return self.metrics.get(metric, Series())

    def number(self, setting: str) -> float | None:
        """Returns a setting of the algorithm such as `lr`; None if it is not set or not a number."""
        return as_number(self.settings.get(setting))

    def key(self, setting: str, value: Any) -> str:
        """Returns `algo.SETTING=VALUE (now ...)`."""
        return f"{self.prefix}{setting}={plain(value)} (now {plain(self.settings.get(setting))})"

    @property
    def has_large_lr(self) -> bool:
        """True if the learning rate is larger than what `smaller_lr` returns at most."""
        return (self.number("lr") or 0) > LARGEST_LR

    def smaller_lr(self) -> str:
        """Returns a third of the learning rate, at most 0.003, as a setting."""
        return self.key("lr", min(LARGEST_LR, (self.number("lr") or 0.0015) / 3))

    @property
    def algo(self) -> str:
        """Name of the algorithm."""
        return str(self.settings.get("name", "the algorithm"))

    @cached_property
    def updates(self) -> float:
        """Updates so far, from the entries of the log."""
        losses = [len(x) for name, x in self.metrics.items() if name.startswith("loss/")]
        return max(losses, default=0) * self.log_every

    @cached_property
    def gradient_steps(self) -> float:
        """Gradient steps of the policy so far, exact off-policy and estimated from the log on-policy."""
        steps = self.series("replay/updates")
        if len(steps):
            return steps.max()
        epochs = self.series("policy/epochs").median()
        epochs = (self.number("epochs") or 1) if math.isnan(epochs) else epochs
        return self.updates * epochs * (self.number("num_minibatches") or 1)

    @cached_property
    def improvement(self) -> float:
        """Rise of the return in training, in standard deviations of single episodes at the start; NaN if unknown.

        It is measured from the start of the run or from the random policy, whichever gives more: a warm start begins
        with what it has learned.
        """
        returns, spread = self.series("rollout/return_mean"), self.series("rollout/return_std")
        if len(returns) < 4 or not len(spread):
            return math.nan
        unit = max(spread.start(), 0.01 * abs(returns.start()), 1e-8)
        references = [x for x in (returns.start(), self.random_return) if math.isfinite(x)]
        return (returns.end() - min(references)) / unit

    @cached_property
    def outcome(self) -> Outcome | None:
        """End of the returns in evaluation, or in training without evaluations, compared with the random policy.

        None without returns, and if lessons of a curriculum changed the task.
        """
        lessons = self.series("lesson/index").values
        if lessons and min(lessons) != max(lessons):
            return None
        area = "eval" if len(self.series("eval/return_mean")) else "rollout"
        names = ("return_error", "return_std", "episodes")
        known = {name: self.series(f"{area}/{name}").at_steps() for name in names}
        points = []
        for step, value in self.series(f"{area}/return_mean").at_steps().items():
            row = {f"{area}/{name}": values[step] for name, values in known.items() if step in values}
            points.append(Level(value, return_error(row, f"{area}/return_mean"), step))
        known_random = math.isfinite(self.random_return)
        return outcome_of(points, Level(self.random_return, self.random_error) if known_random else None)

    @property
    def is_poor(self) -> bool:
        """True if the team is the only one that learns, and ended no better than the random policy, or fell."""
        outcome = self.outcome
        return self.is_stuck or (self.alone and outcome is not None and outcome.is_poor)

    @property
    def is_stuck(self) -> bool:
        """True if the team is the only one that learns, and its return has not improved."""
        return self.alone and self.improvement < LEARNED

    def progress(self) -> str:
        """Returns the course of the return as a phrase, such as `while the return went from -80.1 to -79.5`."""
        returns = self.series("rollout/return_mean")
        if len(returns) < 2:
            return ""
        return f" while the return went from {show(returns.start())} to {show(returns.end())}"


@dataclass(frozen=True)
class RunView:
    """Settings and measurements of a run.

    Attributes:
        settings: All settings by dotted key.
        steps: Environment steps done.
        teams: Teams that learn.
        metrics: Series of metrics of the whole run, such as `time/steps_per_s`.
        episode_limit: Steps after which the environment ends an episode; None if it declares no limit.
    """

    settings: Mapping[str, Any]
    steps: int
    teams: tuple[TeamView, ...]
    metrics: Mapping[str, Series] = field(default_factory=dict)
    episode_limit: float | None = None

    def series(self, metric: str) -> Series:
        """Returns the values of a metric of the whole run; empty if it was not logged."""
        return self.metrics.get(metric, Series())

    def number(self, key: str) -> float | None:
        """Returns a setting by its dotted key; None if it is not set or not a number."""
        return as_number(self.settings.get(key))

    @property
    def total(self) -> int:
        """Environment steps of the whole run."""
        return int(self.number("steps") or self.steps)

    @property
    def num_envs(self) -> int:
        """Environments that are stepped together."""
        return max(1, int(self.number("num_envs") or 1))

    @property
    def env(self) -> str:
        """Name of the environment."""
        return str(self.settings.get("env.name", "the environment"))


def logged(view: RunView | TeamView, metric: str) -> Series:
    """Returns the values of a metric. Skipped if there are too few for a median."""
    found = view.series(metric)
    if len(found) < MIN_ENTRIES:
        raise Skipped(f"{metric} has {len(found)} entries, fewer than {MIN_ENTRIES}")
    return found


def as_number(value: Any) -> float | None:
    """Returns a number as a float; None for anything else, NaN and booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def show(value: float | None) -> str:
    """Formats a measured value with three digits: 0.01, 1,020, 1.2e-05, or `unknown`."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if 1000 <= abs(value) < 1e9 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def plain(value: Any) -> str:
    """Formats the value of a setting so that it can be typed: 0.01, 20000, true, null."""
    number = as_number(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if number is None:
        return str(value)
    return str(int(number)) if number == int(number) and abs(number) < 1e9 else f"{number:.3g}"


# ------------------------------------------------------------------------------------------------------------ creation


def view_run(
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    teams: Sequence[str],
    *,
    manifest: Mapping[str, Any] | None = None,
    samples: Mapping[str, Sample] | None = None,
) -> RunView:
    """Creates the view of a run.

    Args:
        settings: Settings by dotted key.
        rows: Entries of its log, oldest first.
        teams: Names of all teams. Those without metrics of a learner are left out.
        manifest: Its manifest: `random` and `random_error`, the return of the random policy by team, and
            `episode_limit`.
        samples: Observations and activity of networks by team.
    """
    shared, manifest = len(teams) <= 1, manifest or {}
    metrics = {team: _series(rows, "" if shared else team, teams) for team in teams}
    learning = [team for team in teams if _has_learner(metrics[team])]
    alone = len(learning) == 1 and settings.get("selfplay.opponents", "off") == "off"
    views = []
    for team in learning:
        prefix, own = algo_settings(settings, team)
        views.append(
            TeamView(
                name="" if shared else team,
                prefix=prefix,
                settings=own,
                metrics=metrics[team],
                random_return=_level(manifest.get("random"), team, shared),
                random_error=_level(manifest.get("random_error"), team, shared),
                alone=alone,
                sample=(samples or {}).get(team, Sample()),
                log_every=as_number(settings.get("log.every")) or 1,
            )
        )
    steps = max((int(row["steps"]) for row in rows if as_number(row.get("steps")) is not None), default=0)
    limit = as_number(manifest.get("episode_limit", settings.get("env.episode_limit")))
    return RunView(settings, steps, tuple(views), _series(rows, "", teams), limit)


def algo_settings(settings: Mapping[str, Any], team: str) -> tuple[str, dict[str, Any]]:
    """Returns the start of the keys of a team's algorithm, such as `algo.`, and its settings without it."""
    prefix = f"teams.{team}.algo." if f"teams.{team}.algo.name" in settings else "algo."
    return prefix, {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def _has_learner(metrics: Mapping[str, Series]) -> bool:
    return any(name.partition("/")[0] in ("loss", "policy", "replay") for name in metrics)


def _level(levels: Mapping[str, float | None] | None, team: str, shared: bool) -> float:
    if not levels:
        return math.nan
    value = next(iter(levels.values())) if shared and len(levels) == 1 else levels.get(team)
    number = as_number(value)
    return math.nan if number is None else number


def _series(rows: Sequence[Mapping[str, Any]], team: str, teams: Sequence[str]) -> dict[str, Series]:
    """Returns the series of a team by metric without its name; with "" those of the whole run."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        step = as_number(row.get("steps"))
        for key, value in row.items():
            name = _own_name(key, team, teams)
            number = as_number(value)
            if name is None or number is None or step is None:
                continue
            steps, values = found.setdefault(name, ([], []))
            steps.append(int(step))
            values.append(number)
    return {name: Series(tuple(steps), tuple(values)) for name, (steps, values) in found.items()}


def _own_name(key: str, team: str, teams: Sequence[str]) -> str | None:
    """Returns the name of the metric without the team; None if it is one of another team."""
    area, _, rest = key.partition("/")
    owner, _, inner = rest.partition("/")
    if not team:
        return key
    if owner == team:
        return f"{area}/{inner}"
    return None if owner in teams else key

"""Read-only view of a run that checks read: settings, metrics, observations and activations."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

LEARNED = 0.5
"""Improvement of the return, in standard deviations of single episodes' returns at the start, above which a run has
learned something. Less is within reach of the noise of a mean over few episodes.
"""

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
        integer: True if the features are integers, such as 8-bit images, which networks scale.
    """

    role: str
    largest: float
    feature: int
    smallest: float
    widest: float
    integer: bool = False


@dataclass(frozen=True)
class Sample:
    """Observations of a team, and the activity of its networks on them.

    Attributes:
        source: Origin of the observations, as a phrase.
        observations: Number of observations.
        scales: Scales of vector observations by role.
        layers: Hidden layers of the networks that act.
        missing: Why there are no observations, or no layers; "" if there are both.
    """

    source: str = ""
    observations: int = 0
    scales: tuple[ObservationScale, ...] = ()
    layers: tuple[LayerActivity, ...] = ()
    missing: str = "the run has no checkpoint that could be read"


@dataclass(frozen=True)
class TeamView:
    """Settings and measurements of a team that learns.

    Attributes:
        name: Name of the team; "" if there is only one.
        prefix: Start of the keys of its algorithm's settings, such as `algo.`.
        settings: Settings of its algorithm without the prefix.
        metrics: Series by metric.
        random_return: Return of the random policy; NaN if unknown.
        alone: True if no other team learns and there is no self-play, so that a constant return means no progress.
        continuous: Continuous actions of an agent; None if unknown or if they are mixed with choices.
        sample: Observations and activity of the networks.
    """

    name: str
    prefix: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, Series]
    random_return: float = math.nan
    alone: bool = True
    continuous: int | None = 0
    sample: Sample = Sample()

    def series(self, metric: str) -> Series:
        """Returns the values of a metric such as `policy/entropy`; empty if it was not logged."""
        return self.metrics.get(metric, Series())

    def number(self, setting: str) -> float | None:
        """Returns a setting of the algorithm such as `lr`; None if it is not set or not a number."""
        return as_number(self.settings.get(setting))

    def key(self, setting: str, value: Any) -> str:
        """Returns `algo.SETTING=VALUE (now ...)`."""
        return f"{self.prefix}{setting}={plain(value)} (now {plain(self.settings.get(setting))})"

    def smaller_lr(self) -> str:
        """Returns a third of the learning rate, at most 0.003, as a setting."""
        return self.key("lr", min(0.003, (self.number("lr") or 0.0015) / 3))

    @property
    def algo(self) -> str:
        """Name of the algorithm."""
        return str(self.settings.get("name", "the algorithm"))

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
    """

    settings: Mapping[str, Any]
    steps: int
    teams: tuple[TeamView, ...]
    metrics: Mapping[str, Series] = field(default_factory=dict)

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
    random: Mapping[str, float | None] | None = None,
    continuous: Mapping[str, int | None] | None = None,
    samples: Mapping[str, Sample] | None = None,
) -> RunView:
    """Creates the view of a run.

    Args:
        settings: Settings by dotted key.
        rows: Entries of its log, oldest first.
        teams: Names of all teams. Those without metrics of a learner are left out.
        random: Returns of the random policy by team.
        continuous: Continuous actions of an agent by team, see `TeamView`.
        samples: Observations and activity of networks by team.
    """
    shared = len(teams) <= 1
    metrics = {team: _series(rows, "" if shared else team, teams) for team in teams}
    learning = [team for team in teams if _has_learner(metrics[team])]
    alone = len(learning) == 1 and settings.get("selfplay.opponents", "off") == "off"
    views = []
    for team in learning:
        prefix = f"teams.{team}.algo." if f"teams.{team}.algo.name" in settings else "algo."
        views.append(
            TeamView(
                name="" if shared else team,
                prefix=prefix,
                settings={key.removeprefix(prefix): x for key, x in settings.items() if key.startswith(prefix)},
                metrics=metrics[team],
                random_return=_level(random, team, shared),
                alone=alone,
                continuous=(continuous or {}).get(team, 0),
                sample=(samples or {}).get(team, Sample()),
            )
        )
    steps = max((int(row["steps"]) for row in rows if as_number(row.get("steps")) is not None), default=0)
    return RunView(settings, steps, tuple(views), _series(rows, "", teams))


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

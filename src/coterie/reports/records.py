"""Records of runs that are compared: identity, evaluations over time, and fresh evaluations of their policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coterie.core.metrics import by_team
from coterie.reports.options import Scale
from coterie.runs.activity import State
from coterie.runs.curves import Run

Origin = Literal["coterie", "marl-eval"]
Policies = Literal["final", "best"]


@dataclass(frozen=True)
class EvaluationSeries:
    """Evaluations of one team of a run, oldest first.

    Attributes:
        steps: Environment steps, ascending, [P].
        seconds: Wall time in seconds, NaN where unknown, [P].
        mean: Mean over the episodes, [P], finite.
        error: Its standard error, NaN where unknown, [P].
        episodes: Number of episodes, NaN where unknown, [P].
        not_finite: Environment steps of the evaluations that were left out because their mean is not finite, ascending.
    """

    steps: np.ndarray
    seconds: np.ndarray
    mean: np.ndarray
    error: np.ndarray
    episodes: np.ndarray
    not_finite: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def final(self) -> float:
        """Mean of the last evaluation."""
        return float(self.mean[-1])

    def peak(self, *, lowest: bool = False) -> float:
        """Returns the best mean. It is biased upward: the best of several noisy evaluations.

        Args:
            lowest: True if lower values are better.
        """
        return float(self.mean.min() if lowest else self.mean.max())


@dataclass(frozen=True)
class FreshEvaluation:
    """Evaluation of a checkpoint after training, on episodes that did not choose it.

    Attributes:
        policies: `final` for the last checkpoint, `best` for the one with the best evaluation. The result of the latter
            is the absolute metric of Gorsane et al. (2022).
        steps: Environment steps of the checkpoint.
        values: Value of each episode by team and metric such as `eval/return_mean`, [E]. The team is "" in a run with
            one team, and for metrics of the environment.
    """

    policies: Policies
    steps: int
    values: Mapping[tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class CollectedRun:
    """One run: a folder of Coterie, or one seed of an algorithm in a file of marl-eval.

    Attributes:
        name: Folder of the run, or the file and the path of the run in it.
        origin: Program that wrote it.
        log: Metrics and settings. Without settings (`all_settings`) for a file.
        state: `training`, `finished` or `stopped`.
        steps: Environment steps done.
        total: Environment steps of the whole run.
        teams: Teams that learn; "" for the only one.
        scale: Convention of its returns; None if unknown.
        metrics: Names of all metrics in its log.
        agents: Number of agents by team; empty if unknown.
        manifest: Content of `manifest.json`; empty for a file.
        fresh: Evaluations after training.
    """

    name: str
    origin: Origin
    log: Run
    state: State
    steps: int
    total: int
    teams: tuple[str, ...]
    scale: Scale | None
    metrics: tuple[str, ...] = ()
    agents: Mapping[str, int] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    fresh: tuple[FreshEvaluation, ...] = ()

    @property
    def env(self) -> str:
        """Name of the environment."""
        return self.log.env

    @property
    def algo(self) -> str:
        """Name of the algorithm."""
        return self.log.algo

    @property
    def seed(self) -> int | None:
        """Seed; None if unknown."""
        return self.log.seed

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings by dotted key."""
        return self.log.all_settings

    @property
    def hardware(self) -> Mapping[str, Any]:
        """Entries `hardware` and `device` of the manifest; empty if unknown."""
        device = self.manifest.get("device")
        return {**self.entry("hardware"), **({"device": device} if device else {})}

    def entry(self, name: str) -> Mapping[str, Any]:
        """Returns an entry of the manifest such as `git`; empty if it is missing or of another type."""
        found = self.manifest.get(name)
        return found if isinstance(found, Mapping) else {}

    def teams_of(self, metric: str) -> list[str]:
        """Returns the teams that have a metric such as `eval/return_mean`; "" for a metric without a team's name."""
        return list(by_team(dict.fromkeys(self.metrics, 0.0), metric))

    def random(self, team: str) -> float | None:
        """Returns the mean return of the random policy; None if unknown."""
        return self.log.level("random", team)

    def reference(self, team: str) -> float | None:
        """Returns the published score of the run's algorithm; None if unknown."""
        return self.log.level("published", team)

    def fresh_values(self, policies: Policies, team: str, metric: str) -> np.ndarray | None:
        """Returns the values [E] of the latest fresh evaluation; None if there is none."""
        found = [fresh.values.get((team, metric)) for fresh in self.fresh if fresh.policies == policies]
        return found[-1] if found else None


@dataclass(frozen=True)
class Trial:
    """One team of one run, in a group of runs that differ only in the seed.

    Attributes:
        task: Label of the environment, with the settings in which environments of the same name differ and the team if
            there are several.
        algo: Label of the algorithm, with the settings in which groups of one task differ.
        run: The run.
        team: Team; "" for the only one.
        series: Its evaluations during training.
        fresh: Values of the episodes [E] of the fresh evaluation of the final policies; None without one.
        absolute: The same of the best policies.
    """

    task: str
    algo: str
    run: CollectedRun
    team: str
    series: EvaluationSeries
    fresh: np.ndarray | None = None
    absolute: np.ndarray | None = None

    @property
    def seed(self) -> int | None:
        """Seed of the run; None if unknown."""
        return self.run.seed

    @property
    def seconds(self) -> float:
        """Wall time of the last evaluation; NaN if unknown."""
        return float(self.series.seconds[-1]) if len(self.series) else math.nan

    def episodes(self, score: str) -> np.ndarray | None:
        """Returns the values of the episodes [E] of the score `fresh` or `absolute`; None without, and for others."""
        return {"fresh": self.fresh, "absolute": self.absolute}.get(score)

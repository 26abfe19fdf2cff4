"""Alternating training: some teams learn while the others act without learning, then others do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.config.curriculum import AdvanceConfig
from coterie.core.errors import UserError, nearest
from coterie.core.metrics import Metric, declare
from coterie.training.callback import ActiveTeams, TrainerCallback
from coterie.training.curriculum import Criterion
from coterie.training.episodes import FinishedEpisodes

declare(
    Metric(
        "alternate/index",
        "",
        "number of the current phase of alternating training, from 1",
        better=None,
        combine="last",
    )
)


@dataclass(frozen=True)
class AlternationSchedule:
    """Phases of alternating training.

    Attributes:
        phases: The teams that learn in each phase.
        interval: Environment steps per phase; None if phases do not end by steps.
        until: Criterion that ends a phase; None if phases do not end by a metric.
        repeat: True to start over after the last phase; False to stay in it.
        total_steps: Environment steps of the run.
    """

    phases: Sequence[tuple[str, ...]]
    interval: int | None
    until: AdvanceConfig | None
    repeat: bool
    total_steps: int


class AlternatingTraining(TrainerCallback):
    """Lets the teams of one phase learn at a time."""

    name = "alternate"

    def __init__(self, active_teams: ActiveTeams, schedule: AlternationSchedule):
        self._active_teams, self._schedule = active_teams, schedule
        self._start_phase(0, 0)

    def _start_phase(self, phase: int, steps: int) -> None:
        self._phase, self._started_at, self._episodes = phase, steps, 0
        until, teams = self._schedule.until, self._teams
        self._advance = None if until is None else until.for_team(teams[0])
        self._criterion = None if self._advance is None else Criterion(self._advance)
        self._active_teams.activate(teams)

    @property
    def _teams(self) -> tuple[str, ...]:
        """Teams of the current phase."""
        return self._schedule.phases[self._phase % len(self._schedule.phases)]

    def _announcement(self) -> Sequence[str]:
        verb = "learns" if len(self._teams) == 1 else "learn"
        return [f"alternating training, phase {self._phase + 1}: {' and '.join(self._teams)} {verb}"]

    def on_training_start(self) -> Sequence[str]:
        return self._announcement()

    def on_update(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        return ()

    def on_rollout_end(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        self._episodes += len(finished)
        schedule = self._schedule
        if not schedule.repeat and self._phase + 1 >= len(schedule.phases):
            return ()
        ends = schedule.interval is not None and steps - self._started_at >= schedule.interval
        if self._criterion is not None and self._advance is not None:
            ends = ends or (self._criterion.met and self._episodes >= self._advance.episodes)
        if not ends:
            return ()
        self._start_phase(self._phase + 1, steps)
        return self._announcement()

    def on_metrics(self, steps: int, metrics: Mapping[str, float]) -> Sequence[str]:
        if self._criterion is not None and self._advance is not None:
            metric = self._advance.metric
            value = steps / self._schedule.total_steps if metric == "progress" else metrics.get(metric)
            if value is not None:
                self._criterion.add(float(value))
        return ()

    def metrics(self, steps: int, entry: Mapping[str, float]) -> dict[str, float]:
        return {"alternate/index": self._phase + 1}

    def state_dict(self) -> dict[str, Any]:
        return {
            "phase": self._phase,
            "started_at": self._started_at,
            "episodes": self._episodes,
            "criterion": None if self._criterion is None else self._criterion.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start_phase(state["phase"], state["started_at"])
        self._episodes = state["episodes"]
        if self._criterion is not None:
            self._criterion.load_state_dict(state["criterion"])


def resolve_phases(order: Sequence[str | tuple[str, ...]], active_teams: ActiveTeams) -> list[tuple[str, ...]]:
    """Returns the teams that learn in each phase; by default each learning team on its own.

    Raises:
        UserError: If a phase is empty or names a team that does not exist or does not learn.
    """
    phases = [(phase,) if isinstance(phase, str) else phase for phase in order]
    phases = phases or [(name,) for name in active_teams.learners]
    if any(not phase for phase in phases):
        raise UserError("alternate.order: no team learns in one of the phases. Name a team, or several as [one,other].")
    for name in (name for phase in phases for name in phase):
        if name not in active_teams.learners:
            raise UserError(
                f"alternate.order: '{name}' is not a team that learns. {nearest(name, active_teams.learners)}"
            )
    return phases

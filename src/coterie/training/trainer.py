"""The training loop: collect rollouts, update each team, log, evaluate, save checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.algos.algorithm import Algorithm
from coterie.core.errors import NonFiniteError, UserError, one_line
from coterie.core.metrics import Metric, declare
from coterie.core.specs import TeamSpec
from coterie.core.types import Rollout
from coterie.runs.checkpoints import Checkpoints, LoadedCheckpoint, compare
from coterie.runs.loggers import JsonlLogger, Logger
from coterie.runs.progress import PeriodicProgress, Progress
from coterie.training.callback import ActiveTeams, Callback
from coterie.training.collector import Collector
from coterie.training.evaluation import Evaluator
from coterie.training.hooks import HookCaller
from coterie.training.rollout_builder import concatenate_rollouts, rollout_from_dict, rollout_to_dict

declare(
    Metric("time/wall_s", "s", "wall time of the run so far, over all sessions", better=None, combine="max"),
    Metric(
        "time/steps_per_s",
        "step/s",
        "environment steps per second since the last log, all included",
        better="up",
        combine="sum",
    ),
    Metric(
        "rollout/dropped", "", "episodes of this session dropped because a worker failed", better="down", combine="max"
    ),
    Metric(
        "time/collect_share", "share", "share of the time spent in environments and acting", better=None, combine="mean"
    ),
    Metric("time/update_share", "share", "share of the time spent in updates", better=None, combine="mean"),
)


@dataclass(frozen=True)
class Schedule:
    """Lengths and intervals of a run.

    Attributes:
        steps: Environment steps of the run.
        eval_every: Environment steps between evaluations; 0 for none.
        checkpoint_every: Environment steps between checkpoints; 0 for one at the start and one at the end.
        log_every: Updates per log entry.
        keep_all: True to keep every checkpoint.
    """

    steps: int
    eval_every: int
    checkpoint_every: int
    log_every: int
    keep_all: bool = False


@dataclass(frozen=True)
class RunComponents:
    """The parts of a run that the training loop connects.

    Attributes:
        teams: Teams by name.
        algorithms: Algorithms by team.
        collector: Collects rollouts of all teams.
        evaluator: Evaluates the current policies.
        active_teams: The teams that learn.
        callbacks: Called between rollouts, in this order.
        best_metric: Value by which the best checkpoint is chosen, read after each evaluation. None for the mean return
            of the first learning team.
    """

    teams: dict[str, TeamSpec]
    algorithms: dict[str, Algorithm]
    collector: Collector
    evaluator: Evaluator
    active_teams: ActiveTeams
    callbacks: tuple[Callback, ...] = ()
    best_metric: Callable[[], float] | None = None

    def close(self) -> None:
        """Closes the environments."""
        self.collector.env.close()
        self.evaluator.env.close()


@dataclass(frozen=True)
class Outputs:
    """Destinations of the output of a run.

    Attributes:
        metrics_file: The log file, truncated to the checkpoint when a run is resumed.
        logger: Receives all metrics.
        checkpoints: Stores checkpoints.
        progress: Shows progress to the user.
        metadata: Added to the metadata of every checkpoint.
    """

    metrics_file: JsonlLogger
    logger: Logger
    checkpoints: Checkpoints
    progress: Progress
    metadata: dict[str, Any]


class Trainer:
    """Trains the teams of one environment until `schedule.steps`, or until a stop is requested."""

    def __init__(
        self, components: RunComponents, schedule: Schedule, outputs: Outputs, hooks: HookCaller | None = None
    ):
        self.algorithms, self.collector = components.algorithms, components.collector
        self.evaluator, self.teams, self.schedule = components.evaluator, components.teams, schedule
        self._active_teams, self._callbacks = components.active_teams, components.callbacks
        self._outputs, self._logger, self._progress = outputs, outputs.logger, outputs.progress
        for callback in self._callbacks:
            callback.notify = outputs.progress.print_line
        self._learners = {name: self.algorithms[name] for name in self._active_teams.learners}
        self._best_metric, self._first_learner = components.best_metric, next(iter(self._learners))
        # Steps per environment between updates; the rollout lengths of all teams are multiples of it.
        self._chunk_length = min(a.rollout_length for a in self._learners.values())
        self._pending: dict[str, list[Rollout]] = {name: [] for name in self._learners}
        self._unlogged: dict[str, list[float]] = {}
        self.steps, self.updates, self.best = 0, 0, -float("inf")
        self.wall_s = 0.0
        self.stop_requested = False
        self.hooks = hooks or HookCaller()
        self._saved_at = -1
        self._evaluated_at = -1
        self._task = self.evaluator.task

    @property
    def learners(self) -> tuple[str, ...]:
        """Teams that can learn."""
        return tuple(self._learners)

    def log_to(self, logger: Logger) -> None:
        """Replaces the logger."""
        self._logger = logger

    def request_stop(self) -> None:
        """Makes `run` save a checkpoint and return after the current rollout."""
        self.stop_requested = True

    # ------------------------------------------------------------------------------------------------------ training

    def run(self) -> None:
        """Trains until the end or a requested stop, and saves a checkpoint there."""
        schedule = self.schedule
        self._clock, self._last_logged = time.perf_counter(), (self.steps, time.perf_counter())
        self._time_spent = {"collect": 0.0, "update": 0.0}
        if self._saved_at < 0:
            for callback in self._callbacks:
                self._show(callback.on_training_start())
        if self._evaluated_at < 0 and schedule.eval_every:
            self._evaluate()
        if self._saved_at < 0:
            self._save(best=schedule.eval_every > 0)
        while self.steps < schedule.steps and not self.stop_requested:
            steps_before = self.steps
            self.train_once()
            is_last = self.steps >= schedule.steps
            evaluates = schedule.eval_every > 0 and (
                is_last or _passes_multiple(schedule.eval_every, steps_before, self.steps)
            )
            is_best = evaluates and self._evaluate()
            saves = is_best or _passes_multiple(schedule.checkpoint_every, steps_before, self.steps)
            if is_last or self.stop_requested or (schedule.checkpoint_every and saves):
                # Without checkpoints in between, the one at the end is the best that is kept.
                self._save(is_best or (schedule.eval_every > 0 and not schedule.checkpoint_every))
        self._logger.flush()
        self._call("on_end")

    def _call(self, hook: str, **state: Any) -> None:
        """Calls the user's hooks of this name."""
        if self.hooks.hooks:
            policies = {name: algorithm.policy for name, algorithm in self.algorithms.items()}
            if self.hooks(hook, steps=self.steps, updates=self.updates, policies=policies, **state):
                self.stop_requested = True

    def train_once(self) -> None:
        """Collects one chunk, updates the teams whose rollouts are complete, and calls the callbacks."""
        try:
            metrics = self._collect_and_update()
        except NonFiniteError as error:
            raise NonFiniteError(f"after {self.steps:,} steps: {error}") from error
        if metrics:
            self._log(metrics)
            self._call("on_update", metrics=metrics)
        assert self.collector.last_finished is not None
        learning = self._active_teams.learning
        for callback in self._callbacks:
            self._show(callback.on_rollout_end(self.steps, self.collector.last_finished))
        if self._active_teams.learning != learning:  # teams change between episodes only
            self.collector.restart()
        if self.hooks.hooks:
            finished = self.collector.last_finished
            self._call("on_rollout", metrics=finished.summary("rollout", self.teams) if len(finished) else {})

    def _collect_and_update(self) -> dict[str, float]:
        """Collects one chunk and runs the updates that it completes. Returns metrics if they are due, otherwise {}."""
        started = time.perf_counter()
        rollouts, env_steps = self.collector.advance(self._chunk_length)
        collected = time.perf_counter()
        updated = False
        learning = self._active_teams.learning
        for name, algorithm in self._learners.items():
            pending = self._pending[name]
            if name not in learning:
                pending.clear()  # later rollouts do not continue this one
                continue
            pending.append(rollouts[name])
            if len(pending) * self._chunk_length < algorithm.rollout_length:
                continue
            rollout = concatenate_rollouts(pending)
            self._pending[name] = []
            progress = min(1.0, self.steps / self.schedule.steps)
            for key, value in algorithm.update(rollout, progress).items():
                self._unlogged.setdefault(self._metric_name(key, name), []).append(value)
            updated = True
        self.steps += env_steps
        self._time_spent["collect"] += collected - started
        self._time_spent["update"] += time.perf_counter() - collected
        self.updates += updated
        if not updated or self.updates % self.schedule.log_every:
            return {}
        return self._pop_metrics()

    @property
    def unlogged(self) -> dict[str, float]:
        """Metrics of the updates since the last log entry, averaged."""
        return {name: sum(values) / len(values) for name, values in self._unlogged.items()}

    def _pop_metrics(self) -> dict[str, float]:
        """Returns the metrics since the last log entry: averages over updates, finished episodes, and times."""
        metrics = self.unlogged
        self._unlogged = {}
        finished = self.collector.pop_finished()
        if finished is not None:
            metrics = finished.summary("rollout", self.teams) | metrics
        if self.collector.dropped:
            metrics["rollout/dropped"] = float(self.collector.dropped)
        now = time.perf_counter()
        steps_before, then = self._last_logged
        elapsed = max(now - then, 1e-9)
        self._last_logged = (self.steps, now)
        metrics["time/steps_per_s"] = (self.steps - steps_before) / elapsed
        metrics |= {f"time/{name}_share": spent / elapsed for name, spent in self._time_spent.items()}
        for callback in self._callbacks:
            metrics |= callback.metrics()
        self._time_spent = dict.fromkeys(self._time_spent, 0.0)
        return metrics

    def _evaluate(self) -> bool:
        """Evaluates and logs. Returns True if the metric for the best checkpoint improved."""
        evaluation = self.evaluator(self.steps, PeriodicProgress(self._progress.print_line, "evaluation", first_s=10.0))
        self._evaluated_at = self.steps
        metrics = evaluation.metrics()
        self._log(metrics)
        value = evaluation.return_mean(self._first_learner) if self._best_metric is None else self._best_metric()
        if self._task != self.evaluator.task:  # results on another task are not comparable
            self._task, self.best = self.evaluator.task, -float("inf")
        self._call("on_evaluation", metrics=metrics)
        is_best = value > self.best
        self.best = max(self.best, value)
        return is_best

    def _log(self, metrics: dict[str, float]) -> None:
        now = time.perf_counter()
        self.wall_s += now - self._clock
        self._clock = now
        metrics = {"steps": self.steps, "time/wall_s": self.wall_s, **metrics}
        self._logger.write(metrics)
        self._progress.update(self.steps, self.schedule.steps, metrics)
        for callback in self._callbacks:
            self._show(callback.on_metrics(self.steps, metrics))

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._progress.print_line(line)

    def _metric_name(self, key: str, team: str) -> str:
        """Returns `area/name`, with several teams `area/team/name`."""
        if len(self.algorithms) == 1:
            return key
        area, _, rest = key.partition("/")
        return f"{area}/{team}/{rest}"

    # -------------------------------------------------------------------------------------------------- checkpoints

    def _save(self, best: bool = False) -> None:
        self._logger.flush()
        position = self._outputs.metrics_file.position()
        metadata = self._outputs.metadata | {"steps": self.steps, "metrics_bytes": position}
        self._saved_at = self.steps
        path = self._outputs.checkpoints.save(
            self.steps, self.state_dict(), metadata, best=best, numbered=self.schedule.keep_all
        )
        self._call("on_checkpoint", checkpoint=path)

    def state_dict(self) -> dict[str, Any]:
        """Returns everything needed to resume."""
        return {
            "algorithms": {name: algorithm.state_dict() for name, algorithm in self.algorithms.items()},
            "collector": self.collector.state_dict(),
            "rollout_lengths": self._rollout_lengths(),
            "pending": {name: [rollout_to_dict(r) for r in rollouts] for name, rollouts in self._pending.items()},
            "unlogged": self._unlogged,
            "callbacks": {callback.name: callback.state_dict() for callback in self._callbacks},
            "steps": self.steps,
            "updates": self.updates,
            "best": self.best,
            "task": self._task,
            "wall_s": self.wall_s,
            "saved_at": self._saved_at,
            "evaluated_at": self._evaluated_at,
        }

    def _rollout_lengths(self) -> dict[str, int]:
        return {name: algorithm.rollout_length for name, algorithm in self._learners.items()}

    def load(self, found: LoadedCheckpoint) -> None:
        """Restores a checkpoint.

        Raises:
            UserError: If it does not fit the configuration, with the differences.
        """
        state = found.state
        self._load_callbacks(found)  # first, because they decide which policies the collector uses
        own = {name: algorithm.state_dict() for name, algorithm in self.algorithms.items()}
        differences = compare(
            _fixed_shapes(own, self.collector.state_dict()), _fixed_shapes(state["algorithms"], state["collector"])
        )
        if state["rollout_lengths"] != self._rollout_lengths():
            differences.append(f"rollout lengths: expected {self._rollout_lengths()}, found {state['rollout_lengths']}")
        if differences:
            raise UserError(
                f"the checkpoint {found.path} does not fit the run's config.yaml: {'; '.join(differences[:3])}. "
                "Restore the config.yaml that the run was started with."
            )
        for name, algorithm in self.algorithms.items():
            algorithm.load_state_dict(state["algorithms"][name])
        self.collector.load_state_dict(state["collector"])
        if self.collector.env.spec.exact_resume:  # otherwise new episodes start, which do not continue these rollouts
            device = self.collector.env.device
            self._pending = {
                name: [rollout_from_dict(r, device) for r in rollouts] for name, rollouts in state["pending"].items()
            }
        self._unlogged = state["unlogged"]
        self.steps, self.updates = state["steps"], state["updates"]
        self.best, self.wall_s, self._task = state["best"], state["wall_s"], state["task"]
        self._saved_at, self._evaluated_at = state["saved_at"], state["evaluated_at"]
        self._outputs.metrics_file.truncate(found.metadata["metrics_bytes"])

    def _load_callbacks(self, found: LoadedCheckpoint) -> None:
        states = found.state.get("callbacks", {})
        own = {callback.name: callback for callback in self._callbacks}
        why = "" if states.keys() == own.keys() else f"expected {list(own) or 'none'}, found {list(states) or 'none'}"
        try:
            for name, callback in own.items() if not why else ():
                callback.load_state_dict(states[name])
        except (KeyError, RuntimeError, ValueError) as error:
            why = f"{type(error).__name__}: {one_line(error)}"
        if why:
            raise UserError(
                f"the checkpoint {found.path} does not fit the callbacks of the run's config.yaml ({why}). Restore the "
                "config.yaml that the run was started with."
            )


def _passes_multiple(interval: int, before: int, now: int) -> bool:
    """Returns True if (before, now] contains a multiple of `interval`."""
    return interval > 0 and before // interval < now // interval


def _fixed_shapes(algorithms: dict[str, Any], collector: dict[str, Any]) -> dict[str, Any]:
    """Returns the states whose shapes must match: networks, hidden states, environments and agents."""
    teams = {
        name: {key: state[key] for key in ("policy", "critic", "hidden_state") if key in state}
        for name, state in algorithms.items()
    }
    return {"teams": teams, "collector": {key: collector[key] for key in ("hidden_state", "episodes")}}

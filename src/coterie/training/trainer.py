"""The training loop: collect rollouts, update each team, log, evaluate, save checkpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from coterie.core.errors import NonFiniteError, UserCodeError, UserError, one_line
from coterie.core.metrics import Metric, declare
from coterie.core.serialize import compare
from coterie.core.types import Rollout
from coterie.runs.checkpoints import LoadedCheckpoint
from coterie.runs.loggers import Logger
from coterie.runs.progress import PeriodicProgress
from coterie.training.best import Best, BestChoice
from coterie.training.callback import HookCaller
from coterie.training.evaluation import EndlessEpisodesError
from coterie.training.rank_states import join_states, own_state
from coterie.training.rollout_builder import concatenate_rollouts, rollout_from_dict, rollout_to_dict
from coterie.training.run_parts import Outputs, RunComponents, Schedule

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
    Metric(
        "time/exchange_share",
        "share",
        "share of the time spent in exchanges with other ranks",
        better="down",
        combine="mean",
    ),
    Metric("time/exchange_ms", "ms", "mean time of an exchange with other ranks, waiting included", better="down"),
    Metric("time/exchange_bytes", "byte", "mean size of an exchange with other ranks", better=None),
)

SLOW_S = 30.0
"""Seconds in evaluations from which they may be called slow."""


class Trainer:
    """Trains the teams of one environment until `schedule.steps`, or until a stop is requested."""

    def __init__(
        self,
        components: RunComponents,
        schedule: Schedule,
        outputs: Outputs,
        hooks: HookCaller | None = None,
    ):
        self._ranks = components.ranks
        self.algorithms, self.collector = components.algorithms, components.collector
        self.evaluator, self.teams, self.schedule = components.evaluator, components.teams, schedule
        self._active_teams, self._callbacks = components.active_teams, components.callbacks
        self._outputs, self._logger, self._progress = outputs, outputs.logger, outputs.progress
        for callback in self._callbacks:
            callback.notify = outputs.progress.print_line
        self._learners = {name: self.algorithms[name] for name in self._active_teams.learners}
        rules = components.best_rules
        self._best = None if rules is None else BestChoice(rules, self.evaluator.task)
        self._trained: set[str] = set()
        self._rewarded_roles: set[str] = set()  # whose agents have got rewards of their own
        # Steps per environment between updates; the rollout lengths of all teams are multiples of it.
        self._chunk_length = min(a.rollout_length for a in self._learners.values())
        self._pending: dict[str, list[Rollout]] = {name: [] for name in self._learners}
        self._unlogged: dict[str, list[float]] = {}
        self.steps, self.updates = 0, 0
        self.wall_s = 0.0
        self.stop_requested = False
        self.episode_ended = False  # in training, in this session
        self.hooks = hooks or HookCaller()
        self._saved_at, self._evaluated_at = -1, -1
        self._began, self._evaluation_s, self._notes_slow = 0.0, 0.0, True  # start and evaluations of this session

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
        self._began = self._clock = time.perf_counter()
        self._last_logged = self.steps, self._clock
        self._time_spent = {"collect": 0.0, "update": 0.0}
        self._ranks.traffic.pop()
        self._outputs.snapshots.remove()  # of an interrupted session, which may have been ahead of its checkpoint
        if self._saved_at < 0:
            for callback in self._callbacks:
                self._show(callback.on_training_start())
        if self._evaluated_at < 0 and schedule.eval_every:
            self._evaluate()
        if self._saved_at < 0:
            self._save()
        stops = self._stops()
        while self.steps < schedule.steps and not stops:
            steps_before = self.steps
            self.train_once()
            is_last = self.steps >= schedule.steps
            evaluates = schedule.eval_every > 0 and (
                is_last or _passes_multiple(schedule.eval_every, steps_before, self.steps)
            )
            best = self._evaluate() if evaluates else Best()
            saves = bool(best) or _passes_multiple(schedule.checkpoint_every, steps_before, self.steps)
            stops = self._stops()
            if is_last or stops or (schedule.checkpoint_every and saves):
                if self._best is not None and not schedule.checkpoint_every:
                    best = self._best.only()  # without checkpoints in between, it is the best that is kept
                self._save(best)
                stops = self._stops()
            else:
                self._outputs.snapshots.write_if_due(self.steps, self._policy_states)
        self._outputs.snapshots.remove()
        self._logger.flush()
        self._call("on_end")

    def _stops(self) -> bool:
        """Returns True if a stop was requested on any rank.

        Signals arrive at any time, and only rank 0 evaluates and writes checkpoints. Branches that not all ranks would
        take must therefore depend on this result, not on `stop_requested`.
        """
        self.stop_requested = self._ranks.any(self.stop_requested)
        return self.stop_requested

    def _call(self, hook: str, **state: Any) -> None:
        """Calls the user's hooks of this name."""
        if self.hooks.callbacks:
            policies = {name: algorithm.policy for name, algorithm in self.algorithms.items()}
            if self.hooks(hook, steps=self.steps, updates=self.updates, policies=policies, **state):
                self.stop_requested = True

    def train_once(self) -> None:
        """Collects one chunk, updates the teams whose rollouts are complete, and calls the callbacks."""
        try:
            is_due = self._collect_and_update()
            finished = self.collector.last_finished
            assert finished is not None
            if len(finished):
                self.evaluator.awaits_end, self.episode_ended = False, True
            for callback in self._callbacks:
                self._show(callback.on_update(self.steps, finished))
            entry = self._training_entry() if is_due else {}
        except NonFiniteError as error:
            raise NonFiniteError(f"after {self.steps:,} steps: {error}") from error
        if entry:
            self._log(entry)
            self._call("on_update", metrics=entry)
        learning = self._active_teams.learning
        for callback in self._callbacks:
            self._show(callback.on_rollout_end(self.steps, finished))
        if self._active_teams.learning != learning:  # teams change between episodes only
            self.collector.restart()
        if self.hooks.callbacks:
            summary = finished.summary("rollout", self.teams, self._rewarded_roles) if len(finished) else {}
            self._call("on_rollout", metrics=summary)

    def _collect_and_update(self) -> bool:
        """Collects one chunk and runs the updates that it completes. Returns True if a log entry is due."""
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
            self._ranks.start_batch()
            metrics = require_metrics(algorithm, algorithm.update(rollout, progress))
            for key, value in metrics.items():
                self._unlogged.setdefault(self._metric_name(key, name), []).append(value)
            if metrics.get("replay/updates", 1.0) > 0:  # off-policy learners wait for `learning_starts`
                self._trained.add(name)
            largest = self._metric_name("rollout/reward_abs_max", name)
            self._unlogged.setdefault(largest, []).append(self.collector.reward_abs_max[name])
            updated = True
        self.steps += env_steps
        self._time_spent["collect"] += collected - started
        self._time_spent["update"] += time.perf_counter() - collected
        self.updates += updated
        return updated and self.updates % self.schedule.log_every == 0

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
            self._rewarded_roles |= finished.rewarded_roles(self.teams.values())
            metrics = finished.summary("rollout", self.teams, self._rewarded_roles) | metrics
        if self.collector.dropped:
            metrics["rollout/dropped"] = float(self.collector.dropped)
        now = time.perf_counter()
        steps_before, then = self._last_logged
        elapsed = max(now - then, 1e-9)
        self._last_logged = (self.steps, now)
        metrics["time/steps_per_s"] = (self.steps - steps_before) / elapsed
        metrics |= {f"time/{name}_share": spent / elapsed for name, spent in self._time_spent.items()}
        if self._ranks.size > 1:
            metrics |= self._ranks.traffic.pop().metrics(elapsed)
        self._time_spent = dict.fromkeys(self._time_spent, 0.0)
        return metrics

    def _training_entry(self) -> dict[str, float]:
        """Returns the log entry of the updates since the last one, with the metrics of the callbacks."""
        entry = self._entry(self._pop_metrics())
        for callback in self._callbacks:
            entry |= callback.metrics(self.steps, entry)
        return entry

    def _evaluate(self) -> Best:
        """Evaluates and logs, if episodes end. Returns the roles of the checkpoint of this step."""
        found = self._evaluation_metrics()
        self._evaluated_at = self.steps
        if not found:
            return Best()
        metrics = self._entry(found)
        self._log(metrics)
        self._call("on_evaluation", metrics=metrics)
        if self._best is None:
            return Best()
        return self._best.add(metrics, task=self.evaluator.task, trained=self._trained)

    def _evaluation_metrics(self) -> dict[str, float]:
        """Returns the metrics of an evaluation by rank 0, for which the others wait; {} if episodes do not end."""
        if self._ranks.size == 1:
            return self._own_evaluation_metrics()
        content = json.dumps(self._own_evaluation_metrics()).encode() if self._ranks.is_first else None
        return json.loads(self._ranks.broadcast(content))

    def _own_evaluation_metrics(self) -> dict[str, float]:
        if self.evaluator.awaits_end:
            return {}
        waiting, started = PeriodicProgress(self._progress.print_line, "evaluation", first_s=10.0), time.perf_counter()
        try:
            return self.evaluator(self.steps, waiting).metrics(self._rewarded_roles)
        except EndlessEpisodesError as error:
            self._progress.print_note(error.in_training(f"evaluation after {self.steps:,} steps"))
            return {}
        finally:
            self._evaluation_s += time.perf_counter() - started
            self._note_slow_evaluations()

    def _note_slow_evaluations(self) -> None:
        """Says once that evaluations take longer than training, and what shortens them."""
        session_s = time.perf_counter() - self._began
        if not self._notes_slow or self.updates == 0 or self._evaluation_s < max(SLOW_S, session_s / 2):
            return
        self._notes_slow, ends = False, ""
        if self.evaluator.env.spec.episode_limit is None:
            ends = "end episodes by a limit that fits the task, such as env.episode_limit=200, or "
        self._progress.print_note(
            f"evaluations have taken {self._evaluation_s / session_s:.0%} of the time: {ends}evaluate less often "
            f"than after {self.schedule.eval_every:,} steps (eval.every) or in fewer than {self.evaluator.episodes:,} "
            "episodes (eval.episodes)"
        )

    def _entry(self, metrics: dict[str, float]) -> dict[str, float]:
        """Returns the metrics with the environment steps and the wall time so far."""
        now = time.perf_counter()
        self.wall_s += now - self._clock
        self._clock = now
        return self._with_times_of_first({"steps": self.steps, "time/wall_s": self.wall_s, **metrics})

    def _log(self, metrics: dict[str, float]) -> None:
        self._logger.write(metrics)
        self._progress.update(self.steps, self.schedule.steps, metrics)
        for callback in self._callbacks:
            self._show(callback.on_metrics(self.steps, metrics))

    def _with_times_of_first(self, metrics: dict[str, float]) -> dict[str, float]:
        """Returns metrics with the times of rank 0, since callbacks of all ranks decide by them."""
        if self._ranks.size == 1:
            return metrics
        names = [name for name in metrics if name.startswith("time/")]
        times = self._ranks.gather(torch.tensor([metrics[name] for name in names], dtype=torch.float64))[0]
        return metrics | dict(zip(names, times.tolist(), strict=True))

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

    def _save(self, best: Best | None = None) -> None:
        self._logger.flush()
        position = self._outputs.metrics_file.position()
        metadata = self._outputs.metadata | {"steps": self.steps, "metrics_bytes": position}
        metadata["best_by"] = {} if self._best is None else self._best.rules.describe()
        self._saved_at, best = self.steps, best or Best()
        state = join_states(self.state_dict(), self._ranks)
        if state is None:  # rank 0 writes it
            return
        path = self._outputs.checkpoints.save(
            self.steps,
            state,
            metadata,
            best=best.of_run,
            best_of=best.of_teams,
            numbered=self.schedule.keep_all,
        )
        self._call("on_checkpoint", checkpoint=path)

    def _policy_states(self) -> dict[str, dict[str, Any]]:
        return {name: algorithm.policy.state_dict() for name, algorithm in self.algorithms.items()}

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
            "best": None if self._best is None else self._best.state_dict(),
            "trained": sorted(self._trained),
            "rewarded_roles": sorted(self._rewarded_roles),
            "wall_s": self.wall_s,
            "saved_at": self._saved_at,
            "evaluated_at": self._evaluated_at,
            "awaits_end": self.evaluator.awaits_end,
        }

    def _rollout_lengths(self) -> dict[str, int]:
        return {name: algorithm.rollout_length for name, algorithm in self._learners.items()}

    def load(self, found: LoadedCheckpoint) -> None:
        """Restores a checkpoint.

        Raises:
            UserError: If it does not fit the configuration, with the differences.
        """
        found = replace(found, state=own_state(found.state, self._ranks, self.state_dict))
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
        self._trained = set(state.get("trained", self._learners if self.updates else ()))
        self._rewarded_roles = set(state.get("rewarded_roles", ()))
        self.evaluator.awaits_end = state.get("awaits_end", False)
        if self._best is not None:
            self._best.restore(state, self._outputs.checkpoints.best_steps())
        self.wall_s, self._saved_at, self._evaluated_at = state["wall_s"], state["saved_at"], state["evaluated_at"]
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


def require_metrics(algorithm: Any, found: Any) -> dict[str, float]:
    """Returns the metrics of an update.

    Args:
        algorithm: The algorithm, for error messages.
        found: Result of its `update`.

    Raises:
        UserCodeError: If it is no dict of numbers by name.
    """
    place = f"{type(algorithm).__module__}:{type(algorithm).__qualname__}: update returned"
    if not isinstance(found, dict):
        raise UserCodeError(f"{place} {type(found).__name__}. Return a dict of metrics by name, which may be empty.")
    for name, value in found.items():
        if not isinstance(name, str) or "/" not in name:
            raise UserCodeError(
                f"{place} a metric named {name!r}. Use a name of the form area/name, such as loss/value."
            )
        if not isinstance(value, int | float):
            raise UserCodeError(f"{place} {name} of type {type(value).__name__}. Return a number, e.g. x.item().")
    return found

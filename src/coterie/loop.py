"""The training loop: collect, hand each team its window, log, evaluate, checkpoint. It knows no algorithm by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coterie.algos.algorithm import Algorithm
from coterie.checkpoint import Checkpoints, Found, compare
from coterie.collect import Collector
from coterie.errors import NonFiniteError, UserError, one_line
from coterie.evaluation import Evaluator
from coterie.guide import Guide, Roster
from coterie.log import JsonlLogger, Logger
from coterie.metrics import Metric, declare
from coterie.progress import Progress, Waiting
from coterie.types import Action, TeamSpec, Window, tree_map

declare(
    Metric("time/wall_s", "s", "wall time of the run so far, over all its stretches", None, "max"),
    Metric(
        "time/steps_per_s", "step/s", "environment steps a second since the last row, everything included", "up", "sum"
    ),
    Metric("rollout/dropped", "", "episodes dropped so far in this stretch because a worker failed", "down", "max"),
    Metric("time/collect_share", "share", "share of the time spent in environments and acting", None, "mean"),
    Metric("time/update_share", "share", "share of the time spent in updates", None, "mean"),
)


@dataclass(frozen=True)
class Schedule:
    """When things are due, in environment steps: the run's end, evaluations, checkpoints; log_every: updates a row."""

    steps: int
    eval_every: int
    checkpoint_every: int
    log_every: int
    numbered: bool = False
    """Every checkpoint stays."""


class Trainer:
    """Trains the teams of one environment until `schedule.steps`, or until `stop` is set between two windows."""

    def __init__(
        self,
        algorithms: dict[str, Algorithm],
        collector: Collector,
        evaluator: Evaluator,
        schedule: Schedule,
        rows: JsonlLogger,
        logger: Logger,
        store: Checkpoints,
        progress: Progress,
        metadata: dict[str, Any],
        roster: Roster | None = None,
        guides: Sequence[Guide] = (),
        judge: Callable[[], float] | None = None,
    ):
        """judge: what the best checkpoint is best at, asked after every evaluation; without one the first learning
        team's mean return in it.
        """
        self.algorithms, self.collector, self.evaluator, self.schedule = algorithms, collector, evaluator, schedule
        self._rows, self._logger, self._store, self._progress = rows, logger, store, progress
        self._metadata = metadata
        self.teams: dict[str, TeamSpec] = {name: a.policy.team for name, a in algorithms.items()}
        self._roster, self._guides = roster or Roster.of(algorithms), guides
        for guide in guides:
            guide.say = progress.note
        self._learners = {name: algorithms[name] for name in self._roster.learners}
        self._judge, self._first = judge, next(iter(self._learners))
        self._chunk = min(a.horizon for a in self._learners.values())  # of which all others are multiples
        self._pending: dict[str, list[Window]] = {name: [] for name in self._learners}
        self._unlogged: dict[str, list[float]] = {}
        self.steps, self.updates, self.best = 0, 0, -float("inf")
        self.wall = 0.0
        self.stop = False
        self._saved_at = -1
        self._evaluated_at = -1
        self._task = evaluator.task

    @property
    def learners(self) -> tuple[str, ...]:
        """The teams that can learn."""
        return tuple(self._learners)

    def log_to(self, logger: Logger) -> None:
        """Rows go to `logger` from now on."""
        self._logger = logger

    def request_stop(self) -> None:
        """Ends `run` after the present window, with a checkpoint."""
        self.stop = True

    # ------------------------------------------------------------------------------------------------------ running

    def run(self) -> None:
        """Trains until the end or the stop; leaves a checkpoint of where it came to."""
        schedule = self.schedule
        self._clock, self._marked = time.perf_counter(), (self.steps, time.perf_counter())
        self._spent = {"collect": 0.0, "update": 0.0}
        if self._saved_at < 0:
            for guide in self._guides:
                self._tell(guide.begin())
        if self._evaluated_at < 0 and schedule.eval_every:
            self._evaluate()
        if self._saved_at < 0:
            self._save(best=schedule.eval_every > 0)
        while self.steps < schedule.steps and not self.stop:
            before = self.steps
            try:
                row = self._advance()
            except NonFiniteError as error:
                raise NonFiniteError(f"after {self.steps:,} steps: {error}") from error
            if row:
                self._log(row)
            assert self.collector.ended is not None
            learning = self._roster.learning
            for guide in self._guides:
                self._tell(guide.after_window(self.steps, self.collector.ended))
            if self._roster.learning != learning:  # nobody changes in the middle of an episode
                self.collector.restart()
            last = self.steps >= schedule.steps
            evaluates = schedule.eval_every > 0 and (last or _due(schedule.eval_every, before, self.steps))
            better = evaluates and self._evaluate()
            due = better or _due(schedule.checkpoint_every, before, self.steps)
            if last or self.stop or (schedule.checkpoint_every and due):
                # Without checkpoints on the way, those at the stop and at the end are the best of what is kept.
                self._save(better or (schedule.eval_every > 0 and not schedule.checkpoint_every))
        self._logger.flush()

    def _advance(self) -> dict[str, float]:
        """One chunk of collecting and the updates that it completes; the row of metrics if one is due, else nothing."""
        began = time.perf_counter()
        windows, acted = self.collector.advance(self._chunk)
        collected = time.perf_counter()
        updated = False
        learning = self._roster.learning
        for name, algorithm in self._learners.items():
            pending = self._pending[name]
            if name not in learning:
                pending.clear()  # what it lives through when it learns again does not follow on this
                continue
            pending.append(windows[name])
            if len(pending) * self._chunk < algorithm.horizon:
                continue
            window = pending[0] if len(pending) == 1 else joined(pending)
            self._pending[name] = []
            progress = min(1.0, self.steps / self.schedule.steps)
            for key, value in algorithm.update(window, progress).items():
                self._unlogged.setdefault(self._named(key, name), []).append(value)
            updated = True
        self.steps += int(acted)
        self._spent["collect"] += collected - began
        self._spent["update"] += time.perf_counter() - collected
        self.updates += updated
        if not updated or self.updates % self.schedule.log_every:
            return {}
        return self._row()

    @property
    def unlogged(self) -> dict[str, float]:
        """What learners said of their updates since the last row, averaged."""
        return {name: sum(values) / len(values) for name, values in self._unlogged.items()}

    def _row(self) -> dict[str, float]:
        """What happened since the last row, averaged, with the episodes that ended and the time it took."""
        row = self.unlogged
        self._unlogged = {}
        finished = self.collector.statistics()
        if finished is not None:
            row = finished.summary("rollout", self.teams) | row
        if self.collector.dropped:
            row["rollout/dropped"] = float(self.collector.dropped)
        now = time.perf_counter()
        steps, then = self._marked
        took = max(now - then, 1e-9)
        self._marked = (self.steps, now)
        row["time/steps_per_s"] = (self.steps - steps) / took
        row |= {f"time/{name}_share": spent / took for name, spent in self._spent.items()}
        for guide in self._guides:
            row |= guide.metrics()
        self._spent = dict.fromkeys(self._spent, 0.0)
        return row

    def _evaluate(self) -> bool:
        """Evaluates and logs; whether what is judged was better than ever before."""
        evaluation = self.evaluator(self.steps, Waiting(self._progress.note, "evaluation", first_s=10.0))
        self._evaluated_at = self.steps
        self._log(evaluation.metrics())
        result = evaluation.return_mean(self._first) if self._judge is None else self._judge()
        if self._task != self.evaluator.task:  # what it was evaluated on before does not compare
            self._task, self.best = self.evaluator.task, -float("inf")
        better = result > self.best
        self.best = max(self.best, result)
        return better

    def _log(self, row: dict[str, float]) -> None:
        now = time.perf_counter()
        self.wall += now - self._clock
        self._clock = now
        row = {"steps": self.steps, "time/wall_s": self.wall, **row}
        self._logger.write(row)
        self._progress.update(self.steps, self.schedule.steps, row)
        for guide in self._guides:
            self._tell(guide.hear(self.steps, row))

    def _tell(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._progress.note(line)

    def _named(self, key: str, team: str) -> str:
        if len(self.algorithms) == 1:
            return key
        area, _, rest = key.partition("/")
        return f"{area}/{team}/{rest}"

    # -------------------------------------------------------------------------------------------------- checkpoints

    def _save(self, best: bool = False) -> None:
        self._logger.flush()
        metadata = self._metadata | {"steps": self.steps, "metrics_bytes": self._rows.position()}
        self._saved_at = self.steps
        self._store.save(self.steps, self.state_dict(), metadata, best=best, numbered=self.schedule.numbered)

    def state_dict(self) -> dict[str, Any]:
        """Everything that going on needs."""
        return {
            "algorithms": {name: algorithm.state_dict() for name, algorithm in self.algorithms.items()},
            "collector": self.collector.state_dict(),
            "horizons": self._horizons(),
            "pending": {name: [_plain(w) for w in windows] for name, windows in self._pending.items()},
            "unlogged": self._unlogged,
            "guides": {guide.name: guide.state_dict() for guide in self._guides},
            "steps": self.steps,
            "updates": self.updates,
            "best": self.best,
            "task": self._task,
            "wall": self.wall,
            "saved_at": self._saved_at,
            "evaluated_at": self._evaluated_at,
        }

    def _horizons(self) -> dict[str, int]:
        return {name: algorithm.horizon for name, algorithm in self._learners.items()}

    def _load_guides(self, found: Found) -> None:
        kept = found.state.get("guides", {})
        mine = {guide.name: guide for guide in self._guides}
        why = "" if kept.keys() == mine.keys() else f"expected {list(mine) or 'none'}, found {list(kept) or 'none'}"
        try:
            for name, guide in mine.items() if not why else ():
                guide.load_state_dict(kept[name])
        except (KeyError, RuntimeError, ValueError) as error:
            why = f"{type(error).__name__}: {one_line(error)}"
        if why:
            raise UserError(
                f"the checkpoint {found.path} does not fit the run's config.yaml in what guides the run ({why}); "
                "restore the config.yaml that the run was started with"
            )

    def load(self, found: Found) -> None:
        """Takes up a checkpoint. UserError names what differs if it does not fit."""
        state = found.state
        self._load_guides(found)  # first: they decide who acts, and with that what the collector holds
        mine = {name: algorithm.state_dict() for name, algorithm in self.algorithms.items()}
        differences = compare(
            _fixed(mine, self.collector.state_dict()), _fixed(state["algorithms"], state["collector"])
        )
        if state["horizons"] != self._horizons():
            differences.append(f"rows of a window: expected {self._horizons()}, found {state['horizons']}")
        if differences:
            raise UserError(
                f"the checkpoint {found.path} does not fit the run's config.yaml: {'; '.join(differences[:3])}; "
                "restore the config.yaml that the run was started with"
            )
        for name, algorithm in self.algorithms.items():
            algorithm.load_state_dict(state["algorithms"][name])
        self.collector.load_state_dict(state["collector"])
        if self.collector.env.spec.exact_resume:  # else what comes now does not follow on these rows
            device = self.collector.env.device
            self._pending = {name: [_window(w, device) for w in windows] for name, windows in state["pending"].items()}
        self._unlogged = state["unlogged"]
        self.steps, self.updates = state["steps"], state["updates"]
        self.best, self.wall = state["best"], state["wall"]
        self._task = state.get("task", self._task)
        self._saved_at, self._evaluated_at = state["saved_at"], state["evaluated_at"]
        self._rows.truncate(found.metadata["metrics_bytes"])


def _due(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]."""
    return every > 0 and before // every < now // every


def _fixed(algorithms: dict[str, Any], collector: dict[str, Any]) -> dict[str, Any]:
    """What has to have the same shapes for a checkpoint to fit: networks, memories, copies and agents."""
    teams = {
        name: {key: state[key] for key in ("policy", "critic", "carry") if key in state}
        for name, state in algorithms.items()
    }
    return {"teams": teams, "collector": {key: collector[key] for key in ("carry", "episodes")}}


def _plain(window: Window) -> dict[str, Any]:
    """A window as dicts of tensors; `_window` makes one of them again."""
    return vars(window) | {"action": {role: vars(action) for role, action in window.action.items()}}


def _window(plain: dict[str, Any], device: torch.device) -> Window:
    fields = tree_map(lambda x: x.to(device), plain)
    return Window(**fields | {"action": {role: Action(**action) for role, action in fields["action"].items()}})


def joined(windows: list[Window]) -> Window:
    """Consecutive windows as one: the row to look ahead of each is the first of the next."""
    rows = {"obs", "action_mask", "state", "alive", "first", "acted"}
    parts: dict[str, Any] = {}
    for name in vars(windows[0]):
        fields = [getattr(w, name) for w in windows]
        if name == "carry":
            parts[name] = fields[0]
        elif name in rows:
            cut = [tree_map(lambda x: x[:-1], f) for f in fields[:-1]] + [fields[-1]]
            parts[name] = tree_map(lambda *x: torch.cat(x), *cut)
        else:
            parts[name] = tree_map(lambda *x: torch.cat(x), *fields)
    return Window(**parts)

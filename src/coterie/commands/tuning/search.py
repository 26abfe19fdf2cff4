"""The loop of a search: starts trials, prunes them, records their results. Running it again continues it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from coterie.commands.core_sets import core_sets
from coterie.commands.sweep_processes import ForkGate
from coterie.commands.tuning.plan import TunePlan
from coterie.commands.tuning.study import Study, Trial, TrialRecord
from coterie.commands.tuning.trial_runs import TrialRuns
from coterie.core.errors import UserError
from coterie.core.process import interruptible
from coterie.core.terminal import print_line, print_message, print_progress
from coterie.core.threads import MAX_DEFAULT_THREADS, available_cores
from coterie.runs.tables import cell

_POLL_SECONDS = 0.1


@dataclass
class _Active:
    """A trial that runs. `ending` is the reason why its runs were stopped."""

    trial: Trial
    runs: TrialRuns
    ending: str = ""


@final
class Search:
    """Runs the trials of a plan.

    Args:
        plan: The plan.
        study: Its study.
        trials: Trials of the study after the search.
        jobs: Trials at the same time.
        timeout: Seconds after which the search stops as after Ctrl-C if trials are left; None for no limit.
        command: Program that runs Coterie.
        gate: Check for runs that are forked instead.
    """

    def __init__(
        self,
        plan: TunePlan,
        study: Study,
        *,
        trials: int,
        jobs: int = 1,
        timeout: float | None = None,
        command: Sequence[str] | None = (sys.executable, "-m", "coterie"),
        gate: ForkGate | None = None,
    ):
        self._plan, self._study, self._trials, self._jobs = plan, study, trials, jobs
        self._command, self._gate = command, gate
        self._until = None if timeout is None else time.monotonic() + timeout
        parallel = jobs * len(plan.seeds)
        is_default = plan.resolved.origins["threads"] == "default"
        self._threads = max(1, min(MAX_DEFAULT_THREADS, available_cores() // parallel)) if is_default else None
        self._free_cores = core_sets(self._threads, parallel)
        self._active: list[_Active] = []
        self._metric = plan.measured()
        self.timed_out = False

    def run(self) -> list[int]:
        """Runs until all trials have ended. Returns the numbers of signals that have stopped it.

        Raises:
            UserError: If trial 0 fails, because then the settings of all trials are likely wrong, or if the runs of an
                unfinished trial cannot be continued.
        """
        unfinished = self._study.unfinished()
        with interruptible(lambda: None) as received:
            try:
                self._loop(unfinished, received)
            except KeyboardInterrupt:
                print_message("runs killed. They continue from their last checkpoints when the search is run again")
            finally:
                for active in self._active:
                    active.runs.kill()
        return received

    def _loop(self, unfinished: list[Trial], received: Sequence[int]) -> None:
        stopped = False
        while True:
            stopping = bool(received) or self._is_late()
            while not stopping and len(self._active) < self._jobs:
                if unfinished:
                    self._start(unfinished.pop(0), continues=True)
                elif len(self._study.records) < self._trials:
                    self._start(self._study.ask())
                else:
                    break
            if not self._active:
                self.timed_out = self._is_late() and self._has_rest()
                return
            if stopping and not stopped:
                stopped = True
                reason = "" if received else "the time is over, "
                print_line(f"{reason}stopping after checkpoints (press Ctrl-C again to kill the runs)", sys.stderr)
                for active in self._active:
                    active.runs.stop()
            for active in list(self._active):
                self._poll(active)
            self._show()
            time.sleep(_POLL_SECONDS)

    def _is_late(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def _has_rest(self) -> bool:
        """True if trials of the study are not started or not finished."""
        records = self._study.records
        return len(records) < self._trials or any(record.state == "running" for record in records)

    def _start(self, trial: Trial, *, continues: bool = False) -> None:
        settings = [f"{key}={text}" for key, text in trial.settings.items()]
        shown = " ".join(f"{key}={cell(_number(text))}" for key, text in trial.settings.items())
        verb = "continues" if continues else "started"
        print_line(f"trial {trial.number} {verb}: {shown or 'the default settings'}", sys.stderr)
        folder = self._plan.folder / f"trial{trial.number:03}"
        words = [*self._plan.words, *settings]
        try:
            runs = TrialRuns(folder, words, self._plan.config_file, seeds=self._plan.seeds, metric=self._metric)
            runs.start(self._choose_command, threads=self._threads, cores=self._take_cores)
        except UserError as error:
            if continues:  # not a result of its settings: runs of a killed search may still save their checkpoints
                raise UserError(f"trial {trial.number} cannot continue: {error}") from error
            self._fail(trial, str(error), is_mistake=True)
            return
        self._active.append(_Active(trial, runs))

    def _choose_command(self) -> Sequence[str] | None:
        return None if self._gate is not None and self._gate.is_safe() else self._command

    def _take_cores(self) -> frozenset[int]:
        return self._free_cores.pop() if self._free_cores else frozenset()

    def _poll(self, active: _Active) -> None:
        """Reads what the runs of a trial have done, prunes it, and records its end."""
        trial, runs = active.trial, active.runs
        self._free_cores += runs.poll()
        if not active.ending:
            # Also if the runs have ended meanwhile, so that the decision does not depend on time.
            for steps, value in runs.evaluations():
                if trial.report(steps, value) and steps < runs.steps:
                    active.ending = "pruned"
                    break
            if runs.failure:
                active.ending = "failed"
            if active.ending:
                runs.stop()
        if not runs.has_ended:
            return
        self._active.remove(active)
        if runs.failure:
            self._fail(trial, runs.failure, runs, is_mistake=runs.failed_by_mistake)
        elif active.ending == "pruned":
            self._print(self._study.tell(trial, "pruned", runs=runs.paths))
        elif not runs.was_interrupted:  # otherwise it continues when the search is run again
            self._finish(trial, runs)

    def _finish(self, trial: Trial, runs: TrialRuns) -> None:
        try:
            values = runs.final_values()
        except UserError as error:
            self._fail(trial, str(error), runs, is_mistake=True)
            return
        self._print(self._study.tell(trial, "finished", values=values, runs=runs.paths))

    def _fail(self, trial: Trial, reason: str, runs: TrialRuns | None = None, *, is_mistake: bool) -> None:
        """Records a failure. A user's mistake in trial 0 ends the study, because all trials would repeat it."""
        reason = " ".join(reason.split())
        if trial.number == 0 and is_mistake:
            self._study.discard()
            raise UserError(f"trial 0, which has the default settings: {reason}")
        self._print(self._study.tell(trial, "failed", reason=reason, runs=runs.paths if runs is not None else ()))

    def _print(self, record: TrialRecord) -> None:
        if record.state == "failed":
            text = f"failed: {record.reason}"
        elif record.state == "pruned" and record.reached is not None:
            text = f"pruned at {record.reached[0]:,} steps with {cell(record.reached[1])}"
        else:
            text = f"finished with {cell(record.value)}"
        best = best_record(self._study.records, self._plan.minimize)
        more = "" if best is None else f"; best: trial {best.number} with {cell(best.value)}"
        print_line(f"trial {record.number} {text}{more}", sys.stderr)

    def _show(self) -> None:
        """Shows on a terminal which trials run."""
        done = [
            f"trial {a.trial.number}: {max((s for s, _ in a.runs.evaluations()), default=0):,}" for a in self._active
        ]
        if done:
            print_progress(f"{', '.join(done)} of {self._active[0].runs.steps:,} steps")


def best_record(records: Sequence[TrialRecord], minimize: bool) -> TrialRecord | None:
    """Returns the finished trial with the best mean, the first of equal ones; None without any."""
    finished = [record for record in records if record.state == "finished"]
    sign = -1 if minimize else 1
    return max(finished, key=lambda record: (sign * record.value, -record.number), default=None)


def _number(text: str) -> float | str:
    try:
        return text if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return text

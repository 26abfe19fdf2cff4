"""`coterie tune`: searches for better settings with Optuna, in a folder that the same command continues.

A trial is one run per seed, all at the same time, so that they reach the same steps together.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import optuna
from optuna.trial import TrialState

from coterie.core.errors import UserError
from coterie.core.files import disk_error
from coterie.core.process import MAX_DEFAULT_THREADS, available_cores, interruptible
from coterie.core.terminal import print_json, print_line, print_message, print_progress
from coterie.core.text import coterie_command
from coterie.runs.evaluations import read_evaluations
from coterie.runs.folder import RunFolder
from coterie.runs.tables import cell
from coterie.sweeps import sweep
from coterie.sweeps.job_processes import ForkGate, Running, wait_for_output
from coterie.sweeps.job_runs import Found, find, settings_of
from coterie.sweeps.sweep import Job, JobStarter, out_word
from coterie.sweeps.tuning.report import print_report, report_of, write_report
from coterie.sweeps.tuning.space import range_text
from coterie.sweeps.tuning.study import (
    STARTUP_TRIALS,
    TunePlan,
    ask,
    checked,
    open_study,
    ranking,
    settings_of_trial,
    started,
    unfinished,
)

_POLL_SECONDS = 0.1
_USER_ERROR = 2
"""Exit code of a run after a user's mistake."""


def tune(
    plan: TunePlan,
    *,
    trials: int,
    jobs: int = 1,
    timeout: float | None = None,
    prunes: bool = True,
    json: bool = False,
    command: Sequence[str] = (sys.executable, "-m", "coterie"),
    gate: ForkGate | None = None,
) -> int:
    """Runs a search until it has a number of trials, and reports it.

    Args:
        plan: The search.
        trials: Trials of the study, including those from before.
        jobs: Trials at the same time.
        timeout: Seconds after which the search stops as after Ctrl-C if trials are left. It can be continued.
        prunes: False to finish all trials.
        json: True to print JSON to stdout instead of tables.
        command: Program that runs Coterie.
        gate: Check for runs that are forked instead, after `ForkGate.preload`.

    Returns:
        0, 1 if no trial has finished, or 130 after an interruption.

    Raises:
        UserError: If the folder contains a study of other settings or is in use, if trial 0 fails by a user's mistake,
            which all trials would repeat, or if the runs of an unfinished trial cannot be continued.
    """
    folder = plan.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error("the folder", folder, error) from error
    lock = RunFolder(folder)
    lock.lock()
    try:
        study = open_study(plan, prunes=prunes)
        _announce(plan, len(started(study)), trials, prunes=prunes)
        num_parallel = jobs * len(plan.seeds)
        is_default = plan.resolved.origins["threads"] == "default"
        threads = max(1, min(MAX_DEFAULT_THREADS, available_cores() // num_parallel)) if is_default else None
        starter = JobStarter(plan.config_file, threads=threads, num_parallel=num_parallel, command=command, gate=gate)
        until = math.inf if timeout is None else time.monotonic() + timeout
        stopped_by = _Search(plan, study, starter, trials=trials, jobs=jobs, until=until).run()
        return _report(plan, study, trials, stopped_by=stopped_by, json=json)
    finally:
        lock.close()


def _announce(plan: TunePlan, count: int, trials: int, *, prunes: bool) -> None:
    """Prints what is searched, on which seeds, and how."""
    values = settings_of(plan.resolved.config)
    lines = [f"study: {plan.folder}/study.db, {count} of {trials} trials so far"]
    lines += [f"searches {key} in {range_text(d)}, default {cell(values.get(key))}" for key, d in plan.space.items()]
    name = "the mean return" if plan.metric == "auto" else plan.metric.removeprefix("-")
    wanted = "lowest" if plan.minimize else "highest"
    lines.append(
        f"wanted: the {wanted} value of {name} in the last evaluation, mean over seeds "
        f"{', '.join(map(str, plan.seeds))}. Report results on other seeds"
    )
    if prunes:
        lines.append(
            f"trials worse than the median of at least {STARTUP_TRIALS} finished ones at the same steps are pruned"
        )
    for line in lines:
        print_line(line, sys.stderr)


def _report(plan: TunePlan, study: optuna.Study, trials: int, *, stopped_by: str, json: bool) -> int:
    """Writes and prints the report. Returns the exit code."""
    files = write_report(plan, study)
    if json:
        print_json(report_of(plan, study))
    else:
        print_report(plan, study)
        for file in files:
            print_line(str(file))
    if stopped_by:
        words = [*sys.argv[1:]] if sys.argv[1:2] == ["tune"] else ["tune", *plan.words]
        print_line(f"{stopped_by}. Continue with: {coterie_command(*words)}", sys.stderr)
    elif (count := len(started(study))) > trials:
        print_line(f"the study has {count} trials. For more: --trials {2 * trials}", sys.stderr)
    if stopped_by == _INTERRUPTION:
        return sweep.INTERRUPTED
    return 0 if files or stopped_by else 1


# --------------------------------------------------------------------------------------------------------------- trials


@final
class TrialRuns:
    """A trial that runs.

    Args:
        plan: The search.
        trial: Optuna's trial.
        settings: Its settings, as text of the command line.

    Attributes:
        running: Processes of the runs that have not ended, by seed.
        reached: Evaluations that all seeds have finished: nominal environment steps, and the mean of the metric. Steps
            are multiples of the interval between evaluations, because rollouts may end at others.
        is_pruned: True if the trial was worse than others.
        is_interrupted: True if a run was stopped by a signal.
        failure: One line about the first run that failed; empty if none did.
        is_mistake: True if that run has ended with the error of a user.

    Raises:
        UserError: If the settings are invalid together.
    """

    def __init__(self, plan: TunePlan, trial: optuna.Trial, settings: Mapping[str, str]):
        self._plan, self.trial = plan, trial
        self._jobs: dict[int, tuple[Job, Found]] = {}
        for seed in plan.seeds:
            out = plan.trial_folder(trial.number) / f"seed{seed}"
            words = [*plan.words, *(f"{key}={text}" for key, text in settings.items()), f"seed={seed}", out_word(out)]
            (job,) = sweep.plan(words, plan.config_file)
            self._jobs[seed] = job, find(job.config, job.out, named=True)
        self.running: dict[int, Running] = {}
        self.reached: list[tuple[int, float]] = []
        self._sizes: list[int] = []
        last = trial.study.get_trials(deepcopy=False)[trial.number].last_step
        self._compared = -1 if last is None else last - 1  # a search may be killed before it stops a pruned trial
        self.is_pruned = self.is_interrupted = self.is_mistake = False
        self.failure = ""

    def start(self, starter: JobStarter) -> None:
        """Starts the runs that are not finished."""
        for seed, (job, found) in self._jobs.items():
            if found.state != "finished":
                self.running[seed] = starter.start(job, found)

    def poll(self, starter: JobStarter) -> None:
        """Reads which runs have ended, and compares the trial with others. Stops its runs if it is pruned or fails."""
        was_ending = self.is_pruned or self.failure != ""
        for seed, running in list(self.running.items()):
            if running.process.exit_code() is not None:
                del self.running[seed]
                code = starter.end(running)
                self.is_interrupted |= code in sweep.STOPPED
                if code not in (0, *sweep.STOPPED) and not self.failure:
                    self.failure = f"seed {seed}: {running.error or f'exit code {code}'}"
                    self.is_mistake = code == _USER_ERROR
        if was_ending:
            return
        self.compare()  # also if the runs have ended meanwhile, so that the decision does not depend on time
        if self.is_pruned or self.failure:
            for running in self.running.values():
                running.interrupt()

    def compare(self) -> None:
        """Reports new evaluations to Optuna. The trial is pruned if it is worse than others at one; never trial 0."""
        logs = [self._log(seed) for seed in self._jobs]
        sizes = [log.stat().st_size if log.is_file() else 0 for log in logs]
        if sizes == self._sizes:
            return
        self._sizes, every = sizes, self._plan.eval_every
        curves: list[dict[int, float]] = []
        for log in logs:
            values = [(int(row["steps"]) // every, self._value(row)) for row in read_evaluations(log)]
            # The last evaluation may follow soon after another one, whose value is not replaced.
            curves.append({k: value for k, value in reversed(values) if math.isfinite(value)})
        shared = sorted(set.intersection(*map(set, curves)) - {0})  # without that before the first update
        self.reached = [(k * every, sum(curve[k] for curve in curves) / len(curves)) for k in shared]
        for steps, value in self.reached:
            if steps <= self._compared or self.is_pruned:
                continue
            self._compared = steps
            with checked(self._plan):  # one that a killed search has reported is ignored with a warning
                self.trial.report(value, steps)
                is_worse = self.trial.number > 0 and self.trial.should_prune()
            self.is_pruned = is_worse and steps < self._plan.resolved.config.steps

    def final_values(self) -> list[float]:
        """Returns the value of the metric in the last evaluation of each seed.

        Raises:
            UserError: If an evaluation does not have the metric, or a value is not finite.
        """
        values = []
        for seed in self._jobs:
            row = (read_evaluations(self._log(seed)) or [{}])[-1]
            values.append(self._value(row))
            if not math.isfinite(values[-1]):
                there = ", ".join(key for key in row if key.startswith("eval/")) or "none"
                raise UserError(f"seed {seed}: no finite value of {self._plan.metric} at the end, but {there}")
        return values

    def _log(self, seed: int) -> Path:
        job, found = self._jobs[seed]
        return RunFolder(found.path or job.out).metrics_path

    def _value(self, row: Mapping[str, Any]) -> float:
        """Returns the metric in the log entry of an evaluation; NaN if it has none."""
        value = next((row[key] for key in self._plan.metric_keys(row) if key in row), None)
        return math.nan if value is None else float(value)


# --------------------------------------------------------------------------------------------------------------- search

_INTERRUPTION, _TIME = "interrupted", "the time is over"
"""Reasons for which a search stops."""


@final
class _Search:
    """The loop of a search: starts trials, prunes them, and records their results.

    Args:
        plan: The plan.
        study: Its study.
        starter: Starts its runs.
        trials, jobs: As in `tune`.
        until: Monotonic time at which the search stops.
    """

    def __init__(
        self, plan: TunePlan, study: optuna.Study, starter: JobStarter, *, trials: int, jobs: int, until: float
    ):
        self._plan, self._study, self._starter = plan, study, starter
        self._trials, self._jobs, self._until = trials, jobs, until
        self._active: list[TrialRuns] = []

    def run(self) -> str:
        """Runs until all trials have ended. Returns the reason if it was stopped before; otherwise an empty string."""
        with interruptible(lambda: None) as received:
            try:
                self._loop(received)
            except KeyboardInterrupt:
                print_message("runs killed. They continue from their last checkpoints when the search is run again")
            finally:
                for running in self._running:
                    running.kill()
        if received:
            return _INTERRUPTION
        trials = started(self._study)
        has_rest = len(trials) < self._trials or any(trial.state == TrialState.RUNNING for trial in trials)
        return _TIME if has_rest and time.monotonic() >= self._until else ""

    @property
    def _running(self) -> list[Running]:
        return [running for runs in self._active for running in runs.running.values()]

    def _loop(self, received: Sequence[int]) -> None:
        waiting = unfinished(self._plan, self._study)
        stopped = False
        while True:
            stopping = bool(received) or time.monotonic() >= self._until
            while not stopping and len(self._active) < self._jobs:
                if waiting:
                    self._start(waiting.pop(0), continues=True)
                elif len(started(self._study)) < self._trials:
                    self._start(ask(self._plan, self._study))
                else:
                    break
            if not self._active:
                return
            if stopping and not stopped:
                stopped = True
                reason = "" if received else f"{_TIME}, "
                print_line(f"{reason}stopping after checkpoints (press Ctrl-C again to kill the runs)", sys.stderr)
                for running in self._running:
                    running.interrupt()
            wait_for_output(self._running, _POLL_SECONDS)
            for runs in list(self._active):
                self._poll(runs)
            if self._active:
                reached = [(runs.trial.number, runs.reached[-1][0] if runs.reached else 0) for runs in self._active]
                text = ", ".join(f"trial {number}: {steps:,}" for number, steps in reached)
                print_progress(f"{text} of {self._plan.resolved.config.steps:,} steps")

    def _start(self, trial: optuna.Trial, *, continues: bool = False) -> None:
        settings = settings_of_trial(self._plan, trial)
        values = {key: trial.params[key] for key in settings}
        shown = " ".join(f"{key}={cell(x) if isinstance(x, float) else x}" for key, x in values.items())
        verb = "continues" if continues else "started"
        print_line(f"trial {trial.number} {verb}: {shown or 'the default settings'}", sys.stderr)
        try:
            runs = TrialRuns(self._plan, trial, settings)
            runs.start(self._starter)
        except UserError as error:
            if continues:  # not a result of its settings: runs of a killed search may still save their checkpoints
                raise UserError(f"trial {trial.number} cannot continue: {error}") from error
            self._fail(trial, str(error), is_mistake=True)
            return
        self._active.append(runs)

    def _poll(self, runs: TrialRuns) -> None:
        """Reads what the runs of a trial have done, prunes it, and records its end."""
        trial = runs.trial
        runs.poll(self._starter)
        if runs.running:
            return
        self._active.remove(runs)
        if runs.failure:
            self._fail(trial, runs.failure, is_mistake=runs.is_mistake)
        elif runs.is_pruned:
            self._tell(trial, TrialState.PRUNED)
        elif not runs.is_interrupted:  # otherwise it continues when the search is run again
            try:
                values = runs.final_values()
            except UserError as error:
                self._fail(trial, str(error), is_mistake=True)
                return
            self._tell(trial, TrialState.COMPLETE, values=values)

    def _fail(self, trial: optuna.Trial, reason: str, *, is_mistake: bool) -> None:
        """Records a failure. A user's mistake in trial 0 ends the study, because all trials would repeat it."""
        reason = " ".join(reason.split())
        if trial.number == 0 and is_mistake:
            if all(other.state == TrialState.RUNNING for other in started(self._study)):
                (self._plan.folder / "study.db").unlink(missing_ok=True)
            raise UserError(f"trial 0, which has the default settings: {reason}")
        self._tell(trial, TrialState.FAIL, reason=reason)

    def _tell(self, trial: optuna.Trial, state: TrialState, *, values: Sequence[float] = (), reason: str = "") -> None:
        """Records the end of a trial with its values by seed or the reason of its failure, and prints it."""
        with checked(self._plan):
            for name, value in (("values", list(values)), ("reason", reason)):
                trial.set_user_attr(name, value)
            frozen = self._study.tell(trial, sum(values) / len(values) if values else None, state)
        if state == TrialState.FAIL:
            text = f"failed: {reason}"
        elif state == TrialState.PRUNED:
            steps = max(frozen.intermediate_values)
            text = f"pruned at {steps:,} steps with {cell(frozen.intermediate_values[steps])}"
        else:
            text = f"finished with {cell(frozen.value)}"
        ranked = ranking(self._study)
        more = f"; best: trial {ranked[0].number} with {cell(ranked[0].value)}" if ranked else ""
        print_line(f"trial {trial.number} {text}{more}", sys.stderr)

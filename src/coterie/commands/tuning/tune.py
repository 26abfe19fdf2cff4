"""`coterie tune`: searches for better settings with Optuna, in a folder that the same command continues."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from coterie.commands.sweep_processes import ForkGate
from coterie.commands.sweep_runs import settings_of
from coterie.commands.tuning.plan import TunePlan
from coterie.commands.tuning.report import TuneReport
from coterie.commands.tuning.search import Search
from coterie.commands.tuning.study import STARTUP_TRIALS, Study, import_optuna
from coterie.core.files import disk_error
from coterie.core.json_output import print_json
from coterie.core.shell import coterie_command
from coterie.core.terminal import print_line
from coterie.runs.folder import RunFolder
from coterie.runs.tables import cell

_INTERRUPTED = 130


def preload() -> ForkGate:
    """Imports Optuna and what runs need, so that runs can be forked. UserError if Optuna is not installed."""
    import_optuna()
    gate = ForkGate()
    gate.preload()
    return gate


def tune(
    plan: TunePlan,
    *,
    trials: int,
    jobs: int = 1,
    timeout: float | None = None,
    prunes: bool = True,
    json: bool = False,
    command: Sequence[str] | None = (sys.executable, "-m", "coterie"),
    gate: ForkGate | None = None,
) -> int:
    """Runs a search until it has a number of trials, and reports it.

    Args:
        plan: The search.
        trials: Trials of the study, including those from before.
        jobs: Trials at the same time.
        timeout: Seconds after which the search stops. It can be continued.
        prunes: False to finish all trials.
        json: True to print JSON to stdout instead of tables.
        command: Program that runs Coterie.
        gate: Check for runs that are forked instead.

    Returns:
        0, 1 if no trial has finished, or 130 after an interruption.

    Raises:
        UserError: If the folder contains a study of other settings or is in use, or if the default settings fail.
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
        _announce(plan, study, trials, prunes=prunes)
        search = Search(plan, study, trials=trials, jobs=jobs, timeout=timeout, command=command, gate=gate)
        received = search.run()
        return _report(plan, study, trials, received=received, timed_out=search.timed_out, json=json)
    finally:
        lock.close()


def open_study(plan: TunePlan, *, prunes: bool = True) -> Study:
    """Creates or opens the study of a plan. UserError if its folder contains a study of other settings."""
    return Study(
        plan.folder,
        space=plan.space,
        identity=plan.identity(),
        defaults=settings_of(plan.resolved.config),
        minimize=plan.minimize,
        steps=plan.resolved.config.steps,
        seed=plan.resolved.config.seed,
        prunes=prunes,
    )


def _announce(plan: TunePlan, study: Study, trials: int, *, prunes: bool) -> None:
    """Prints what is searched, on which seeds, and how."""
    values = settings_of(plan.resolved.config)
    lines = [f"study: {plan.folder}/study.db, {len(study.records)} of {trials} trials so far"]
    lines += [f"searches {key} in {d.text}, default {cell(values.get(key))}" for key, d in plan.space.items()]
    name = "the mean return" if plan.metric == "auto" else plan.metric
    wanted = "lowest" if plan.minimize else "highest"
    lines.append(
        f"wanted: the {wanted} value of {name.removeprefix('-')} in the last evaluation, mean over seeds "
        f"{', '.join(map(str, plan.seeds))}. Report results on other seeds"
    )
    if prunes:
        lines.append(
            f"trials worse than the median of at least {STARTUP_TRIALS} finished ones at the same steps are pruned"
        )
    for line in lines:
        print_line(line, sys.stderr)


def _report(plan: TunePlan, study: Study, trials: int, *, received: Sequence[int], timed_out: bool, json: bool) -> int:
    """Prints and writes the report. Returns the exit code."""
    report = TuneReport.of(plan, study)
    files = report.write()
    if json:
        print_json(report.to_dict())
    else:
        report.print()
        for file in files:
            print_line(str(file))
    if received or timed_out:
        reason = "interrupted" if received else "the time is over"
        words = [*sys.argv[1:]] if sys.argv[1:2] == ["tune"] else ["tune", *plan.words]
        print_line(f"{reason}. Continue with: {coterie_command(*words)}", sys.stderr)
    elif len(study.records) > trials:
        print_line(f"the study has {len(study.records)} trials. For more: --trials {2 * trials}", sys.stderr)
    if received:
        return _INTERRUPTED
    return 0 if files or timed_out else 1

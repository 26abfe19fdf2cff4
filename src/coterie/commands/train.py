"""Training and resuming runs. Errors before the first step leave nothing behind."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import torch
from rich.console import Console

from coterie.algos.algorithm import Algorithm
from coterie.assembly import rank_processes
from coterie.assembly.arithmetic import configure_arithmetic
from coterie.assembly.build import best_notes, build, graph_notes
from coterie.assembly.composition import base_lines
from coterie.assembly.environment import recorded_agents, require_recorded_agents, with_agent_order
from coterie.assembly.idle_settings import idle_lines
from coterie.assembly.learners import with_derived
from coterie.assembly.local_ranks import local_result
from coterie.assembly.resolve import Resolved, change, load_resolved, saved_settings, signature_of
from coterie.assembly.result import RunResult
from coterie.assembly.warm_start import WarmStart, agents_of_init, warm_start
from coterie.checks.environment.first_steps import FirstSteps
from coterie.commands.diagnose import worst_findings
from coterie.commands.resume_notes import (
    device_notes,
    env_changes,
    rank_notes,
    resume_kernels,
    resume_notes,
    resume_threads,
)
from coterie.commands.run_manifest import new_manifest, teams_with_roles, write_reference_returns
from coterie.commands.training_videos import TrainingVideos, wants_videos
from coterie.config import user_code
from coterie.config.provenance import to_yaml
from coterie.config.schema import RunConfig
from coterie.config.sources import flatten
from coterie.core.errors import (
    ContractError,
    EnvironmentFailedError,
    NonFiniteError,
    UserCodeError,
    UserError,
    WorkersFailedError,
)
from coterie.core.files import disk_error, write_text
from coterie.core.process import (
    cleaned_up_on_stop,
    configure_process,
    interruptible,
    measured_threads,
    rare_garbage_collection,
    signal_name,
)
from coterie.core.spinning import spinning_note
from coterie.core.teams import describe_teams, image_notes
from coterie.core.terminal import in_notebook, message_stream, print_line, print_message
from coterie.core.text import coterie_command, shell_word
from coterie.envs import registry
from coterie.envs.contract.vector import VectorEnv
from coterie.kernels import switch
from coterie.ranks.ranks import Ranks
from coterie.runs import loggers, trackers
from coterie.runs.checkpoints import Checkpoints, LoadedCheckpoint, decoding
from coterie.runs.evaluations import RETURN_CONVENTION
from coterie.runs.folder import RunFolder
from coterie.runs.plots import draw_curves
from coterie.runs.progress import Progress, progress
from coterie.runs.snapshots import SNAPSHOT, PolicySnapshots
from coterie.runs.summary import Summary, no_gradient_step_warnings, no_return_warnings, summarize
from coterie.training.callback import Callback, HookCaller
from coterie.training.curriculum import lesson_of_log
from coterie.training.run_parts import Outputs, RunComponents, Schedule
from coterie.training.trainer import Trainer

_UNCOMPARED = ("out", "progress", "log.", "checkpoint.", "workers.", "threads", "rank")
"""Settings without effect on results, which TensorBoard does not compare."""

_SIGNAL_EXIT_CODE = 128
"""Exit code of a process that a signal ended, minus the number of the signal."""


@dataclass(frozen=True)
class _Session:
    """One session of a run, from its start or from a checkpoint, to its end or an interruption."""

    config: RunConfig
    folder: RunFolder
    components: RunComponents
    kernels: switch.Choice
    checkpoint: LoadedCheckpoint | None = None
    warm_start: WarmStart | None = None
    hooks: Sequence[Callback] = ()
    notes: tuple[str, ...] = ()
    """Lines to show before the training continues."""
    derived: tuple[str, ...] = ()
    """Lines on settings of a new run that follow from its algorithm, its environment and its length."""
    idle: tuple[str, ...] = ()
    """Lines on settings of the user without effect."""


def train(resolved: Resolved, hooks: Sequence[Callback] = (), *, overwrite: bool = False) -> RunResult:
    """Trains a new run, which calls `hooks`.

    Args:
        resolved: Its settings.
        hooks: Functions that the run calls.
        overwrite: Replace the run in the folder `out`.

    Raises:
        UserError: If a setting is invalid.
    """
    if overwrite and resolved.config.out is None:
        raise UserError("overwrite=True: without out=, every run has a new folder. Set out, or leave overwrite out.")
    if rank_processes.starts_local_ranks(resolved.config):
        if overwrite and resolved.config.out is not None:
            RunFolder.clear_run(resolved.config.out)
        return local_result(resolved.config, ["train"], hooks, resolved_yaml=to_yaml(resolved))
    resolved = rank_processes.with_launched_ranks(resolved)
    config = resolved.config
    with cleaned_up_on_stop() as signals, rank_processes.joined(config) as ranks:
        interrupted = rank_processes.run_to_continue(config, ranks)
        if interrupted is not None:
            return _resume(interrupted, resolved, (), hooks, ranks)
        threads = measured_threads(config.threads)
        configure_process(threads)
        kernels = configure_arithmetic(config)
        components = build(with_agent_order(config, agents_of_init(config.init, config.env)), ranks)
        resolved, derived = with_derived(resolved, components)
        config = resolved.config
        now = datetime.now().astimezone()
        with contextlib.closing(components), rank_processes.own_out(config, ranks) as out:
            warm = warm_start(config, components.algorithms)
            folder = RunFolder.create(
                out, config.env.name, config.algo.name, seed=config.seed, now=now, overwrite=overwrite
            )
            try:
                write_text(folder.config_path, to_yaml(resolved))
                folder.write_manifest(
                    new_manifest(config, folder, components, threads=threads, now=now, kernels=kernels, warm=warm)
                )
                rank_processes.announce_run(folder.path, ranks)
                session = _Session(config, folder, components, kernels, warm_start=warm, hooks=hooks)
                return _run(
                    replace(
                        session,
                        derived=(*base_lines(config, resolved.origins), *derived),
                        idle=_idle_lines(resolved, components),
                    )
                )
            except ContractError:
                folder.remove_results()
                raise
            finally:
                folder.remove_if_empty()  # while it is locked: a sweep that starts again waits for it
                folder.close()
                if signals and ranks.is_first:
                    _show_stop(signals[0], folder)


def _idle_lines(resolved: Resolved, components: RunComponents) -> tuple[str, ...]:
    policies = {name: algorithm.policy for name, algorithm in components.algorithms.items()}
    return tuple(idle_lines(resolved, components.teams, policies))


def _show_stop(number: int, folder: RunFolder) -> None:
    """Prints what is left of a new run that a signal stopped outside of its training loop."""
    run = folder.path
    if not run.exists() or not any(run.iterdir()):
        left = "before the first checkpoint. Nothing of it is kept."
    elif Checkpoints(folder.checkpoints_path).all():
        left = f"after its last checkpoint. Resume with: {coterie_command('resume', run)}"
    else:
        left = f"before the first checkpoint. Its folder is kept: {shell_word(run)}"
    print_message(f"{signal_name(number)}: the run was stopped {left}")


def resume(run: Path, overrides: Sequence[str], hooks: Sequence[Callback] = ()) -> RunResult:
    """Continues a run from its last checkpoint, or from the start if it has none.

    Args:
        run: Folder of the run.
        overrides: Settings to change.
        hooks: Functions that the run calls.
    """
    resolved = load_resolved(RunFolder.open(run).config_path)
    if overrides:
        resolved = change(resolved, overrides)
    if rank_processes.starts_local_ranks(resolved.config):
        return local_result(resolved.config, ["resume", str(run), *overrides], hooks)
    resolved = rank_processes.with_launched_ranks(resolved, is_new=False)
    with rank_processes.joined(resolved.config) as ranks:
        return _resume(run, resolved, overrides, hooks, ranks)


def _resume(
    run: Path, resolved: Resolved, overrides: Sequence[str], hooks: Sequence[Callback], ranks: Ranks
) -> RunResult:
    """Continues a run on one or several ranks. Rank 0 reads and writes its folder, the others have a temporary one."""
    config = resolved.config
    with rank_processes.own_folder(run, resolved, ranks) as folder:
        threads, notes = resume_threads(folder, config.threads)
        configure_process(threads)
        folder.lock()
        try:
            found = rank_processes.latest_checkpoint(folder, ranks)
            if found is not None and ranks.is_first:
                saved = load_resolved(folder.config_path)
                notes += resume_notes(folder, saved.config, config.steps, found) + rank_notes(found, ranks)
                notes += device_notes(folder, config.device, found)
            kernels, lines = resume_kernels(folder, config)
            notes += lines
            manifest = folder.read_manifest()
            arranged = with_agent_order(config, recorded_agents(manifest))
            with contextlib.closing(build(arranged, ranks)) as components:
                require_recorded_agents(manifest, config.env.name, components.teams)
                # `torchrun` restarts ranks with the words of the command, which lack what the run has derived.
                resolved, _ = with_derived(resolved, components)
                config = resolved.config
                warm = None
                if found is None:  # it starts again
                    warm = warm_start(config, components.algorithms, folder.read_manifest().get("init"))
                if overrides or ranks.size > 1:
                    _rewrite(folder, resolved)
                session = _Session(config, folder, components, kernels, found, warm, hooks, tuple(notes))
                return _run(replace(session, idle=_idle_lines(resolved, components)))
        finally:
            folder.close()


def _rewrite(folder: RunFolder, resolved: Resolved) -> None:
    """Replaces the `config.yaml` of a run. A run that its user has signed stays signed with changed addresses."""
    manifest = folder.read_manifest()
    before = signature_of(folder.config_path)
    is_own = before is not None and manifest.get("signature") == before
    write_text(folder.config_path, to_yaml(resolved))
    after = signature_of(folder.config_path)
    if is_own and after != before:
        folder.write_manifest(manifest | {"signature": after})


# ------------------------------------------------------------------------------------------------------------ session


def _run(session: _Session) -> RunResult:
    """Runs the training loop with logs, progress display and signal handlers, then draws curves and the summary."""
    config, folder, found = session.config, session.folder, session.checkpoint
    display = progress(
        config.progress if session.components.ranks.is_first else "off",
        title=f"{config.algo.name} on {config.env.name}, seed {config.seed}",
        start=0 if found is None else found.steps,
    )
    metrics_file = loggers.JsonlLogger(folder.metrics_path)
    logger: loggers.Logger | None = None
    signals: list[int] = []
    trainer: Trainer | None = None
    try:
        noted: set[str] = set()
        watch = None if found is not None else _first_steps(session, session.components.evaluator.env, noted)
        write_reference_returns(config, folder, session.components, display, watch)
        trainer = _make_trainer(session, metrics_file, display)
        if session.components.ranks.is_first:
            _show_notes(session, display)
        if found is not None:
            with decoding(found), user_code.reported():
                trainer.load(found)
            if session.components.ranks.is_first:
                _show_resume_notes(session, display)
        else:
            metrics_file.truncate(0)
            session.components.collector.watch = _first_steps(session, session.components.collector.env, noted)
        logger = metrics_file
        if session.components.ranks.is_first:
            logger = _make_logger(session, metrics_file)
            if wants_videos(config):
                videos = TrainingVideos(config, folder.videos_path, trainer.algorithms, logger)
                trainer.hooks.callbacks = (*trainer.hooks.callbacks, videos)
        trainer.log_to(logger)
        with (
            interruptible(trainer.request_stop) as signals,
            display,
            _disk_errors(folder),
            user_code.reported(),
            rare_garbage_collection(),
        ):
            trainer.run()
            if config.log.wandb:
                logger.summarize(_summarize(session, trainer))
    except (NonFiniteError, WorkersFailedError, EnvironmentFailedError, UserCodeError) as error:
        if isinstance(error.__cause__, UserError) and found is None and (trainer is None or not trainer.steps):
            raise ContractError(str(error)) from error  # the environment returned what cannot be learned from
        if not session.components.ranks.is_first:
            raise
        saved = Checkpoints(folder.checkpoints_path).all()
        hint = f"The last good checkpoint is in {folder.checkpoints_path}" if saved else "There is no checkpoint yet"
        raise type(error)(f"{str(error).removesuffix('.')}. {hint}.") from error
    finally:
        display.close()
        _close(logger or metrics_file, folder)
    return _finish(session, trainer, signals)


def _make_trainer(session: _Session, metrics_file: loggers.JsonlLogger, display: Progress) -> Trainer:
    config = session.config
    checkpoints = session.folder.checkpoints_path
    metadata = {"env": config.env.name, "algo": config.algo.name, "config": saved_settings(config)}
    metadata["device"] = str(session.components.collector.env.device)
    exchange = rank_processes.exchange_of(session.components.ranks)
    outputs = Outputs(
        metrics_file=metrics_file,
        logger=loggers.NullLogger(),
        checkpoints=Checkpoints(checkpoints),
        progress=display,
        metadata=metadata if exchange is None else metadata | {"exchange": exchange},
        snapshots=PolicySnapshots(checkpoints / SNAPSHOT, config.checkpoint.policy_seconds),
    )
    return Trainer(session.components, _schedule(config), outputs, HookCaller(session.hooks))


def _schedule(config: RunConfig) -> Schedule:
    twentieth = max(1, config.steps // 20)
    return Schedule(
        steps=config.steps,
        eval_every=twentieth if config.eval.every is None else config.eval.every,
        checkpoint_every=twentieth if config.checkpoint.every is None else config.checkpoint.every,
        log_every=config.log.every,
        keep_all=config.checkpoint.keep,
    )


def _first_steps(session: _Session, env: VectorEnv, noted: set[str]) -> FirstSteps | None:
    """Returns the check of an environment by the first steps of the run; None for Coterie's own worlds."""
    config, components = session.config, session.components
    name = config.env.name
    if config.check == "off" or name.partition("/")[0] in registry.FAMILIES:
        return None
    quiet = not components.ranks.is_first
    return FirstSteps(
        env,
        name,
        refuses=registry.is_factory(name) or ":" in name,  # otherwise the user cannot change it
        note=(lambda _: None) if quiet else print_message,
        noted=noted,
    )


def _show_notes(session: _Session, display: Progress) -> None:
    path = session.folder.path
    display.print_line(f"run: {shell_word(path)}")
    display.print_line(f"watch in a browser: {coterie_command('watch', path)}")
    components = session.components
    spec = components.collector.env.spec
    for line in describe_teams(list(components.teams.values()), spec, teams_with_roles(session.config.teams)):
        display.print_line(line)
    display.print_line(RETURN_CONVENTION)
    for line in (*spec.notes, *image_notes(spec), *session.derived):
        display.print_line(line)
    if session.config.threads == "auto":
        display.print_line(f"threads: {torch.get_num_threads()}")
    if session.config.kernels != "off":
        display.print_line(f"kernels: {session.kernels.describe()}")
    warm_start = session.warm_start.lines if session.warm_start is not None else ()
    spinning = spinning_note(torch.get_num_threads()) if session.kernels.on else None
    notes = [*session.idle, *warm_start, *best_notes(session.config.eval), *graph_notes(session.config, components)]
    for line in notes if spinning is None else [*notes, spinning]:
        display.print_note(line)
    algorithms = session.components.algorithms
    for line in execution_notes(algorithms):
        display.print_line(line)
    for name, algorithm in algorithms.items():
        for line in algorithm.notes:
            display.print_line(line if len(algorithms) == 1 else f"team {name}: {line}")


def execution_notes(algorithms: Mapping[str, Algorithm]) -> tuple[str, ...]:
    """Returns a line for each team whose agents cannot act by their own observations alone."""
    return tuple(
        f"team {name}: centralized execution: its agents act by what others observe, so that acting needs the "
        "observations of all of them in one place"
        for name, algorithm in algorithms.items()
        if algorithm.policy.communicates
    )


def _show_resume_notes(session: _Session, display: Progress) -> None:
    """Shows what differs from the state in which the run was interrupted."""
    config, spec = session.config, session.components.collector.env.spec
    for line in session.notes:
        display.print_note(line)
    if not spec.exact_resume:
        display.print_note(f"{config.env.name} cannot restore its state: new episodes start, seeded by the run")
    before = session.folder.read_manifest().get("environment")
    for line in env_changes(before, spec.env_info):
        display.print_note(f"{config.env.name}: {line}")


def _make_logger(session: _Session, metrics_file: loggers.JsonlLogger) -> loggers.Logger:
    """Returns a logger for the metrics file and the configured services, which drop entries after the checkpoint."""
    config, folder = session.config, session.folder
    wanted: list[loggers.Logger] = [metrics_file]
    if config.log.tensorboard:
        steps = -1 if session.checkpoint is None else session.checkpoint.steps
        settings = {key: value for key, value in flatten(config.tree()) if not key.startswith(_UNCOMPARED)}
        teams = [f"{name}/" for name in session.components.algorithms] if len(session.components.teams) > 1 else [""]
        wanted.append(
            loggers.TensorBoardLogger(
                folder.path,
                purge_step=steps if folder.event_files() else None,
                settings=settings,
                returns=[f"{area}/{team}return_mean" for team in teams for area in ("eval", "rollout")],
            )
        )
    wanted += trackers.trackers(config.log, folder.path, env=config.env.name, settings=config.tree())
    return loggers.Loggers(wanted)


def _close(logger: loggers.Logger, folder: RunFolder) -> None:
    """Closes the loggers. A full disk does not replace an error that is already being raised."""
    is_failing = sys.exc_info()[0] is not None
    with contextlib.suppress(UserError) if is_failing else contextlib.nullcontext(), _disk_errors(folder):
        logger.close()


@contextlib.contextmanager
def _disk_errors(folder: RunFolder) -> Iterator[None]:
    """Turns disk errors of loggers such as TensorBoard's into a one-line error."""
    hook = threading.excepthook
    # A logger's thread that cannot write dies, and the next entry or the end raises the error. It need not print it.
    threading.excepthook = lambda died: None if issubclass(died.exc_type, OSError) else hook(died)
    try:
        yield
    except OSError as error:
        raise disk_error("in the run", folder.path, error) from error
    finally:
        threading.excepthook = hook


# ------------------------------------------------------------------------------------------------------------ summary


def _finish(session: _Session, trainer: Trainer, signals: list[int]) -> RunResult:
    """Draws the curves, prints the summary, and prints the resume command after an interruption."""
    config, folder, steps = session.config, session.folder, trainer.steps
    if not session.components.ranks.is_first:
        return RunResult(folder.path, _summarize(session, trainer), 0)
    is_done = steps >= config.steps or trainer.hooks.was_stopped
    summary = _summarize(session, trainer)
    if summary.lesson:
        folder.write_manifest(folder.read_manifest() | {"lesson": summary.lesson})
    if summary.teams:  # without returns there are no curves
        # A second Ctrl-C ends the drawing. The checkpoint is saved already.
        with contextlib.nullcontext() if is_done else contextlib.suppress(KeyboardInterrupt):
            draw_curves(folder)
        summary = _summarize(session, trainer)
    if config.progress != "off" and in_notebook():
        for line in (*summary.warnings, *summary.findings):  # the result shows the rest
            print_message(line)
    elif config.progress != "off":
        summary.print(Console(stderr=True))
    else:
        for line in summary.warnings:
            print_message(line)
    if trainer.hooks.was_stopped and steps < config.steps:
        print_message(
            f"a callback stopped the run at {steps:,} of {config.steps:,} steps, checkpoint saved. "
            f"Continue with: {coterie_command('resume', folder.path)}"
        )
    elif signals and not is_done:
        print_line(
            f"{signal_name(signals[0])}: stopped at {steps:,} of {config.steps:,} steps, checkpoint saved. "
            f"Resume with: {coterie_command('resume', folder.path)}",
            message_stream(),
        )
        return _result(folder, summary, _SIGNAL_EXIT_CODE + signals[0])
    return _result(folder, summary, 0)


def _result(folder: RunFolder, summary: Summary, exit_code: int) -> RunResult:
    rank_processes.write_result(folder.path, exit_code)
    return RunResult(folder.path, summary, exit_code)


def _summarize(session: _Session, trainer: Trainer) -> Summary:
    config, folder = session.config, session.folder
    entries, manifest = loggers.read(folder.metrics_path), folder.read_manifest()
    levels = {name: manifest.get(name) for name in ("random", "random_error", "published")}
    summary = replace(summarize(folder.path, entries, config.steps, **levels), steps=trainer.steps)
    settings = {team: vars(config.algo_of(team).params) for team in trainer.learners}
    keys = {team: config.algo_key(team) for team in settings}
    rows = [*entries, trainer.unlogged]  # the last updates may not have been logged yet
    warnings = no_gradient_step_warnings(settings, keys, rows, steps=trainer.steps, total=config.steps)
    if not trainer.episode_ended:
        warnings += no_return_warnings(summary, config.num_envs, trainer.evaluator.env.spec.episode_limit)
    lesson = lesson_of_log(config.curriculum, entries)
    findings = worst_findings(config, entries, trainer.algorithms, manifest)
    notes = execution_notes(trainer.algorithms)
    return replace(summary, lesson=lesson, warnings=warnings, findings=findings, notes=notes)

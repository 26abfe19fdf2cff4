"""Runs as a user knows them: train, resume, evaluate, play. Errors before the first step leave nothing behind."""

from __future__ import annotations

import contextlib
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from coterie import levels, log
from coterie.algos.algorithm import Algorithm
from coterie.build import (
    AskedMode,
    Parts,
    algorithms,
    build,
    environment,
    eval_modes,
    find_checkpoint,
    known_teams,
    load_learners,
    pick_device,
)
from coterie.checkpoint import Checkpoints, Found
from coterie.config import Resolved, change, load_resolved
from coterie.curriculum.course import lesson_of, reached
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import EnvironmentFailedError, NonFiniteError, UserError, WorkersFailedError
from coterie.evaluation import Told, evaluate
from coterie.loop import Schedule, Trainer
from coterie.origins import to_yaml
from coterie.policy import Mode, Policy, RandomPolicy
from coterie.process import interruptible, settle
from coterie.progress import Progress, Waiting, progress
from coterie.rundir import RunDir, describe, disk_error, write_text
from coterie.schema import RunConfig
from coterie.seeds import seed_of
from coterie.shown import frames, save_replay
from coterie.summary import Summary, summarise, unlearned

_SIGNALLED = 128  # a shell's exit code for a process that a signal ended: 128 + its number


@dataclass(frozen=True)
class Result:
    """What training left: the run's folder, its summary, and the exit code (130 or 143 if it was interrupted)."""

    run: Path
    summary: Summary
    exit_code: int

    def report(self) -> dict[str, Any]:
        """The result as plain numbers and words."""
        teams = {
            team.team or "team": {"start": team.start, "now": team.now, "best": team.best, "random": team.random}
            for team in self.summary.teams
        }
        return {"run": str(self.run), "steps": self.summary.steps, "wall_s": self.summary.wall_s, "teams": teams}


# ---------------------------------------------------------------------------------------------------------- training


def train(resolved: Resolved) -> Result:
    """Trains what the configuration says and returns what came out."""
    config = resolved.config
    settle(config.threads)
    parts = build(config)
    now = datetime.now().astimezone()
    with contextlib.closing(parts):
        folder = RunDir.create(config.out, config.env.name, config.algo.name, config.seed, now)
        return _train(resolved, folder, parts, now)


def _train(resolved: Resolved, folder: RunDir, parts: Parts, now: datetime) -> Result:
    """A new run in its folder, which goes again if nothing came of it."""
    config = resolved.config
    try:
        write_text(folder.config_path, to_yaml(resolved))
        folder.write_manifest(
            describe(
                config.seed, sys.argv, config.threads, now,
                env=config.env.name, algo=config.algo.name, device=str(parts.collector.env.device),
                exact_resume=parts.collector.env.spec.exact_resume, environment=parts.collector.env.spec.facts,
            )
        )  # fmt: skip
        return _run(config, folder, parts, None)
    finally:
        folder.close()
        folder.remove_if_empty()


def resume(run: Path, overrides: Sequence[str]) -> Result:
    """Goes on where the run stopped; a run that was stopped before its first checkpoint begins again."""
    folder = RunDir.open(run)
    resolved = load_resolved(folder.config_path)
    if overrides:
        resolved = change(resolved, overrides)
    settle(resolved.config.threads)
    folder.lock()
    try:
        found = Checkpoints(folder.checkpoints_path).latest()
        if found is not None and found.steps >= resolved.config.steps:
            raise UserError(
                f"the run {folder.path} has done its {resolved.config.steps:,} steps; "
                f"to train on: coterie resume {shlex.quote(str(folder.path))} steps={2 * found.steps}"
            )
        with contextlib.closing(build(resolved.config)) as parts:
            if overrides:
                write_text(folder.config_path, to_yaml(resolved))
            return _run(resolved.config, folder, parts, found)
    finally:
        folder.close()


def _compare_with(config: RunConfig, folder: RunDir, parts: Parts, display: Progress) -> None:
    """Notes in the manifest what returns are compared with: random policies, published levels. Once a run that is
    evaluated.
    """
    manifest = folder.read_manifest()
    if "random" not in manifest and config.eval.every != 0:
        told = Waiting(display.note, "random play, to compare with")
        random, known = random_returns(config, parts, told), levels.known(config, parts.teams)
        folder.write_manifest(manifest | {"random": random, "published": known, "levels": _lines(random, known)})


def _run(config: RunConfig, folder: RunDir, parts: Parts, found: Found | None) -> Result:
    """The loop with its logs, its display and its signals; then the curves and the summary."""
    start = 0 if found is None else found.steps
    title = f"{config.algo.name} on {config.env.name}, seed {config.seed}"
    display = progress(config.progress, title=title, start=start)
    rows = log.JsonlLogger(folder.metrics_path)
    logger: log.Logger | None = None
    received: list[int] = []
    try:
        _compare_with(config, folder, parts, display)
        trainer = Trainer(
            parts.algorithms, parts.collector, parts.evaluator, _schedule(config), rows, log.NullLogger(),
            Checkpoints(folder.checkpoints_path), display, {"env": config.env.name, "algo": config.algo.name},
            parts.roster, parts.guides, parts.judge,
        )  # fmt: skip
        for name, algorithm in parts.algorithms.items():
            for line in algorithm.notes:
                display.note(line if len(parts.algorithms) == 1 else f"team {name}: {line}")
        if found is not None:
            trainer.load(found)
            note = display.note if config.progress != "off" else _say
            if found.warning:
                note(found.warning)
            if not parts.collector.env.spec.exact_resume:
                note(f"{config.env.name} cannot save its state: new episodes begin from the run's seeds")
            for line in _changes(folder.read_manifest().get("environment"), parts.collector.env.spec.facts):
                note(f"{config.env.name}: {line}")
        else:
            rows.truncate(0)
        logger = _loggers(config, folder, rows, -1 if found is None else found.steps)
        trainer.log_to(logger)
        with interruptible(trainer.request_stop) as received, display, _disk_errors(folder):
            trainer.run()
    except (NonFiniteError, WorkersFailedError, EnvironmentFailedError) as error:
        kept = Checkpoints(folder.checkpoints_path).all()
        left = f"the last good checkpoint is in {folder.checkpoints_path}" if kept else "there is no checkpoint yet"
        raise type(error)(f"{error}; {left}") from error
    finally:
        display.close()
        _close(logger or rows, folder)
    return _finish(config, folder, trainer, received)


def _changes(before: dict[str, str] | None, now: dict[str, str]) -> list[str]:
    """What is no longer as it was about the environment, in words; nothing where that was not noted."""
    if before is None:
        return []
    names = dict.fromkeys((*before, *now))
    return [
        f"{name} was {before.get(name)}, and is {now.get(name)}: results before and after do not compare"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _close(logger: log.Logger, folder: RunDir) -> None:
    """Closes the logs; a disk that is full hides no error that is on its way already."""
    failing = sys.exc_info()[0] is not None
    with contextlib.suppress(UserError) if failing else contextlib.nullcontext(), _disk_errors(folder):
        logger.close()


@contextlib.contextmanager
def _disk_errors(folder: RunDir) -> Iterator[None]:
    """One line for what views such as TensorBoard's cannot write; what the run itself writes says what it was."""
    hook = threading.excepthook
    # A view's thread that cannot write dies, and the next row or the end tells why; it need not tell by itself.
    threading.excepthook = lambda died: None if issubclass(died.exc_type, OSError) else hook(died)
    try:
        yield
    except OSError as error:
        raise disk_error("in the run", folder.path, error) from error
    finally:
        threading.excepthook = hook


def _say(line: str) -> None:
    print(f"coterie: {line}", file=sys.stderr)


def _finish(config: RunConfig, folder: RunDir, trainer: Trainer, received: list[int]) -> Result:
    """Curves, summary, and how to go on after an interruption."""
    steps = trainer.steps
    done = steps >= config.steps
    summary = _summary(config, folder, trainer)
    if summary.lesson:
        folder.write_manifest(folder.read_manifest() | {"lesson": summary.lesson})
    if done and summary.teams:  # without a return there is nothing to draw
        from coterie.plot import plot

        plot([folder.path], folder.path / "curves.png")
        summary = _summary(config, folder, trainer)
    if config.progress != "off":
        summary.print(Console(stderr=True))
    else:
        for line in summary.warnings:
            _say(line)
    if received and not done:
        name = {2: "Ctrl-C", 15: "SIGTERM"}.get(received[0], f"signal {received[0]}")
        print(
            f"{name}: stopped at {steps:,} of {config.steps:,} steps, the checkpoint is written; "
            f"go on with: coterie resume {shlex.quote(str(folder.path))}",
            file=sys.stderr,
        )
        return Result(folder.path, summary, _SIGNALLED + received[0])
    return Result(folder.path, summary, 0)


def _summary(config: RunConfig, folder: RunDir, trainer: Trainer) -> Summary:
    rows, manifest = log.read(folder.metrics_path), folder.read_manifest()
    told = summarise(folder.path, rows, config.steps, manifest.get("random"), manifest.get("published"))
    lesson = reached(config.curriculum, rows)
    # The last windows may not have made a row yet.
    warnings = unlearned(config, trainer.learners, [*rows, trainer.unlogged], trainer.steps)
    return replace(told, steps=trainer.steps, lesson=lesson, warnings=warnings)


def _schedule(config: RunConfig) -> Schedule:
    twentieth = max(1, config.steps // 20)
    every = [twentieth if given is None else given for given in (config.eval.every, config.checkpoint.every)]
    return Schedule(config.steps, every[0], every[1], config.log.every, numbered=config.checkpoint.keep)


def _loggers(config: RunConfig, folder: RunDir, rows: log.JsonlLogger, kept: int) -> log.Logger:
    """Where rows go: metrics.jsonl first, then its views, which hide what was written past step `kept`."""
    wanted: list[log.Logger] = [rows]
    name = folder.path.name
    if config.log.tensorboard:
        again = folder.tensorboard_path.exists()
        wanted.append(log.TensorBoardLogger(folder.tensorboard_path, purge_step=kept if again else None))
    if config.log.wandb:
        wanted.append(log.WandbLogger(folder.path, "coterie", name, config.tree()))
    if config.log.mlflow:
        wanted.append(log.MlflowLogger(folder.path, config.env.name, name, config.tree()))
    return log.Loggers(wanted)


def random_returns(config: RunConfig, parts: Parts, told: Told | None = None) -> dict[str, float]:
    """Mean return of every team if all act at random, over as many episodes as an evaluation has."""
    env = parts.evaluator.env
    policies: dict[str, Policy] = {name: RandomPolicy(team, env.device) for name, team in parts.teams.items()}
    modes: dict[str, Mode] = dict.fromkeys(policies, "sample")
    found = evaluate(env, policies, config.eval.episodes, modes, seed_of(config.seed, "random"), told=told)
    return {name: found.return_mean(name) for name in policies}


def _lines(random: dict[str, float], published: dict[str, float]) -> dict[str, dict[str, float]]:
    """Levels by kind and team, as `coterie plot` draws them."""
    return {"random": random} | ({"published": published} if published else {})


# -------------------------------------------------------------------------------------------------------- evaluation


def evaluate_run(
    run: Path, episodes: int = 100, mode: AskedMode = "auto", checkpoint: str = "best", seed: int | None = None
) -> dict[str, Any]:
    """What the policies of a run's checkpoint earn, as plain numbers: see `evaluate --json`."""
    config, learners = load_learners(run, checkpoint, _resolve_device(run))
    settle(config.threads)
    found = find_checkpoint(RunDir.open(run), checkpoint)
    return _evaluate(config, learners, episodes, mode, seed, lesson_of(found.state)) | {
        "run": str(run),
        "steps": found.steps,
    }


def evaluate_baseline(resolved: Resolved, episodes: int = 100, mode: AskedMode = "auto") -> dict[str, Any]:
    """What algorithms that need no training earn, as plain numbers."""
    config = resolved.config
    settle(config.threads)
    device = pick_device(config.device)
    return _evaluate(config, algorithms(config, known_teams(config, device), device), episodes, mode, None)


def _evaluate(
    config: RunConfig,
    learners: dict[str, Any],
    episodes: int,
    mode: AskedMode,
    seed: int | None,
    lesson: int | None = None,
) -> dict[str, Any]:
    at_once = 1000 if episodes >= 1000 else 100
    if isinstance(config.env.params, HostedConfig):  # a copy may be a whole game
        at_once = config.eval.copies
    copies = min(episodes, at_once)
    device = pick_device(config.device)
    env = environment(config, copies, "evaluate", device, lesson)
    modes = eval_modes(mode, learners)
    policies = {name: learner.policy for name, learner in learners.items()}
    start = seed_of(config.seed if seed is None else seed, "evaluate")
    told = None if config.progress == "off" else Waiting(_say, "evaluation")
    try:
        found = evaluate(env, policies, episodes, modes, start, told=told)
    finally:
        env.close()
    return {
        "env": config.env.name,
        "algo": config.algo.name,
        "episodes": len(found.episodes.length),
        "metrics": found.measured(),
        "teams": found.report(),
    }


# --------------------------------------------------------------------------------------------------------------- play


def play(
    run: Path | None,
    resolved: Resolved | None = None,
    video: Path | None = None,
    episodes: int = 1,
    mode: AskedMode = "auto",
    checkpoint: str = "best",
    seed: int | None = None,
    size: int = 480,
    replay: Path | None = None,
) -> Path | None:
    """Records episodes to a file, or has the environment's library write its own replay to the folder `replay`, or
    shows them in a window; returns what was written.
    """
    config, learners = learners_of(run, resolved, checkpoint)
    settle(config.threads)
    modes = eval_modes(mode, learners)
    policies = {name: learner.policy for name, learner in learners.items()}
    start = seed_of(config.seed if seed is None else seed, "play")
    if replay is not None:
        return save_replay(config, policies, modes, episodes, start, replay)
    lesson = None
    if run is not None and config.curriculum.lessons:
        lesson = lesson_of(find_checkpoint(RunDir.open(run), checkpoint).state)
    pictures = frames(config, policies, modes, episodes, start, size, lesson)
    if video is None:
        from coterie.window import show

        show(pictures, f"{config.algo.name} on {config.env.name}")
        return None
    from coterie.video import write_video

    written = write_video(video, pictures)
    print(f"wrote {written}", file=sys.stderr)
    return written


def learners_of(
    run: Path | None, resolved: Resolved | None, checkpoint: str = "best"
) -> tuple[RunConfig, dict[str, Algorithm]]:
    """The learners of a run's checkpoint, or without a run those of settings, and their configuration."""
    if run is not None:
        return load_learners(run, checkpoint, _resolve_device(run))
    assert resolved is not None
    config = resolved.config
    device = pick_device(config.device)
    return config, algorithms(config, known_teams(config, device), device)


def _resolve_device(run: Path) -> torch.device:
    """The device that the run's configuration asks for, or the CPU where that is not there: looking needs no GPU."""
    name = load_resolved(RunDir.open(run).config_path).config.device
    try:
        return pick_device(name)
    except UserError:
        return torch.device("cpu")

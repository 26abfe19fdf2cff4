"""Evaluation of trained runs and of algorithms that need no training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.algos.algorithm import Algorithm
from coterie.assembly.environment import load_teams, make_environment, select_device
from coterie.assembly.learners import (
    EvalMode,
    device_of_run,
    eval_modes,
    load_run,
    make_algorithms,
)
from coterie.assembly.resolve import Resolved
from coterie.commands.generalization import load_run_elsewhere
from coterie.config.schema import RunConfig
from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.markup import Markup, element, join, paragraphs, table
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.core.terminal import print_message
from coterie.envs.contract.vector import closed
from coterie.runs.progress import PeriodicProgress, number
from coterie.training.curriculum import lesson_of_checkpoint
from coterie.training.evaluation import Evaluation, ProgressCallback, evaluate


class EvaluationReport(dict[str, Any]):
    """Results as plain numbers and texts, which notebooks show as tables."""

    def __or__(self, more: Any) -> EvaluationReport:
        return EvaluationReport(super().__or__(more))

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the tables that `coterie evaluate` prints."""
        shown = as_tables(self)
        parts = [element("p", element("b", f"{self['algo']} on {self['env']}, {self['episodes']:,} episodes"))]
        for name in ("teams", "groups", "agents", "metrics"):
            rows = shown[name]
            if isinstance(rows, Mapping) and rows:
                columns = list(next(iter(rows.values())))
                parts.append(table([name, *columns], [[own, *map(_cell, row.values())] for own, row in rows.items()]))
        return join((*parts, paragraphs(self.get("warnings", ()))))


def _cell(value: Any) -> str:
    return number(value) if isinstance(value, float) else str("-" if value is None else value)


def evaluate_run(
    run: Path,
    episodes: int = 100,
    mode: EvalMode = "auto",
    checkpoint: str = "auto",
    *,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> EvaluationReport:
    """Evaluates the policies of a run's checkpoint.

    Args:
        run: Folder of the run.
        episodes: Minimum number of episodes.
        mode: Action selection.
        checkpoint: auto, best, best:TEAM, last or a number of steps.
        seed: Seed of the episodes; by default derived from the run's.
        overrides: Settings of the environment and of opponents that differ from the run's.

    Returns:
        Results as plain numbers and strings, as printed by `coterie evaluate --json`.
    """
    device = device_of_run(run)
    if overrides:
        trained = load_run_elsewhere(run, overrides, checkpoint=checkpoint, mode=mode, device=device)
    else:
        trained = load_run(run, checkpoint, device)
    assert trained.checkpoint is not None
    assert trained.choice is not None
    configure_process(trained.config.threads)
    lesson = lesson_of_checkpoint(trained.checkpoint.state)
    report = _evaluate(trained.config, trained.algorithms, episodes=episodes, mode=mode, seed=seed, lesson=lesson)
    return report | {
        "run": str(run),
        "steps": trained.checkpoint.steps,
        "checkpoint": trained.choice.report(),
        "overrides": list(overrides),
        "warnings": trained.warnings,
    }


def as_tables(report: dict[str, Any]) -> dict[str, Any]:
    """Returns a report for people: tables of the teams, of their agents and of the environment's metrics."""
    tables = ("metrics", "metrics_error", "metrics_interval", "checkpoint", "teams")
    teams = report["teams"].values()
    shown = {key: value for key, value in report.items() if key not in tables}
    shown["teams"] = {
        name: {
            "team return": team["return_mean"],
            "error": team["return_error"],
            "95% interval": _range(team["return_interval"]),
            "std": team["return_std"],
            "length": team["length_mean"],
        }
        for name, team in report["teams"].items()
    }
    shown["groups"] = {
        group: {"return of group rewards": value} for team in teams for group, value in team["return_by_group"].items()
    }
    has_groups = bool(shown["groups"])
    heading = "return per agent, own rewards" if has_groups else "return per agent"
    shown["agents"] = {
        agent: {heading: value}
        for team in teams
        for agent, value in team["return_by_agent"].items()
        if value is not None
    }
    if has_groups and not shown["agents"]:
        shown["agents"] = "no rewards of their own, only those of their groups"
    shown["metrics"] = {
        name: {
            "mean": mean,
            "error": report["metrics_error"][name],
            "95% interval": _range(report["metrics_interval"][name]),
        }
        for name, mean in report["metrics"].items()
    }
    return shown


def _range(interval: list[float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"


def evaluate_baseline(resolved: Resolved, episodes: int = 100, mode: EvalMode = "auto") -> EvaluationReport:
    """Evaluates algorithms that need no training. Returns the same as `evaluate_run`, and warns of others."""
    config = resolved.config
    configure_process(config.threads)
    device = select_device(config.device)
    learners = make_algorithms(config, load_teams(config, device), device)
    warnings = [
        f"team '{name}': algo={config.algo_of(name).name} learns, and its networks are not trained here. To evaluate a "
        "trained team: coterie evaluate RUN"
        for name, learner in learners.items()
        if learner.capabilities.learns
    ]
    for warning in warnings:
        print_message(warning)
    return _evaluate(config, learners, episodes=episodes, mode=mode) | {"warnings": warnings}


def _evaluate(
    config: RunConfig,
    learners: dict[str, Algorithm],
    *,
    episodes: int,
    mode: EvalMode,
    seed: int | None = None,
    lesson: int | None = None,
) -> EvaluationReport:
    found = play_episodes(
        config,
        learners,
        episodes=episodes,
        mode=mode,
        seed=seed_of(config.seed if seed is None else seed, "evaluate"),
        lesson=lesson,
        on_progress=None if config.progress == "off" else PeriodicProgress(print_message, "evaluation"),
    )
    return EvaluationReport(
        env=config.env.name,
        algo=config.algo.name,
        episodes=len(found.episodes),
        **found.env_metrics(),
        teams=found.report(),
    )


def play_episodes(
    config: RunConfig,
    learners: dict[str, Algorithm],
    *,
    episodes: int,
    mode: EvalMode,
    seed: int,
    lesson: int | None = None,
    on_progress: ProgressCallback | None = None,
) -> Evaluation:
    """Plays episodes of a configuration in environments that are created for this.

    Args:
        config: Configuration of the run or baseline.
        learners: Algorithm of each team.
        episodes: Minimum number of episodes.
        mode: Action selection.
        seed: Seed of the environments and of the policies' noise.
        lesson: Lesson of the curriculum; None for the last.
        on_progress: Called now and then.
    """
    max_num_envs = 1000 if episodes >= 1000 else 100
    if isinstance(config.env.params, ExternalEnvConfig):  # one environment may be a whole game
        max_num_envs = config.eval.num_envs
    env = make_environment(
        config,
        "evaluate",
        num_envs=min(episodes, max_num_envs),
        device=select_device(config.device),
        lesson=lesson,
    )
    with closed(env):
        return evaluate(
            env,
            {name: learner.policy for name, learner in learners.items()},
            episodes=episodes,
            modes=eval_modes(mode, learners),
            seed=seed,
            on_progress=on_progress,
        )

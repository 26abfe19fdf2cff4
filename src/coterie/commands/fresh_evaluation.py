"""Fresh evaluation: the final and the best policies of runs on episodes that did not choose them.

The best of many evaluations is biased upward, because noise helps to choose it. Gorsane et al. (2022) therefore
evaluate the best policies again, on ten times the episodes: the absolute metric.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.assembly.learners import device_of_run, load_run
from coterie.assembly.resolve import load_resolved
from coterie.commands.evaluate import play_episodes
from coterie.core.errors import UserError
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.core.terminal import print_message
from coterie.reports.collection import Collection
from coterie.reports.fresh_evaluations import Protocol, find_fresh, store_fresh
from coterie.reports.records import CollectedRun, FreshEvaluation, Policies
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.folder import RunFolder
from coterie.runs.progress import PeriodicProgress
from coterie.training.curriculum import lesson_of_checkpoint
from coterie.training.evaluation import Evaluation

_TIMES = 10
"""Episodes of a fresh evaluation in those of an evaluation during training. Source: Gorsane et al. 2022."""


def with_fresh_evaluations(collection: Collection, episodes: int | None) -> Collection:
    """Returns a collection with fresh evaluations of its runs. Those that exist already are not repeated.

    Args:
        collection: The runs.
        episodes: Minimum number of episodes; None for ten times the `eval.episodes` of each run.
    """
    own = [run for run in collection.runs if run.origin == "coterie"]
    done = {}
    for number, run in enumerate(own, start=1):
        place = f"fresh evaluation of {run.name}, run {number} of {len(own)}"
        fresh = evaluate_fresh(Path(run.name), episodes or _TIMES * _eval_episodes(run), place)
        done[run.name] = replace(run, fresh=fresh)
    return replace(collection, runs=tuple(done.get(run.name, run) for run in collection.runs))


def _eval_episodes(run: CollectedRun) -> int:
    value = run.settings.get("eval.episodes")
    return value if isinstance(value, int) and value > 0 else 1


def evaluate_fresh(run: Path, episodes: int, label: str = "fresh evaluation") -> tuple[FreshEvaluation, ...]:
    """Evaluates the final and the best policies of a run, and stores the results in its folder.

    Evaluations under equal conditions that the folder has already are not repeated.

    Args:
        run: Folder of the run.
        episodes: Minimum number of episodes.
        label: Beginning of progress lines.

    Returns:
        The evaluations of the final and of the best policies, with the same values if these are equal. Without the
        latter if no checkpoint is marked as the best.

    Raises:
        UserError: If the run has no checkpoint, or cannot be loaded.
    """
    folder = RunFolder.open(run)
    config = load_resolved(folder.config_path).config
    store = Checkpoints(folder.checkpoints_path)
    numbers = [int(path.name) for path in store.all()]
    if not numbers:
        raise UserError(f"{run}: has no checkpoint to evaluate. Leave out --evaluate, or the run.")
    wanted: dict[Policies, int | None] = {"final": max(numbers), "best": store.best_steps()}
    found: list[FreshEvaluation] = []
    seed = seed_of(config.seed, "fresh evaluation")
    for policies, steps in wanted.items():
        if steps is None:
            continue
        protocol = Protocol(policies, steps, episodes, seed, config.eval.mode)
        known = find_fresh(run, protocol)
        if known is None:
            same = next((one for one in found if one.steps == steps), None)
            known = _evaluate(run, protocol, label) if same is None else replace(same, policies=policies)
            store_fresh(run, protocol, known)
        found.append(known)
    return tuple(found)


def _evaluate(run: Path, protocol: Protocol, label: str) -> FreshEvaluation:
    trained = load_run(run, str(protocol.steps), device_of_run(run), announce=False)
    assert trained.checkpoint is not None
    if trained.checkpoint.steps != protocol.steps:
        raise UserError(f"{run}: the checkpoint of step {protocol.steps:,} cannot be read. Leave out --evaluate.")
    configure_process(trained.config.threads)
    played = play_episodes(
        trained.config,
        trained.algorithms,
        episodes=protocol.episodes,
        mode=trained.config.eval.mode,
        seed=protocol.seed,
        lesson=lesson_of_checkpoint(trained.checkpoint.state),
        on_progress=PeriodicProgress(print_message, f"{label}, {protocol.policies} policies"),
    )
    return FreshEvaluation(protocol.policies, protocol.steps, _values(played))


def _values(played: Evaluation) -> dict[tuple[str, str], np.ndarray]:
    """Returns the values of all episodes by team and metric, named as in the log."""
    single = len(played.teams) == 1
    values = {
        ("" if single else name, "eval/return_mean"): played.episodes.team_return(team).double().cpu().numpy()
        for name, team in played.teams.items()
    }
    metrics = {("", f"eval/metric/{name}"): x.double().cpu().numpy() for name, x in played.episodes.metrics.items()}
    return values | metrics

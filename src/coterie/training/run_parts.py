"""The parts of a run that the training loop connects, its lengths, and its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.algos.algorithm import Algorithm
from coterie.core.specs import TeamSpec
from coterie.envs.contract.vector import close_env
from coterie.ranks.ranks import ONE, Ranks
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.loggers import JsonlLogger, Logger
from coterie.runs.progress import Progress
from coterie.runs.snapshots import PolicySnapshots
from coterie.training.best import BestRules
from coterie.training.callback import ActiveTeams, TrainerCallback
from coterie.training.collector import Collector
from coterie.training.evaluation import Evaluator


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
        best_rules: How the best checkpoints are chosen; None without evaluations.
        ranks: Ranks that train together.
    """

    teams: dict[str, TeamSpec]
    algorithms: dict[str, Algorithm]
    collector: Collector
    evaluator: Evaluator
    active_teams: ActiveTeams
    callbacks: tuple[TrainerCallback, ...] = ()
    best_rules: BestRules | None = None
    ranks: Ranks = ONE

    def close(self) -> None:
        """Closes the environments."""
        close_env(self.collector.env)
        close_env(self.evaluator.env)


@dataclass(frozen=True)
class Outputs:
    """Destinations of the output of a run.

    Attributes:
        metrics_file: The log file, truncated to the checkpoint when a run is resumed.
        logger: Receives all metrics.
        checkpoints: Stores checkpoints.
        progress: Shows progress to the user.
        metadata: Added to the metadata of every checkpoint.
        snapshots: Receives the policies between checkpoints.
    """

    metrics_file: JsonlLogger
    logger: Logger
    checkpoints: Checkpoints
    progress: Progress
    metadata: dict[str, Any]
    snapshots: PolicySnapshots

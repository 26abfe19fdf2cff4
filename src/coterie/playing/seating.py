"""Builds a game: policies and critics of a run, or algorithms that need no training, and agents played by people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from coterie.algos.algorithm import Algorithm, ValueEstimator
from coterie.assembly.environment import make_environment
from coterie.assembly.learners import EvalMode, eval_modes, load_run_or_make
from coterie.assembly.resolve import Resolved
from coterie.config.schema import RunConfig
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.envs.contract.vector import closed
from coterie.playing.game import Game, Players
from coterie.playing.seats import seats_for


@dataclass(frozen=True)
class GameRequest:
    """Description of a game: a checkpoint of a run, or settings `resolved` of algorithms that need no run.

    Attributes:
        human: Agents played by people.
        mode: Action mode of the policies.
        seed: Seed of the episodes, None for the run's own.
        size: Pixels of the longer side of an image.
    """

    run: Path | None = None
    resolved: Resolved | None = None
    human: Sequence[str] = ()
    mode: EvalMode = "auto"
    checkpoint: str = "auto"
    seed: int | None = None
    size: int = 480


@contextmanager
def open_game(request: GameRequest) -> Iterator[tuple[Game, str]]:
    """Context with the game and its title; closes the environment at the end. UserError for unknown agents."""
    trained = load_run_or_make(request.run, request.resolved, request.checkpoint)
    config, learners = trained.config, trained.algorithms
    configure_process(config.threads)
    critics: dict[str, ValueEstimator] = {
        name: learner for name, learner in learners.items() if isinstance(learner, ValueEstimator)
    }
    if trained.checkpoint is not None:
        for name, critic in critics.items():
            critic.load_critic(trained.checkpoint.state["algorithms"][name])
    else:
        critics = {}  # untrained algorithms have no outputs to show
    policies = {name: learner.policy for name, learner in learners.items()}
    algos = {name: config.algo_of(name).name for name in policies}
    players = Players(policies, eval_modes(request.mode, learners), critics, algos)
    device = getattr(next(iter(policies.values())), "device", torch.device("cpu"))
    with closed(make_environment(config, "play", num_envs=1, device=device)) as env:
        seats = seats_for(request.human, env.spec, players.teams)
        seed = seed_of(config.seed if request.seed is None else request.seed, "play")
        yield Game(env, players, seats, seed=seed, size=request.size), _title(config, learners, request.run)


def _title(config: RunConfig, learners: dict[str, Algorithm], run: Path | None) -> str:
    """Human-readable title."""
    names = {name: config.algo_of(name).name for name in learners}
    if len(set(names.values())) == 1:
        algos = next(iter(names.values()))
    else:
        algos = ", ".join(f"{name}: {algo}" for name, algo in names.items())
    return f"{algos} on {config.env.name}" + (f" ({run.name})" if run is not None and run.name else "")

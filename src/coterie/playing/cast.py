"""Who plays: a run's policies with its critics, or those of algorithms that need no training; and who sits in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from coterie.algos.algorithm import Algorithm, Judging
from coterie.build import AskedMode, environment, eval_modes, find_checkpoint
from coterie.config import Resolved
from coterie.playing.game import Cast, Game
from coterie.playing.seats import named
from coterie.process import settle
from coterie.run import learners_of
from coterie.rundir import RunDir
from coterie.schema import RunConfig
from coterie.seeds import seed_of


@dataclass(frozen=True)
class Wanted:
    """What is to be played: a run's checkpoint, or the settings `resolved` of what needs no run.

    human: agents that are moved by hand; mode: how policies pick; seed: of the episodes, None for the run's own; size:
    pixels of a picture's longer side.
    """

    run: Path | None = None
    resolved: Resolved | None = None
    human: Sequence[str] = ()
    mode: AskedMode = "auto"
    checkpoint: str = "best"
    seed: int | None = None
    size: int = 480


@contextmanager
def opened(wanted: Wanted) -> Iterator[tuple[Game, str]]:
    """The game, and what it is called; its environment is closed in the end. UserError for unknown agents."""
    config, learners = learners_of(wanted.run, wanted.resolved, wanted.checkpoint)
    settle(config.threads)
    critics: dict[str, Judging] = {name: learner for name, learner in learners.items() if isinstance(learner, Judging)}
    if wanted.run is not None and critics:
        state = find_checkpoint(RunDir.open(wanted.run), wanted.checkpoint).state["algorithms"]
        for name, critic in critics.items():
            critic.load_critic(state[name])
    else:
        critics = {}  # what has learned nothing has nothing to say
    policies = {name: learner.policy for name, learner in learners.items()}
    algos = {name: config.algo_of(name).name for name in policies}
    cast = Cast(policies, eval_modes(wanted.mode, learners), critics, algos)
    device = getattr(next(iter(policies.values())), "device", torch.device("cpu"))
    with closing(environment(config, 1, "play", device)) as env:
        seats = named(wanted.human, env.spec, cast.teams)
        start = seed_of(config.seed if wanted.seed is None else wanted.seed, "play")
        yield Game(env, cast, seats, start, wanted.size), _title(config, learners, wanted.run)


def _title(config: RunConfig, learners: dict[str, Algorithm], run: Path | None) -> str:
    """Who plays what, in words."""
    names = {name: config.algo_of(name).name for name in learners}
    if len(set(names.values())) == 1:
        who = next(iter(names.values()))
    else:
        who = ", ".join(f"{name}: {algo}" for name, algo in names.items())
    return f"{who} on {config.env.name}" + (f" ({run.name})" if run is not None and run.name else "")

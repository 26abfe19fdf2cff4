"""From a configuration to the parts of a run. The only module that knows every type."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from coterie import registry
from coterie.algos.algorithm import Algorithm
from coterie.algos.frozen import Frozen, FrozenConfig
from coterie.algos.scripted import Scripted
from coterie.checkpoint import Checkpoints, Found
from coterie.collect import Collector
from coterie.config import load_resolved
from coterie.envs.make import make
from coterie.envs.scripts import script_of
from coterie.envs.vector import VectorEnv
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import UserError, nearest
from coterie.evaluation import Evaluator
from coterie.guide import Guide, Roster
from coterie.guided import both_sides, course_of, guides, mirrored
from coterie.policy import Mode, Policy
from coterie.replay import unfilled
from coterie.rundir import RunDir
from coterie.schema import RunConfig
from coterie.seeds import seed_of
from coterie.teams import assign
from coterie.types import EnvSpec, TeamSpec

AskedMode = Literal["auto", "greedy", "sample"]


@dataclass(frozen=True)
class Parts:
    """What a training loop is given."""

    teams: dict[str, TeamSpec]
    algorithms: dict[str, Algorithm]
    collector: Collector
    evaluator: Evaluator
    roster: Roster
    guides: tuple[Guide, ...]
    judge: Callable[[], float] | None = None
    """What the best checkpoint is best at; without, the first learning team's mean return in evaluation."""

    def close(self) -> None:
        """Gives back what the environments hold."""
        self.collector.env.close()
        self.evaluator.env.close()


def pick_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:N` means here. UserError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        found = torch.cuda.device_count()
        if (device.index or 0) >= found:
            have = f"there are {found} (cuda:0 to cuda:{found - 1})" if found else "PyTorch finds no GPU here"
            raise UserError(f"device={name} is not there: {have}; use device=auto or device=cpu")
    return device


def build(config: RunConfig) -> Parts:
    """Environment, a learner a team, collector and evaluator. UserError where the configuration does not fit
    together.
    """
    device = pick_device(config.device)
    with ExitStack() as stack:  # what was opened is closed if the rest does not fit
        env = stack.enter_context(closing(environment(config, config.copies, "train", device)))
        teams = teams_of(config, env.spec)
        learners = algorithms(config, teams, device)
        policies = {name: learner.policy for name, learner in learners.items()}
        modes = eval_modes(config.eval.mode, learners)
        copies, purpose = min(config.eval.copies, config.eval.episodes), "eval"
        if config.eval.every == 0 and not config.selfplay.on:  # nobody steps them: one is there for its form, no worker
            copies, purpose = 1, "idle"
        eval_env = stack.enter_context(closing(environment(config, copies, purpose, device)))
        worlds = env, eval_env
        if mirrored(config, teams) and config.selfplay.sides != "first":
            env, eval_env = both_sides(config, env), both_sides(config, eval_env)
        collector = Collector(env, policies, seed_of(config.seed, "collect"))
        evaluator = Evaluator(eval_env, policies, config.eval.episodes, modes, seed_of(config.seed, "evaluator"))
        roster = Roster.of(learners)
        found, judge = guides(config, learners, modes, roster, collector, evaluator, worlds)
        stack.pop_all()
    return Parts(teams, learners, collector, evaluator, roster, found, judge)


_RUNNING = ("train", "eval", "idle")
"""Purposes of a run itself."""
_WORKED = ("train", "eval", "evaluate")
"""Purposes that are worth the start of workers; one copy that is looked at or shown is not."""


def environment(
    config: RunConfig, copies: int, purpose: str, device: torch.device, lesson: int | None = None
) -> VectorEnv:
    """Copies of the run's environment, showing its state if an algorithm reads it; its own rewards but in training.

    lesson: which one it begins with, from 0; by default the first for a run, the last for what comes after it.
    """
    choices = [config.algo, *(team.algo for team in config.teams.values())]
    with_state = any(getattr(choice.params, "needs_state", False) for choice in choices)
    seed = seed_of(config.seed, "env", purpose)
    params = config.env.params
    if purpose != "train" and isinstance(params, HostedConfig):
        params = params.unshaped()
    workers = config.workers if purpose in _WORKED else None
    env = make(config.env.name, params, copies, seed, device, with_state, workers)
    course = course_of(config)
    if course is None or purpose == "load":
        return env
    if lesson is None:
        lesson = 0 if purpose in _RUNNING else course.last
    try:
        if purpose == "train":
            course.check(env)
        course.set(env, lesson if purpose == "train" else course.evaluated(lesson))
    except BaseException:
        env.close()
        raise
    return env


def teams_of(config: RunConfig, spec: EnvSpec) -> dict[str, TeamSpec]:
    """The run's teams by name in the environment's order."""
    return {team.name: team for team in assign({name: t.roles for name, t in config.teams.items()}, spec)}


def known_teams(config: RunConfig, device: torch.device) -> dict[str, TeamSpec]:
    """The run's teams, read off a copy of its environment that is closed again."""
    with closing(environment(config, 1, "load", device)) as env:
        return teams_of(config, env.spec)


def algorithms(
    config: RunConfig, teams: dict[str, TeamSpec], device: torch.device, rewarded: bool = True
) -> dict[str, Algorithm]:
    """A learner a team; rewarded: with its reward signals. UserError for spaces that an algorithm does not support."""
    built: dict[str, Algorithm] = {}
    pair = mirrored(config, teams)
    own = [name for name in teams if pair is None or name != pair[1]]
    classes: dict[str, type[Algorithm]] = {name: registry.algorithm(config.algo_of(name).name) for name in own}
    horizons = _horizons(config, classes)
    for name in own:
        team, cls, choice = teams[name], classes[name], config.algo_of(name)
        cls.capabilities.require(choice.name, team, f"teams.{name}.algo" if len(teams) > 1 else "algo")
        seed = seed_of(config.seed, "team", name)
        horizon = horizons[name]
        rewards = config.rewards_of(name)
        if rewards.plain:
            learner = cls(team, choice.params, config.copies, horizon, seed, device)
        else:
            from coterie.rewards.rewarded import compose

            if rewards.gail is not None and rewards.gail.demos is not None and rewarded:
                from coterie.imitation.batches import demos_for

                demos_for(rewards.gail.demos, "rewards.gail.demos", config.env.name, team)
            learner = compose(
                cls, choice.name, team, choice.params, rewards, config.copies, horizon, seed, device, rewarded
            )
        if isinstance(learner, Frozen):
            learner.adopt(*frozen_policy(name, learner.config, device))
        elif isinstance(learner, Scripted):
            learner.adopt(*script_of(team, config.env, learner.config.script))
        wanted = config.horizon or vars(choice.params)["horizon"]
        if cls.capabilities.learns and learner.horizon != wanted:
            why = f"windows of {learner.horizon} rows, not {wanted}: a multiple of the shortest of all teams"
            learner.notes = (*learner.notes, why)
        built[name] = learner
    if pair is not None:
        first, second = pair
        shadow = Frozen(teams[second], FrozenConfig(), config.copies, built[first].horizon, 0, device)
        shadow.adopt(built[first].policy, built[first].capabilities.eval_mode)
        built[second] = shadow
    return {name: built[name] for name in teams}


def _horizons(config: RunConfig, classes: dict[str, type[Algorithm]]) -> dict[str, int]:
    """Rows of every team's windows: multiples of the shortest of those who learn, at least what each was to have. Who
    learns nothing goes along with the shortest.
    """
    wanted = {name: config.horizon or vars(config.algo_of(name).params)["horizon"] for name in classes}
    shortest = min([wanted[name] for name, cls in classes.items() if cls.capabilities.learns] or wanted.values())
    return {
        name: -(-wanted[name] // shortest) * shortest if cls.capabilities.learns else config.horizon or shortest
        for name, cls in classes.items()
    }


def eval_modes(asked: AskedMode, learners: dict[str, Algorithm]) -> dict[str, Mode]:
    """How each team's actions are picked in evaluation; auto: as each method was published."""
    return {name: a.capabilities.eval_mode if asked == "auto" else asked for name, a in learners.items()}


def frozen_policy(team: str, config: FrozenConfig, device: torch.device) -> tuple[Policy, Mode]:
    """The policy that a frozen team acts with, and how it is evaluated. UserError if its run, or its team there, is
    not.
    """
    if config.run is None:
        raise UserError(f"team '{team}' is frozen and names no run: give teams.{team}.run=RUN")
    _, learners = load_learners(config.run, config.checkpoint, device)
    wanted = config.team or (team if team in learners or len(learners) > 1 else next(iter(learners)))
    if wanted not in learners:
        raise UserError(f"the run {config.run} has no team '{wanted}': {nearest(wanted, learners)}")
    return learners[wanted].policy, learners[wanted].capabilities.eval_mode


def load_learners(run: Path, checkpoint: str, device: torch.device) -> tuple[RunConfig, dict[str, Algorithm]]:
    """A run's configuration and its learners as a checkpoint has them; checkpoint: best, last or a number of steps."""
    folder = RunDir.open(run)
    config = load_resolved(folder.config_path).config
    with unfilled():
        learners = algorithms(config, known_teams(config, device), device, rewarded=False)
    found = find_checkpoint(folder, checkpoint)
    for name, learner in learners.items():
        learner.policy.load_state_dict(found.state["algorithms"][name]["policy"])
    return config, learners


def find_checkpoint(folder: RunDir, which: str) -> Found:
    """The checkpoint `best`, `last`, or the one of so many steps. UserError with what there is instead."""
    store = Checkpoints(folder.checkpoints_path)
    if which in {"best", "last"}:
        found = store.load_best() if which == "best" else store.latest(segments=False)
        if found is None:
            raise UserError(f"the run {folder.path} has no checkpoint yet: wait for its first one")
        return found
    found = store.load_steps(int(which)) if which.isdigit() else None
    if found is None:
        there = ", ".join(str(int(path.name)) for path in store.all())
        raise UserError(f"the run {folder.path} has no checkpoint '{which}': choose best, last or one of {there}")
    return found

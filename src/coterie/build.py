"""From a configuration to the parts of a run. The only module that knows every type."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from coterie import registry
from coterie.algos.algorithm import Algorithm
from coterie.algos.frozen import Frozen, FrozenConfig
from coterie.algos.scripted import Scripted
from coterie.borrowed import mismatch
from coterie.checkpoint import Checkpoints, Found
from coterie.collect import Collector
from coterie.config import load_resolved
from coterie.envs.make import make
from coterie.envs.parts import Parted
from coterie.envs.scripts import script_of
from coterie.envs.sides import Sides
from coterie.envs.vector import VectorEnv
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import UserError, nearest
from coterie.evaluation import Evaluator
from coterie.guide import Guide, Roster
from coterie.policy import Mode, Policy
from coterie.replay import unfilled
from coterie.rundir import RunDir
from coterie.schema import RunConfig
from coterie.seeds import seed_of
from coterie.teams import assign
from coterie.types import EnvSpec, TeamSpec

if TYPE_CHECKING:
    from coterie.curriculum.course import Course
    from coterie.selfplay.guide import SelfPlay

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
        plain, judged = env, eval_env
        if mirrored(config, teams) and config.selfplay.sides != "first":
            env, eval_env = both_sides(config, env), both_sides(config, eval_env)
        collector = Collector(env, policies, seed_of(config.seed, "collect"))
        evaluator = Evaluator(eval_env, policies, config.eval.episodes, modes, seed_of(config.seed, "evaluator"))
        roster = Roster.of(learners)
        guides = [*_imitation(config, learners, roster, device), *_turns(config, roster, env.spec, teams)]
        judge = None
        if config.selfplay.on:
            play = _self_play(config, learners, modes, roster, collector, evaluator)
            guides.append(play)
            judge = play.strength
        course = course_of(config)
        if course is not None:
            guides.append(_lessons(config, course, teams, (plain, judged), evaluator))
        stack.pop_all()
    return Parts(teams, learners, collector, evaluator, roster, tuple(guides), judge)


def course_of(config: RunConfig) -> Course | None:
    """The run's lessons and parameters that are drawn; None without."""
    if not config.curriculum.lessons and not config.randomise:
        return None
    from coterie.curriculum.course import Course

    return Course(config.curriculum, config.randomise)


def _lessons(
    config: RunConfig,
    course: Course,
    teams: dict[str, TeamSpec],
    envs: tuple[VectorEnv, VectorEnv],
    evaluator: Evaluator,
) -> Guide:
    """What leads from lesson to lesson. UserError for metrics that the run never logs."""
    from coterie.curriculum.guide import Lessons

    env, judged = envs
    for lesson in course.lessons:
        if lesson.advance is not None:
            who = f"curriculum.lessons: lesson '{lesson.name}'"
            _check_metric(who, lesson.advance.metric, config, env.spec, teams)
    return Lessons(course, env, judged, evaluator, config.steps)


def _check_metric(who: str, metric: str, config: RunConfig, spec: EnvSpec, teams: dict[str, TeamSpec]) -> None:
    """UserError for a metric that this run never logs."""
    from coterie.curriculum.metric import check

    if metric.startswith("selfplay/"):
        rated = ("elo", "elo_error", "pool")
        one = mirrored(config, teams) is not None
        logged = ["selfplay/win_rate", *(f"selfplay/{name}" for name in rated if one)]
        logged += [f"selfplay/{team}/{name}" for team in teams for name in rated if not one]
        if not config.selfplay.on:
            raise UserError(f"{who} waits for the metric '{metric}', which is never logged without selfplay.opponents")
        if metric not in logged:
            raise UserError(f"{who} waits for the metric '{metric}', which is never logged: {nearest(metric, logged)}")
        return
    check(who, metric, list(teams), spec.metrics, config.eval.every != 0)


def _imitation(
    config: RunConfig, learners: dict[str, Algorithm], roster: Roster, device: torch.device
) -> tuple[Guide, ...]:
    """What fits policies to demonstrations, if any. UserError for who cannot be fitted, and others' demonstrations."""
    pair = mirrored(config, {name: learner.policy.team for name, learner in learners.items()})
    asked = [name for name in learners if config.imitation_of(name).demos and not (pair and name == pair[1])]
    if not asked:
        if config.imitation.demos:
            raise UserError(
                f"imitation.demos={config.imitation.demos} is given, and no team learns from it: leave it out"
            )
        return ()
    from coterie.imitation.batches import demos_for
    from coterie.imitation.cloning import Cloning, Pupil, require_student

    pupils = {}
    for name in asked:
        choice, own = config.algo_of(name), config.imitation_of(name)
        learner = require_student(name, choice.name, learners[name])
        key = f"teams.{name}.imitation.demos" if name in config.teams else "imitation.demos"
        assert own.demos is not None
        demos = demos_for(own.demos, key, config.env.name, learner.policy.team)
        lr = getattr(choice.params, "lr")  # noqa: B009 (every learner's settings have it)
        pupils[name] = Pupil(learner, own, lr, demos, seed_of(config.seed, "imitation", name), device)
    return (Cloning(pupils, config.steps, roster, len(learners) > 1),)


def _turns(config: RunConfig, roster: Roster, spec: EnvSpec, teams: dict[str, TeamSpec]) -> tuple[Guide, ...]:
    """Who learns when, if not everybody always."""
    given, every = config.turns, config.turns.every
    if every is None and given.until is None and config.selfplay.on and len(roster.learners) > 1:
        every = max(1, config.steps // 10)
    if every is None and given.until is None:
        if given.order:
            raise UserError("turns.order says who learns when, and nothing ends a turn: give turns.every=STEPS")
        return ()
    from coterie.turns import Turns, order_of

    order = order_of(given.order, roster)
    several = [turn for turn in order if len(turn) > 1]
    if config.selfplay.on and several:
        raise UserError(
            f"turns.order has {' and '.join(several[0])} learn at once, and in self-play one team learns at a time: "
            "give each a turn of its own"
        )
    if given.until is not None:
        for turn in order:
            _check_metric("turns.until", given.until.of(turn[0]).metric, config, spec, teams)
    return (Turns(roster, order, every, given.until, given.repeat, config.steps),)


def _self_play(
    config: RunConfig,
    learners: dict[str, Algorithm],
    modes: dict[str, Mode],
    roster: Roster,
    collector: Collector,
    evaluator: Evaluator,
) -> SelfPlay:
    """Opponents from the past for the two teams that play. UserError if there are not two."""
    from coterie.selfplay.guide import SelfPlay

    equal = mirrored(config, {name: learner.policy.team for name, learner in learners.items()})
    names = [name for name in equal or roster.learners if equal or learners[name].capabilities.learns]
    if len(names) != 2 or not learners[names[0]].capabilities.learns:
        learn = [name for name, learner in learners.items() if learner.capabilities.learns]
        raise UserError(
            f"selfplay.opponents={config.selfplay.opponents} needs two teams that learn, and {config.env.name} has "
            f"{len(learn)} here{f' ({learn[0]})' if len(learn) == 1 else ''}: choose an environment of two sides and "
            "algorithms that learn, or leave selfplay out"
        )
    policies = {name: learners[name].policy for name in names}
    every = config.selfplay.every or max(1, config.steps // 20)
    seed = seed_of(config.seed, "selfplay")
    acts = eval_modes("auto", learners)  # in training, however evaluations are made
    return SelfPlay(
        config.selfplay, every, policies, acts, modes, equal is not None, roster, collector, evaluator, seed
    )


def both_sides(config: RunConfig, env: VectorEnv) -> VectorEnv:
    """The environment with its sides exchanged in every other copy. UserError where something cannot be exchanged."""
    first = "or give selfplay.sides=first"
    if isinstance(env, Parted):
        raise UserError(
            f"workers.overlap=true steps copies in halves, whose sides are not exchanged: set it false, {first}"
        )
    if any(state not in env.spec.groups for state in env.spec.state_sizes):
        raise UserError(
            f"algo.critic reads the {env.spec.name} state of both sides, which cannot be exchanged: use "
            f"algo.critic=joint, {first}"
        )
    return Sides(env)


def mirrored(config: RunConfig, teams: dict[str, TeamSpec]) -> tuple[str, str] | None:
    """The two teams of a self-play in which one policy plays both sides, the one that learns first; None in others.
    UserError if that was asked for and cannot be.
    """
    sides = config.selfplay.sides
    if not config.selfplay.on or sides == "turns":
        return None
    names = tuple(teams)
    if sides == "auto" and not (len(names) == 2 and teams[names[0]].equal_sides and names[1] not in config.teams):
        return None
    why = f"there are {len(names)} teams" if len(names) != 2 else mismatch(teams[names[1]], teams[names[0]])
    if why is None and names[1] in config.teams:
        why = f"teams.{names[1]} is given settings of its own"
    if why is not None:
        raise UserError(f"selfplay.sides={sides}: one policy cannot play both sides: {why}; use selfplay.sides=turns")
    return names[0], names[1]


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

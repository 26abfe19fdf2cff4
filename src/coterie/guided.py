"""From a configuration to what guides a run beside its learners: demonstrations, turns, self-play, lessons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from coterie.algos.algorithm import Algorithm
from coterie.borrowed import mismatch
from coterie.collect import Collector
from coterie.envs.parts import Parted
from coterie.envs.sides import Sides
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError, nearest
from coterie.evaluation import Evaluator
from coterie.guide import Guide, Roster
from coterie.policy import Mode
from coterie.schema import RunConfig
from coterie.seeds import seed_of
from coterie.types import EnvSpec, TeamSpec

if TYPE_CHECKING:
    from coterie.curriculum.course import Course
    from coterie.selfplay.guide import SelfPlay

Judge = Callable[[], float]


def guides(
    config: RunConfig,
    learners: dict[str, Algorithm],
    modes: dict[str, Mode],
    roster: Roster,
    collector: Collector,
    evaluator: Evaluator,
    worlds: tuple[VectorEnv, VectorEnv],
) -> tuple[tuple[Guide, ...], Judge | None]:
    """What guides the run, in the order in which it hears of windows, and what its best checkpoint is best at if that
    is not a return. UserError where the configuration does not fit together.

    modes: how actions are picked in evaluation; worlds: what is collected from and what is evaluated in, as they were
    before sides were exchanged.
    """
    teams = {name: learner.policy.team for name, learner in learners.items()}
    spec, device = collector.env.spec, collector.env.device
    found = [*_imitation(config, learners, roster, device), *_turns(config, roster, spec, teams)]
    judge = None
    if config.selfplay.on:
        play = _self_play(config, learners, modes, roster, collector, evaluator)
        found.append(play)
        judge = play.strength
    course = course_of(config)
    if course is not None:
        found.append(_lessons(config, course, teams, worlds, evaluator))
    return tuple(found), judge


def course_of(config: RunConfig) -> Course | None:
    """The run's lessons and parameters that are drawn; None without."""
    if not config.curriculum.lessons and not config.randomise:
        return None
    from coterie.curriculum.course import Course

    return Course(config.curriculum, config.randomise)


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
    acts: dict[str, Mode] = {
        name: learner.capabilities.eval_mode for name, learner in learners.items()
    }  # however evaluations are made
    return SelfPlay(
        config.selfplay, every, policies, acts, modes, equal is not None, roster, collector, evaluator, seed
    )


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

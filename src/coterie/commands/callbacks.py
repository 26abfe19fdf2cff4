"""The callbacks of a run: imitation, alternating training, self-play, curriculum."""

from __future__ import annotations

from collections.abc import Callable

from coterie.algos.algorithm import Algorithm
from coterie.commands.environment import lessons_of
from coterie.commands.learners import teams_sharing_policy
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError, nearest
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.imitation.cloning import BehaviorCloner, BehaviorCloningCallback, require_cloneable
from coterie.imitation.demo_batches import load_demos
from coterie.policies.base import Mode
from coterie.rewards.rewarded import RewardedAlgorithm
from coterie.training.alternating import AlternatingTraining, AlternationSchedule, resolve_phases
from coterie.training.callback import TrainerCallback
from coterie.training.curriculum.curriculum_callback import CurriculumCallback, LessonEnvs
from coterie.training.curriculum.lessons import Lessons
from coterie.training.curriculum.metric import check_metric
from coterie.training.run_parts import RunComponents
from coterie.training.selfplay.selfplay_callback import SelfPlayCallback, SelfPlayTeams


def make_callbacks(
    config: RunConfig, components: RunComponents, modes: dict[str, Mode], lesson_envs: LessonEnvs
) -> tuple[tuple[TrainerCallback, ...], dict[str, Callable[[], float]]]:
    """Creates the callbacks of a run, in the order in which they are called.

    Args:
        config: Configuration of the run.
        components: The run's other parts.
        modes: Action selection in evaluation by team.
        lesson_envs: Environments of the run before sides are swapped.

    Returns:
        The callbacks and, with self-play, the functions that return each team's rating.

    Raises:
        UserError: If parts of the configuration do not fit together.
    """
    callbacks: list[TrainerCallback] = []
    imitation = _imitation(config, components)
    if imitation is not None:
        callbacks.append(imitation)
    alternating = _alternating(config, components)
    if alternating is not None:
        callbacks.append(alternating)
    ratings = {}
    if config.selfplay.enabled:
        selfplay = _self_play(config, components, modes)
        callbacks.append(selfplay)
        ratings = selfplay.ratings()
    lessons = lessons_of(config)
    if lessons is not None:
        callbacks.append(_curriculum(config, components, lessons, lesson_envs))
    return tuple(callbacks), ratings


def _imitation(config: RunConfig, components: RunComponents) -> TrainerCallback | None:
    """Creates the callback that clones demonstrations, if any team has them."""
    teams, algorithms = components.teams, components.algorithms
    shared = teams_sharing_policy(config, teams)
    names = [name for name in teams if config.imitation_of(name).demos and not (shared and name == shared[1])]
    if not names:
        if config.imitation.demos:
            raise UserError(f"imitation.demos={config.imitation.demos}: no team learns from it. Remove the setting.")
        return None
    device = components.collector.env.device
    cloners = {}
    for name in names:
        choice, imitation = config.algo_of(name), config.imitation_of(name)
        algorithm = algorithms[name]
        if isinstance(algorithm, RewardedAlgorithm):  # imitation trains the policy, whatever rewards it gets
            algorithm = algorithm.algorithm
        require_cloneable(name, choice.name, algorithm)
        key = f"teams.{name}.imitation.demos" if name in config.teams else "imitation.demos"
        assert imitation.demos is not None
        cloners[name] = BehaviorCloner(
            algorithm,
            imitation,
            load_demos(imitation.demos, key, config.env.name, teams[name]),
            default_lr=vars(choice.params)["lr"],
            seed=seed_of(config.seed, "imitation", name),
            device=device,
        )
    return BehaviorCloningCallback(
        cloners, components.active_teams, total_steps=config.steps, with_team_names=len(teams) > 1
    )


def _alternating(config: RunConfig, components: RunComponents) -> TrainerCallback | None:
    """Creates the callback for alternating training, unless all teams always learn."""
    alternate, active_teams = config.alternate, components.active_teams
    interval = alternate.every
    if interval is None and alternate.until is None and config.selfplay.enabled and len(active_teams.learners) > 1:
        interval = max(1, config.steps // 10)
    if interval is None and alternate.until is None:
        if alternate.order:
            raise UserError("alternate.order: nothing ends a phase. Set alternate.every=STEPS.")
        return None
    phases = resolve_phases(alternate.order, active_teams)
    several = [teams for teams in phases if len(teams) > 1]
    if config.selfplay.enabled and several:
        raise UserError(
            f"alternate.order: {' and '.join(several[0])} learn at the same time, but self-play trains one team at a "
            "time. Use one team per phase."
        )
    if alternate.until is not None:
        for teams in phases:
            _check_metric("alternate.until", alternate.until.for_team(teams[0]).metric, config, components)
    schedule = AlternationSchedule(
        phases=phases,
        interval=interval,
        until=alternate.until,
        repeat=alternate.repeat,
        total_steps=config.steps,
    )
    return AlternatingTraining(active_teams, schedule)


def _self_play(config: RunConfig, components: RunComponents, modes: dict[str, Mode]) -> SelfPlayCallback:
    """Creates the callback for self-play between two teams."""
    algorithms, active_teams = components.algorithms, components.active_teams
    shared = teams_sharing_policy(config, components.teams)
    names = list(shared or [name for name in active_teams.learners if algorithms[name].capabilities.learns])
    if len(names) != 2 or not algorithms[names[0]].capabilities.learns:
        learning = [name for name, algorithm in algorithms.items() if algorithm.capabilities.learns]
        raise UserError(
            f"selfplay.opponents={config.selfplay.opponents} needs two teams that learn, but {config.env.name} has "
            f"{len(learning)} here{f' ({learning[0]})' if len(learning) == 1 else ''}. Choose an environment with two "
            "sides and algorithms that learn, or remove selfplay."
        )
    interval = config.selfplay.snapshot_interval or max(1, config.steps // 20)
    teams = SelfPlayTeams(
        policies={name: algorithms[name].policy for name in names},
        modes=_published_modes(algorithms),  # independent of eval.mode
        rating_modes=modes,
        shared_policy=shared is not None,
    )
    return SelfPlayCallback(
        config.selfplay.model_copy(update={"snapshot_interval": interval}),
        teams,
        active_teams=active_teams,
        collector=components.collector,
        evaluator=components.evaluator,
        seed=seed_of(config.seed, "selfplay"),
    )


def _published_modes(algorithms: dict[str, Algorithm]) -> dict[str, Mode]:
    return {name: algorithm.capabilities.eval_mode for name, algorithm in algorithms.items()}


def _curriculum(config: RunConfig, components: RunComponents, lessons: Lessons, envs: LessonEnvs) -> TrainerCallback:
    """Creates the callback that advances the lessons."""
    for lesson in lessons.lessons:
        if lesson.advance is not None:
            waiting = f"curriculum.lessons: lesson '{lesson.name}'"
            _check_metric(waiting, lesson.advance.metric, config, components)
    return CurriculumCallback(lessons, envs, components.evaluator, config.steps, components.ranks)


def _check_metric(waiting: str, metric: str, config: RunConfig, components: RunComponents) -> None:
    """Raises UserError for a metric that the run never logs."""
    teams: dict[str, TeamSpec] = components.teams
    if not metric.startswith("selfplay/"):
        spec = components.collector.env.spec
        check_metric(
            waiting,
            metric,
            teams=list(teams),
            env_metrics=spec.metrics,
            has_group_reward=spec.has_group_reward,
            evaluates=config.eval.every != 0,
        )
        return
    if not config.selfplay.enabled:
        raise UserError(f"{waiting} waits for the metric '{metric}', which is never logged without selfplay.opponents")
    rated = ("elo", "elo_error", "pool")
    if teams_sharing_policy(config, teams) is not None:
        logged = ["selfplay/win_rate", *(f"selfplay/{name}" for name in rated)]
    else:
        logged = ["selfplay/win_rate", *(f"selfplay/{team}/{name}" for team in teams for name in rated)]
    if metric not in logged:
        raise UserError(f"{waiting} waits for the metric '{metric}', which is never logged. {nearest(metric, logged)}")

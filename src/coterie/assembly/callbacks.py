"""The callbacks of a run: imitation, alternating training, self-play, curriculum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie.assembly.environment import lessons_of
from coterie.config.schema import AlternateConfig, RunConfig, SelfPlayConfig
from coterie.core.errors import UserError, nearest
from coterie.core.seeds import seed_of
from coterie.imitation.cloning import BehaviorCloner, BehaviorCloningCallback, require_cloneable
from coterie.imitation.demo_batches import load_demos
from coterie.policies.base import Mode
from coterie.rewards.rewarded import RewardedAlgorithm
from coterie.training.alternating import AlternatingTraining, AlternationSchedule, resolve_phases
from coterie.training.callback import ActiveTeams, TrainerCallback
from coterie.training.curriculum import CurriculumCallback, LessonEnvs, check_metric
from coterie.training.run_parts import RunComponents
from coterie.training.selfplay_callback import SelfPlayCallback, SelfPlayTeams


def make_callbacks(
    config: RunConfig,
    components: RunComponents,
    modes: dict[str, Mode],
    lesson_envs: LessonEnvs,
    shared: tuple[str, str] | None,
) -> tuple[tuple[TrainerCallback, ...], dict[str, Callable[[], float]]]:
    """Creates the callbacks of a run, in the order in which they are called.

    Args:
        config: Configuration of the run.
        components: The run's other parts.
        modes: Action selection in evaluation by team.
        lesson_envs: Environments of the run before sides are swapped.
        shared: The two teams for which one policy plays, see `teams_sharing_policy`.

    Returns:
        The callbacks and, with self-play, the functions that return each team's rating.

    Raises:
        UserError: If parts of the configuration do not fit together.
    """
    selfplay, active_teams = config.selfplay, components.active_teams
    metrics = _LoggedMetrics(components, evaluates=config.eval.every != 0, rates=selfplay.enabled, shared=shared)
    callbacks: list[TrainerCallback] = []
    imitation = _imitation(config, components, shared)
    if imitation is not None:
        callbacks.append(imitation)
    alternating = _alternating(config.alternate, active_teams, metrics, selfplay=selfplay.enabled, steps=config.steps)
    if alternating is not None:
        callbacks.append(alternating)
    ratings = {}
    if selfplay.enabled:
        _require_opponents(selfplay, components, shared, config.env.name)
        interval = selfplay.snapshot_interval or max(1, config.steps // 20)
        rated = _self_play(
            selfplay.model_copy(update={"snapshot_interval": interval}),
            components,
            modes,
            shared=shared,
            seed=seed_of(config.seed, "selfplay"),
        )
        callbacks.append(rated)
        ratings = rated.ratings()
    lessons = lessons_of(config)
    if lessons is not None:
        for lesson in lessons.lessons:
            if lesson.advance is not None:
                metrics.check(f"curriculum.lessons: lesson '{lesson.name}'", lesson.advance.metric)
        callbacks.append(CurriculumCallback(lessons, lesson_envs, components.evaluator, config.steps, components.ranks))
    return tuple(callbacks), ratings


def _imitation(config: RunConfig, components: RunComponents, shared: tuple[str, str] | None) -> TrainerCallback | None:
    """Creates the callback that clones demonstrations, if any team has them."""
    teams, algorithms = components.teams, components.algorithms
    names = [name for name in teams if config.team(name).imitation.demos and not (shared and name == shared[1])]
    if not names:
        if config.imitation.demos:
            raise UserError(f"imitation.demos={config.imitation.demos}: no team learns from it. Remove the setting.")
        return None
    device = components.collector.env.device
    cloners = {}
    for name in names:
        choice, imitation = config.team(name).algo, config.team(name).imitation
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


def _alternating(
    alternate: AlternateConfig, active_teams: ActiveTeams, metrics: _LoggedMetrics, *, selfplay: bool, steps: int
) -> TrainerCallback | None:
    """Creates the callback for alternating training, unless all teams always learn."""
    interval = alternate.every
    if interval is None and alternate.until is None and selfplay and len(active_teams.learners) > 1:
        interval = max(1, steps // 10)
    if interval is None and alternate.until is None:
        if alternate.order:
            raise UserError("alternate.order: nothing ends a phase. Set alternate.every=STEPS.")
        return None
    phases = resolve_phases(alternate.order, active_teams)
    several = [teams for teams in phases if len(teams) > 1]
    if selfplay and several:
        raise UserError(
            f"alternate.order: {' and '.join(several[0])} learn at the same time, but self-play trains one team at a "
            "time. Use one team per phase."
        )
    if alternate.until is not None:
        for teams in phases:
            metrics.check("alternate.until", alternate.until.for_team(teams[0]).metric)
    schedule = AlternationSchedule(
        phases=phases, interval=interval, until=alternate.until, repeat=alternate.repeat, total_steps=steps
    )
    return AlternatingTraining(active_teams, schedule)


def _require_opponents(
    selfplay: SelfPlayConfig, components: RunComponents, shared: tuple[str, str] | None, env: str
) -> None:
    """Raises UserError if there are not two teams that learn, or one that learns for both."""
    algorithms = components.algorithms
    names = list(shared or components.active_teams.learners)
    if len(names) != 2 or not algorithms[names[0]].capabilities.learns:
        learning = [name for name, algorithm in algorithms.items() if algorithm.capabilities.learns]
        raise UserError(
            f"selfplay.opponents={selfplay.opponents} needs two teams that learn, but {env} has "
            f"{len(learning)} here{f' ({learning[0]})' if len(learning) == 1 else ''}. Choose an environment with two "
            "sides and algorithms that learn, or remove selfplay."
        )


def _self_play(
    selfplay: SelfPlayConfig,
    components: RunComponents,
    modes: dict[str, Mode],
    *,
    shared: tuple[str, str] | None,
    seed: int,
) -> SelfPlayCallback:
    """Creates the callback for self-play between two teams."""
    algorithms, active_teams = components.algorithms, components.active_teams
    teams = SelfPlayTeams(
        policies={name: algorithms[name].policy for name in shared or active_teams.learners},
        modes={name: a.capabilities.eval_mode for name, a in algorithms.items()},  # independent of eval.mode
        rating_modes=modes,
        shared_policy=shared is not None,
    )
    return SelfPlayCallback(
        selfplay,
        teams,
        active_teams=active_teams,
        collector=components.collector,
        evaluator=components.evaluator,
        seed=seed,
        ranks=components.ranks,
    )


@dataclass(frozen=True)
class _LoggedMetrics:
    """The metrics that a run logs.

    Attributes:
        components: Parts of the run.
        evaluates: True if there are evaluations.
        rates: True if there is self-play.
        shared: The two teams for which one policy plays.
    """

    components: RunComponents
    evaluates: bool
    rates: bool
    shared: tuple[str, str] | None

    def check(self, waiting: str, metric: str) -> None:
        """Raises UserError for a metric that the run never logs. `waiting` is what waits for it."""
        teams = list(self.components.teams)
        if not metric.startswith("selfplay/"):
            spec = self.components.collector.env.spec
            check_metric(
                waiting,
                metric,
                teams=teams,
                env_metrics=spec.metrics,
                has_group_reward=spec.has_group_reward,
                evaluates=self.evaluates,
            )
            return
        if not self.rates:
            raise UserError(
                f"{waiting} waits for the metric '{metric}', which is never logged without selfplay.opponents"
            )
        rated = ("elo", "elo_error", "pool")
        names = [""] if self.shared is not None else [f"{team}/" for team in teams]
        logged = ["selfplay/win_rate", *(f"selfplay/{team}{name}" for team in names for name in rated)]
        if metric not in logged:
            raise UserError(
                f"{waiting} waits for the metric '{metric}', which is never logged. {nearest(metric, logged)}"
            )

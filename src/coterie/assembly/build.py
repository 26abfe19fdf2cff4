"""From a configuration to a run: environment, teams, algorithms, collector, evaluator, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from coterie.assembly.environment import (
    assign_teams,
    lessons_of,
    make_environment,
    select_device,
    swap_sides,
    with_agent_order,
)
from coterie.assembly.learners import connect_global_critics, eval_modes, make_algorithms, teams_sharing_policy
from coterie.assembly.rank_processes import device_of
from coterie.config.schema import AlternateConfig, EvalConfig, RunConfig, SelfPlayConfig
from coterie.core.errors import UserError, nearest
from coterie.core.process import format_bytes, free_bytes
from coterie.core.seeds import seed_of
from coterie.core.tree import tree_leaves
from coterie.envs.contract.vector import VectorEnv, close_env, closed
from coterie.imitation.cloning import BehaviorCloner, BehaviorCloningCallback, require_cloneable
from coterie.imitation.demo_batches import load_demos
from coterie.policies.base import Mode
from coterie.ranks.process_ranks import local_size
from coterie.ranks.ranks import ONE, Ranks
from coterie.rewards.rewarded import RewardedAlgorithm
from coterie.training.alternating import AlternatingTraining, AlternationSchedule, resolve_phases
from coterie.training.best import BestRules, best_rules
from coterie.training.callback import ActiveTeams, TrainerCallback
from coterie.training.collection import obstacle
from coterie.training.collector import Collector
from coterie.training.curriculum import CurriculumCallback, LessonEnvs, check_metric
from coterie.training.evaluation import Evaluator
from coterie.training.run_parts import RunComponents
from coterie.training.selfplay_callback import SelfPlayCallback, SelfPlayTeams

_FEWEST_ESTIMATED = 2000
"""Number of environments from which the memory is estimated, which needs one more environment for a moment."""


def build(config: RunConfig, ranks: Ranks = ONE) -> RunComponents:
    """Builds everything that a training loop needs.

    Args:
        config: Configuration of the run.
        ranks: Ranks that train together. Each has an equal share of the environments.

    Raises:
        UserError: If parts of the configuration do not fit together.
    """
    device = select_device(device_of(config, ranks))
    num_envs = config.num_envs // ranks.size
    with ExitStack() as stack:  # closes the environments if a later step fails
        require_memory(config, device)
        env = make_environment(config, "train", num_envs=num_envs, device=device, ranks=ranks)
        stack.callback(close_env, env)
        teams = assign_teams(config.teams, env.spec)
        algorithms = make_algorithms(config, teams, device, ranks=ranks)
        eval_config = with_agent_order(config, env.spec.agents)
        eval_env = _make_eval_environment(eval_config, device)
        stack.callback(close_env, eval_env)
        lesson_envs = LessonEnvs(train=env, eval=eval_env)
        shared = teams_sharing_policy(config.selfplay, config.teams, teams)
        if shared is not None and config.selfplay.sides != "first":
            choice = config.algo_of(shared[0])
            env, eval_env = swap_sides(env, choice, ranks.rank * num_envs), swap_sides(eval_env, choice)
        policies = {name: algorithm.policy for name, algorithm in algorithms.items()}
        modes = eval_modes(config.eval.mode, algorithms)
        components = RunComponents(
            teams=teams,
            algorithms=algorithms,
            collector=Collector(
                env,
                {name: algorithm.behavior_policy for name, algorithm in algorithms.items()},
                seed_of(config.seed, "collect"),
                connect_global_critics(algorithms, selfplay=config.selfplay.enabled),
                ranks,
                cuda_graphs=config.cuda_graphs == "on",
            ),
            evaluator=Evaluator(
                eval_env,
                policies,
                episodes=config.eval.episodes,
                modes=modes,
                seed=seed_of(config.seed, "evaluator"),
            ),
            active_teams=ActiveTeams.from_algorithms(algorithms),
            ranks=ranks,
        )
        callbacks, ratings = make_callbacks(config, components, modes, lesson_envs, shared)
        rules = _best_rules(config.eval, components, ratings)
        stack.pop_all()
    return replace(components, callbacks=callbacks, best_rules=rules)


def _best_rules(
    evaluation: EvalConfig, components: RunComponents, ratings: dict[str, Callable[[], float]]
) -> BestRules | None:
    """Returns how the best checkpoints are chosen; None without evaluations."""
    if evaluation.every == 0:
        if evaluation.best != "auto":
            raise UserError(
                f"eval.best={evaluation.best}: there are no evaluations to choose by (eval.every=0). Set eval.every, "
                "or remove eval.best."
            )
        return None
    return best_rules(
        evaluation.best,
        evaluation.min_episodes,
        teams=list(components.teams),
        learners=components.active_teams.learners,
        env_metrics=components.collector.env.spec.metrics,
        has_group_reward=components.collector.env.spec.has_group_reward,
        ratings=ratings,
    )


def best_notes(evaluation: EvalConfig) -> list[str]:
    """Returns a line if evaluations have too few episodes to mark a best checkpoint; else none."""
    num_envs = min(evaluation.num_envs, evaluation.episodes)
    episodes = -(-evaluation.episodes // num_envs) * num_envs
    if evaluation.every == 0 or episodes >= evaluation.min_episodes:
        return []
    return [
        f"eval.episodes={evaluation.episodes}: fewer than eval.min_episodes={evaluation.min_episodes}, so no "
        "checkpoint is marked as best and commands use the last. Raise eval.episodes, or reduce eval.min_episodes."
    ]


def graph_notes(config: RunConfig, components: RunComponents) -> list[str]:
    """Returns a line if CUDA graphs are asked for and rollouts cannot be captured; else none."""
    collector = components.collector
    reason = obstacle(collector.env, collector.policies) if config.cuda_graphs == "on" else None
    return [] if reason is None else [f"cuda_graphs=on: rollouts are not captured: {reason}"]


def _make_eval_environment(config: RunConfig, device: torch.device) -> VectorEnv:
    """Creates the environments for evaluation; a single idle one, without workers, if there are no evaluations."""
    if config.eval.every == 0 and not config.selfplay.enabled:
        return make_environment(config, "idle", num_envs=1, device=device)
    num_envs = min(config.eval.num_envs, config.eval.episodes)
    return make_environment(config, "eval", num_envs=num_envs, device=device)


def require_memory(config: RunConfig, device: torch.device) -> None:
    """Raises UserError if the timesteps of one rollout alone exceed the free memory of `device`.

    On the CPU, the ranks of this machine share its memory. Each has a GPU of its own.
    """
    if config.num_envs < _FEWEST_ESTIMATED:
        return
    sharing = min(local_size(), config.ranks) if device.type == "cpu" else 1
    num_envs = config.num_envs // config.ranks * sharing
    free = free_bytes("device", device)
    with closed(make_environment(config, "load", num_envs=1, device=device)) as env:
        nbytes = sum(leaf.nbytes for leaf in tree_leaves(env.reset(seed=0)))
    length = max(config.rollout_length_of(team) for team in ("", *config.teams))  # "" for all others
    needed = nbytes * (length + 1) * num_envs
    if free is not None and needed > free:
        most = max(1, free // (2 * nbytes * (length + 1))) * config.ranks // sharing
        raise UserError(
            f"num_envs={config.num_envs}: the observations of a rollout of {length:,} steps alone need "
            f"{format_bytes(needed)} of memory, and {format_bytes(free)} are free. "
            f"Use about num_envs={most}, or a smaller algo.rollout_length."
        )


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
        behavior_policies={name: algorithms[name].behavior_policy for name in active_teams.learners},
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

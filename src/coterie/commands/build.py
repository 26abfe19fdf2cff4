"""From a configuration to a run: environment, teams, algorithms, collector, evaluator, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import torch

from coterie.commands.callbacks import make_callbacks
from coterie.commands.environment import (
    assign_teams,
    make_environment,
    select_device,
    swap_sides,
    with_agent_order,
)
from coterie.commands.global_critics import connect_global_critics
from coterie.commands.learners import eval_modes, make_algorithms, teams_sharing_policy
from coterie.commands.rank_processes import device_of
from coterie.commands.rollout_memory import require_memory
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.ranks import ONE, Ranks
from coterie.core.seeds import seed_of
from coterie.envs.contract.vector import VectorEnv, close_env
from coterie.training.best import BestRules, best_rules
from coterie.training.callback import ActiveTeams
from coterie.training.collection import obstacle
from coterie.training.collector import Collector
from coterie.training.curriculum.curriculum_callback import LessonEnvs
from coterie.training.evaluation import Evaluator
from coterie.training.run_parts import RunComponents


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
        teams = assign_teams(config, env.spec)
        algorithms = make_algorithms(config, teams, device, ranks=ranks)
        eval_config = with_agent_order(config, env.spec.agents)
        eval_env = _make_eval_environment(eval_config, device)
        stack.callback(close_env, eval_env)
        lesson_envs = LessonEnvs(train=env, eval=eval_env)
        if teams_sharing_policy(config, teams) and config.selfplay.sides != "first":
            env, eval_env = swap_sides(env, ranks.rank * num_envs), swap_sides(eval_env)
        policies = {name: algorithm.policy for name, algorithm in algorithms.items()}
        modes = eval_modes(config.eval.mode, algorithms)
        components = RunComponents(
            teams=teams,
            algorithms=algorithms,
            collector=Collector(
                env, policies, seed_of(config.seed, "collect"), connect_global_critics(config, algorithms), ranks
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
        callbacks, ratings = make_callbacks(config, components, modes, lesson_envs)
        rules = _best_rules(config, components, ratings)
        stack.pop_all()
    return replace(components, callbacks=callbacks, best_rules=rules)


def _best_rules(
    config: RunConfig, components: RunComponents, ratings: dict[str, Callable[[], float]]
) -> BestRules | None:
    """Returns how the best checkpoints are chosen; None without evaluations."""
    setting = config.eval.best
    if config.eval.every == 0:
        if setting != "auto":
            raise UserError(
                f"eval.best={setting}: there are no evaluations to choose by (eval.every=0). Set eval.every, or remove "
                "eval.best."
            )
        return None
    return best_rules(
        setting,
        config.eval.min_episodes,
        teams=list(components.teams),
        learners=components.active_teams.learners,
        env_metrics=components.collector.env.spec.metrics,
        has_group_reward=components.collector.env.spec.has_group_reward,
        ratings=ratings,
    )


def best_notes(config: RunConfig) -> list[str]:
    """Returns a line if evaluations have too few episodes to mark a best checkpoint; else none."""
    num_envs = min(config.eval.num_envs, config.eval.episodes)
    episodes = -(-config.eval.episodes // num_envs) * num_envs
    if config.eval.every == 0 or episodes >= config.eval.min_episodes:
        return []
    return [
        f"eval.episodes={config.eval.episodes}: fewer than eval.min_episodes={config.eval.min_episodes}, so no "
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

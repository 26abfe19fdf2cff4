"""From a configuration to a run: environment, teams, algorithms, collector, evaluator, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import torch

from coterie.assembly.callbacks import make_callbacks
from coterie.assembly.environment import (
    assign_teams,
    make_environment,
    select_device,
    swap_sides,
    with_agent_order,
)
from coterie.assembly.learners import connect_global_critics, eval_modes, make_algorithms, teams_sharing_policy
from coterie.assembly.rank_processes import device_of
from coterie.config.schema import EvalConfig, RunConfig
from coterie.core.errors import UserError
from coterie.core.process import format_bytes, free_bytes
from coterie.core.seeds import seed_of
from coterie.core.tree import tree_leaves
from coterie.envs.contract.vector import VectorEnv, close_env, closed
from coterie.ranks.process_ranks import local_size
from coterie.ranks.ranks import ONE, Ranks
from coterie.training.best import BestRules, best_rules
from coterie.training.callback import ActiveTeams
from coterie.training.collection import obstacle
from coterie.training.collector import Collector
from coterie.training.curriculum import LessonEnvs
from coterie.training.evaluation import Evaluator
from coterie.training.run_parts import RunComponents

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
            env, eval_env = swap_sides(env, ranks.rank * num_envs), swap_sides(eval_env)
        policies = {name: algorithm.policy for name, algorithm in algorithms.items()}
        modes = eval_modes(config.eval.mode, algorithms)
        components = RunComponents(
            teams=teams,
            algorithms=algorithms,
            collector=Collector(
                env,
                policies,
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

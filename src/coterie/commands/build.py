"""From a configuration to a run: environment, teams, algorithms, collector, evaluator, callbacks."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace

import torch

from coterie.commands.callbacks import make_callbacks
from coterie.commands.environment import assign_teams, make_environment, select_device, swap_sides
from coterie.commands.learners import eval_modes, make_algorithms, teams_sharing_policy
from coterie.config.schema import RunConfig
from coterie.core.seeds import seed_of
from coterie.envs.contract.vector import VectorEnv
from coterie.training.callback import ActiveTeams
from coterie.training.collector import Collector
from coterie.training.curriculum.curriculum_callback import LessonEnvs
from coterie.training.evaluation import Evaluator
from coterie.training.trainer import RunComponents


def build(config: RunConfig) -> RunComponents:
    """Builds everything that a training loop needs.

    Raises:
        UserError: If parts of the configuration do not fit together.
    """
    device = select_device(config.device)
    with ExitStack() as stack:  # closes the environments if a later step fails
        train_env = make_environment(config, "train", num_envs=config.num_envs, device=device)
        env = stack.enter_context(closing(train_env))
        teams = assign_teams(config, env.spec)
        algorithms = make_algorithms(config, teams, device)
        eval_env = stack.enter_context(closing(_make_eval_environment(config, device)))
        lesson_envs = LessonEnvs(train=env, eval=eval_env)
        if teams_sharing_policy(config, teams) and config.selfplay.sides != "first":
            env, eval_env = swap_sides(env), swap_sides(eval_env)
        policies = {name: algorithm.policy for name, algorithm in algorithms.items()}
        modes = eval_modes(config.eval.mode, algorithms)
        components = RunComponents(
            teams=teams,
            algorithms=algorithms,
            collector=Collector(env, policies, seed_of(config.seed, "collect")),
            evaluator=Evaluator(
                eval_env,
                policies,
                episodes=config.eval.episodes,
                modes=modes,
                seed=seed_of(config.seed, "evaluator"),
            ),
            active_teams=ActiveTeams.from_algorithms(algorithms),
        )
        callbacks, best_metric = make_callbacks(config, components, modes, lesson_envs)
        stack.pop_all()
    return replace(components, callbacks=callbacks, best_metric=best_metric)


def _make_eval_environment(config: RunConfig, device: torch.device) -> VectorEnv:
    """Creates the environments for evaluation; a single idle one, without workers, if there are no evaluations."""
    if config.eval.every == 0 and not config.selfplay.enabled:
        return make_environment(config, "idle", num_envs=1, device=device)
    num_envs = min(config.eval.num_envs, config.eval.episodes)
    return make_environment(config, "eval", num_envs=num_envs, device=device)

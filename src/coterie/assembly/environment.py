"""The environments and teams that a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coterie.config.schema import Choice, RunConfig, TeamConfig
from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError, listed
from coterie.core.seeds import seed_of
from coterie.core.specs import EnvSpec, TeamSpec
from coterie.core.teams import assign
from coterie.envs import registry
from coterie.envs.contract.partial_step import PartitionedEnv
from coterie.envs.contract.side_swap import SideSwapEnv
from coterie.envs.contract.vector import VectorEnv, close_env, closed
from coterie.envs.external.agents import AgentsConfig, slots_are_fixed
from coterie.envs.make import make, spec_of
from coterie.ranks.ranks import ONE, Ranks
from coterie.training.curriculum import Lessons

_RUN_PURPOSES = ("train", "eval", "idle")
"""Purposes within a run, which start with its first lesson."""
_WORKER_PURPOSES = ("train", "eval", "evaluate")
"""Purposes for which starting workers is worthwhile, unlike for a single environment that is inspected or rendered."""


def select_device(name: str) -> torch.device:
    """Returns the device for `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        UserError: If this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            available = f"there are {count} (cuda:0 to cuda:{count - 1})" if count else "PyTorch finds no GPU"
            raise UserError(f"device={name}: no such GPU, {available}. Use device=auto or device=cpu.")
    return device


def make_environment(
    config: RunConfig,
    purpose: str,
    *,
    num_envs: int,
    device: torch.device,
    lesson: int | None = None,
    ranks: Ranks = ONE,
) -> VectorEnv:
    """Creates environments of a run, with state if an algorithm reads it and unshaped rewards except in training.

    Args:
        config: Configuration of the run.
        purpose: Determines the seed: train, eval or idle within a run; evaluate, play or load otherwise.
        num_envs: Number of environments.
        device: Device of observations and rewards.
        lesson: Lesson to start with, counted from 0. By default the first one within a run, otherwise the last one.
        ranks: Ranks that have `num_envs` environments each.
    """
    choices = [config.algo, *(team.algo for team in config.teams.values())]
    params = config.env.params
    if purpose != "train" and isinstance(params, ExternalEnvConfig):
        params = params.without_reward_shaping()
    env = make(
        config.env.name,
        params,
        num_envs=num_envs,
        seed=seed_of(config.seed, "env", purpose),
        device=device,
        with_state=any(getattr(choice.params, "needs_state", False) for choice in choices),
        workers=config.workers if purpose in _WORKER_PURPOSES else config.workers.model_copy(update={"count": 0}),
        ranks=ranks,
    )
    lessons = lessons_of(config)
    if lessons is None or purpose == "load":
        return env
    if lesson is None:
        lesson = 0 if purpose in _RUN_PURPOSES else lessons.last
    try:
        if purpose == "train":
            lessons.check(env)
        lessons.apply(env, lesson if purpose == "train" else lessons.eval_lesson(lesson))
    except BaseException:
        close_env(env)
        raise
    return env


def with_agent_order(config: RunConfig, agents: Sequence[str] | None) -> RunConfig:
    """Returns a configuration whose environments have their agents in an order of names.

    Environments whose agents have no names of users, or join and leave, keep their order. So do those whose setting
    `env.agent_order` is given.

    Args:
        config: Configuration of a run.
        agents: Names of all agents, as the run recorded them; None for no change.
    """
    params = config.env.params
    if agents is None or not isinstance(params, AgentsConfig) or not slots_are_fixed(params) or params.agent_order:
        return config
    ordered = params.model_copy(update={"agent_order": tuple(agents)})
    return config.model_copy(update={"env": config.env.model_copy(update={"params": ordered})})


def recorded_agents(manifest: Mapping[str, Any]) -> list[str] | None:
    """Returns the names of all agents in the order that a run's manifest has; None if it has none."""
    try:
        return [
            agent for team in manifest["teams"].values() for role in team["roles"].values() for agent in role["agents"]
        ] or None
    except (KeyError, TypeError, AttributeError):  # runs of older versions
        return None


def require_recorded_agents(manifest: Mapping[str, Any], name: str, teams: Mapping[str, TeamSpec]) -> None:
    """Refuses an environment whose agents have other names or another order than when its run started.

    Args:
        manifest: Manifest of the run.
        name: Name of the environment.
        teams: Teams of the environment, arranged by `with_agent_order`.

    Raises:
        UserError: With the agents of the first role that differs.
    """
    for team in teams.values():
        for role in team.roles:
            try:
                agents = manifest["teams"][team.name]["roles"][role.name]["agents"]
                recorded = [str(agent) for agent in agents]
            except (KeyError, TypeError):  # runs of older versions; other roles are refused where policies are loaded
                continue
            if recorded != list(role.agents):
                raise UserError(
                    f"environment '{name}': the agents of role {role.name} are {listed(role.agents)}, but the "
                    f"run has {listed(recorded)}. Policies belong to agents by name: give them the same names "
                    "in the same order."
                )


def lessons_of(config: RunConfig) -> Lessons | None:
    """Returns the lessons and randomized parameters of a run; None if it has neither."""
    if not config.curriculum.lessons and not config.randomize:
        return None
    return Lessons(config.curriculum, config.randomize)


def assign_teams(settings: Mapping[str, TeamConfig], spec: EnvSpec) -> dict[str, TeamSpec]:
    """Returns the teams of a run by name, in the environment's order. `settings` are those of single teams."""
    return {team.name: team for team in assign({name: team.roles for name, team in settings.items()}, spec)}


def check_teams(config: RunConfig) -> None:
    """Checks the teams of a configuration without creating environments.

    A user's own batch of environments has no spec before it is created, so its teams are checked when it is built.

    Raises:
        UserError: If a team or role does not exist.
    """
    if config.teams and not registry.is_batch_factory(config.env.name):
        assign_teams(config.teams, spec_of(config.env.name, config.env.params))


def load_teams(config: RunConfig, device: torch.device) -> dict[str, TeamSpec]:
    """Returns the teams of a run, read from an environment that is created and closed for this."""
    with closed(make_environment(config, "load", num_envs=1, device=device)) as env:
        return assign_teams(config.teams, env.spec)


def swap_sides(env: VectorEnv, choice: Choice, first_index: int = 0) -> VectorEnv:
    """Returns the environment with its two sides swapped in every other instance.

    Args:
        env: The environment.
        choice: Algorithm of both sides.
        first_index: Number of the first instance.

    Raises:
        UserError: If something cannot be swapped.
    """
    alternative = "or selfplay.sides=first"
    if isinstance(env, PartitionedEnv):
        raise UserError(
            "workers.overlap=true: environments that are stepped in halves cannot swap sides. Set "
            f"workers.overlap=false {alternative}."
        )
    if any(state not in env.spec.groups for state in env.spec.state_sizes):
        reader = "mixer_input" if hasattr(choice.params, "mixer_input") else "critic"
        raise UserError(
            f"algo.{reader}: the state of {env.spec.name} covers both sides and cannot be swapped. Use "
            f"algo.{reader}=joint {alternative}."
        )
    return SideSwapEnv(env, first_index)

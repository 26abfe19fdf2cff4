"""Policies of a run in an environment with other settings, other numbers of agents or other opponents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from coterie.algos.algorithm import Algorithm, AlgorithmContext
from coterie.algos.replay.memory import no_memory_check
from coterie.algos.scripted import Frozen, FrozenConfig
from coterie.assembly.environment import load_teams
from coterie.assembly.learners import (
    EvalMode,
    TrainedRun,
    eval_modes,
    load_run,
    make_algorithm,
    teams_sharing_policy,
)
from coterie.assembly.resolve import Resolved, based_on, load_resolved
from coterie.config.overrides import canonical, parse_all
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError, nearest
from coterie.core.seeds import seed_of
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.terminal import print_message
from coterie.policies.network_policy import NetworkPolicy
from coterie.runs.checkpoints import decoding
from coterie.runs.folder import RunFolder


def load_run_elsewhere(
    run: Path, overrides: Sequence[str], *, checkpoint: str, mode: EvalMode, device: torch.device
) -> TrainedRun:
    """Loads a run whose environment or opponents differ from those of its training.

    Args:
        run: Folder of the run.
        overrides: Settings `env.KEY=...`, `env=NAME`, `randomize.KEY=...` and `teams.TEAM.algo=...`.
        checkpoint: auto, best, best:TEAM, last or a number of steps.
        mode: Action selection of the run's policies.
        device: Device of the networks.

    Returns:
        The changed configuration, and an algorithm for each team: the run's policy, or what replaces it.

    Raises:
        UserError: If a setting is invalid, or the policies do not fit the environment.
    """
    before = load_resolved(RunFolder.open(run).config_path).config
    config = _changed(before, overrides).config
    trained = load_run(run, checkpoint, device)
    teams = load_teams(config, device)
    replaced = {key.split(".")[1] for key in _keys(overrides) if key.startswith("teams.")}
    unknown = next((name for name in replaced if name not in teams), None)
    if unknown is not None:
        raise UserError(f"teams.{unknown}: {config.env.name} has no such team. {nearest(unknown, teams)}")
    algorithms: dict[str, Algorithm] = {}
    for name, team in teams.items():
        if name in replaced:
            algorithms[name] = _opponent(config, team, device)
        else:
            algorithms[name] = _adapted(before, trained, team, mode=mode, device=device, settings=" ".join(overrides))
    return TrainedRun(config, algorithms, trained.choice)


def _keys(overrides: Sequence[str]) -> list[str]:
    return [canonical(override.key) for override in parse_all(list(overrides))]


def _changed(config: RunConfig, overrides: Sequence[str]) -> Resolved:
    """Returns the configuration with other settings. Those of the environment replace parameters that are sampled."""
    tree = config.tree()
    for override, key in zip(overrides, _keys(overrides), strict=True):
        section, _, rest = key.partition(".")
        if section not in {"env", "randomize"} and not (section == "teams" and ".algo." in f"{rest}."):
            raise UserError(
                f"{override.partition('=')[0]}: cannot be combined with a run, which has its own. Only env=NAME, "
                "env.KEY=..., randomize.KEY=... and teams.TEAM.algo=... can change in an evaluation."
            )
        if section == "env":
            tree["randomize"].pop(rest, None)
            for lesson in tree["curriculum"]["lessons"]:
                lesson["parameters"].pop(rest, None)
    return based_on(tree, overrides)


def _opponent(config: RunConfig, team: TeamSpec, device: torch.device) -> Algorithm:
    """Returns what a team acts with instead of the run's policy, and warns if it would have to learn first."""
    algo, setting = config.algo_of(team.name).name, f"teams.{team.name}.algo"
    context = AlgorithmContext(
        team=team,
        num_envs=config.num_envs,
        seed=seed_of(config.seed, "team", team.name),
        device=device,
        rollout_length=1,
    )
    with no_memory_check():
        algorithm = make_algorithm(config.team(team.name), context, config.env, setting=setting, with_rewards=False)
    if algorithm.capabilities.learns:
        print_message(
            f"{setting}={algo}: learns, and its networks are not trained here. To use a trained team, set "
            f"{setting}=frozen teams.{team.name}.run=RUN"
        )
    return algorithm


def _adapted(
    config: RunConfig, trained: TrainedRun, team: TeamSpec, *, mode: EvalMode, device: torch.device, settings: str
) -> Algorithm:
    """Returns an algorithm that acts for a team of the new environment with the run's policy.

    Raises:
        UserError: If the policy does not fit the team's spaces or number of agents.
    """
    if team.name not in trained.algorithms:
        raise UserError(
            f"{settings}: the environment has the team '{team.name}', but the run has {', '.join(trained.algorithms)}. "
            f"Set teams.{team.name}.algo=random or another algorithm that needs no training."
        )
    own = trained.algorithms[team.name]
    before = own.policy.team
    if team == before:
        return own
    policy = own.policy
    _require_roles(team, before, settings)
    any_number = isinstance(policy, NetworkPolicy) and policy.reads_entities
    if not any_number:
        _require_spaces(team, before, settings)
    if any_number or [role.n for role in team.roles] != [role.n for role in before.roles]:
        policy = _for_other_numbers(config, trained, team, device=device, settings=settings).policy
    context = AlgorithmContext(team=team, num_envs=config.num_envs, seed=0, device=device, rollout_length=1)
    frozen = Frozen(FrozenConfig(), context)
    frozen.set_policy(policy, eval_modes(mode, trained.algorithms)[team.name])
    return frozen


def _require_roles(team: TeamSpec, before: TeamSpec, settings: str) -> None:
    """Raises UserError if a team has other roles than the one that was trained."""
    names = [", ".join(role.name for role in spec.roles) for spec in (team, before)]
    if names[0] != names[1]:
        raise UserError(f"{settings}: team '{team.name}' has the roles {names[0]} there, but {names[1]} in the run.")


def _require_spaces(team: TeamSpec, before: TeamSpec, settings: str) -> None:
    """Raises UserError if the agents of a role observe or act in other spaces than those that were trained."""
    for role, old in zip(team.roles, before.roles, strict=True):
        now, then = _spaces(role), _spaces(old)
        if now != then:
            raise UserError(
                f"{settings}: role '{role.name}' {now} there, but its policy was trained on an agent that {then}. Use "
                "settings that keep these sizes."
            )


def _spaces(role: RoleSpec) -> str:
    shape = role.observation_space.shape
    seen = role.observation_space if not shape else " x ".join(map(str, shape))
    return f"observes {seen} numbers and acts in {role.action_space}"


def _for_other_numbers(
    config: RunConfig, trained: TrainedRun, team: TeamSpec, *, device: torch.device, settings: str
) -> Algorithm:
    """Returns the run's algorithm of a team, built for other numbers of agents, with the trained policy.

    Raises:
        UserError: If the policy has inputs or parameters for each agent.
    """
    assert trained.checkpoint is not None
    old = {name: algorithm.policy.team for name, algorithm in trained.algorithms.items()}
    shared = teams_sharing_policy(config.selfplay, config.teams, old)
    source = shared[0] if shared is not None and team.name == shared[1] else team.name
    context = AlgorithmContext(team=team, num_envs=config.num_envs, seed=0, device=device, rollout_length=1)
    with no_memory_check():
        algorithm = make_algorithm(config.team(source), context, config.env, setting="algo", with_rewards=False)
    with decoding(trained.checkpoint):
        state = trained.checkpoint.state["algorithms"][source]["policy"]
    try:
        algorithm.policy.load_state_dict(state)
    except (RuntimeError, KeyError) as error:
        pairs = [*zip(team.roles, old[team.name].roles, strict=True)]
        if isinstance(algorithm.policy, NetworkPolicy) and algorithm.policy.reads_entities:
            kinds = [
                ", ".join(f"{part.kind} ({part.size} features)" for part in role.parts.entities if part.count)
                for role in (*team.roles, *old[team.name].roles)
            ]
            there, here = "; ".join(kinds[: len(pairs)]), "; ".join(kinds[len(pairs) :])
            raise UserError(
                f"{settings}: its agents observe entities of other kinds or sizes there: {there}. The policy was "
                f"trained with {here}. Choose an environment with the same."
            ) from error
        role, before = next((role, before) for role, before in pairs if role.n != before.n)
        raise UserError(
            f"{settings}: role '{role.name}' has {role.n} agents there, but its policy was trained with {before.n} and "
            f"{_reason(vars(config.algo_of(source).params))}."
        ) from error
    return algorithm


def _reason(params: dict[str, Any]) -> str:
    """Returns why a policy does not fit other numbers of agents, and what to train with instead."""
    if params.get("share_params") == "none":
        return "has parameters for each of them. Train with algo.share_params=role algo.obs_agent_id=false"
    return "reads the number of each agent. Train with algo.obs_agent_id=false"

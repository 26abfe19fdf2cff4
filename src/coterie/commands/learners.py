"""The algorithms that a configuration describes, and those of trained runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from coterie.algos.algorithm import Algorithm, AlgorithmContext
from coterie.algos.frozen import Frozen, FrozenConfig
from coterie.algos.replay.memory import no_memory_check
from coterie.algos.scripted import Scripted
from coterie.commands.checkpoint_choice import CheckpointChoice, find_checkpoint
from coterie.commands.environment import (
    load_teams,
    recorded_agents,
    require_recorded_agents,
    select_device,
    with_agent_order,
)
from coterie.commands.global_critics import require_centralized
from coterie.commands.own_algorithms import require_complete
from coterie.config import registry, user_code
from coterie.config.resolve import Resolved, load_resolved
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError, nearest
from coterie.core.ranks import ONE, Ranks
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.envs.script_registry import load_script
from coterie.imitation.demo_batches import load_demos
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import team_mismatch
from coterie.rewards.rewarded import make_rewarded
from coterie.runs.checkpoints import LoadedCheckpoint, decoding
from coterie.runs.folder import RunFolder

EvalMode = Literal["auto", "greedy", "sample"]
"""Action selection in evaluation; auto is that of the method's publication."""


def eval_modes(mode: EvalMode, algorithms: dict[str, Algorithm]) -> dict[str, Mode]:
    """Returns how each team selects actions in evaluation."""
    return {name: a.capabilities.eval_mode if mode == "auto" else mode for name, a in algorithms.items()}


def teams_sharing_policy(config: RunConfig, teams: dict[str, TeamSpec]) -> tuple[str, str] | None:
    """Returns the two teams for which one policy plays both sides in self-play, the learning one first; else None.

    Raises:
        UserError: If the configuration asks for it and it is not possible.
    """
    sides = config.selfplay.sides
    if not config.selfplay.enabled or sides == "alternate":
        return None
    names = tuple(teams)
    if sides == "auto" and not (len(names) == 2 and teams[names[0]].symmetric and names[1] not in config.teams):
        return None
    why = f"there are {len(names)} teams" if len(names) != 2 else team_mismatch(teams[names[1]], teams[names[0]])
    if why is None and names[1] in config.teams:
        why = f"teams.{names[1]} has settings of its own"
    if why is not None:
        raise UserError(
            f"selfplay.sides={sides}: one policy cannot play both sides, because {why}. Use selfplay.sides=alternate."
        )
    return names[0], names[1]


# ------------------------------------------------------------------------------------------------------- construction


@user_code.reported()
def make_algorithms(
    config: RunConfig,
    teams: dict[str, TeamSpec],
    device: torch.device,
    *,
    with_rewards: bool = True,
    ranks: Ranks = ONE,
) -> dict[str, Algorithm]:
    """Creates one algorithm per team.

    Args:
        config: Configuration of the run.
        teams: Teams by name.
        device: Device of the networks.
        with_rewards: False to leave out reward signals, which acting does not need.
        ranks: Ranks that share the environments.

    Raises:
        UserError: If an algorithm does not support a team's spaces.
    """
    algorithms: dict[str, Algorithm] = {}
    num_envs = config.num_envs // ranks.size
    shared = teams_sharing_policy(config, teams)
    own = [name for name in teams if shared is None or name != shared[1]]
    rollout_lengths = _rollout_lengths(config, own)
    for name in own:
        context = AlgorithmContext(
            team=teams[name],
            num_envs=num_envs,
            seed=seed_of(config.seed, "team", name),
            device=device,
            rollout_length=rollout_lengths[name],
            ranks=ranks,
        )
        setting = f"teams.{name}.algo" if len(teams) > 1 else "algo"
        algorithms[name] = make_algorithm(config, context, setting, with_rewards=with_rewards)
    if shared is not None:
        first, second = shared
        algorithms[second] = _frozen_copy(algorithms[first], teams[second], num_envs, device)
    return {name: algorithms[name] for name in teams}


def make_algorithm(
    config: RunConfig, context: AlgorithmContext, setting: str, *, with_rewards: bool, team: str | None = None
) -> Algorithm:
    """Creates the algorithm of one team.

    Args:
        config: Configuration of the run.
        context: The team that it acts for, number of environments, seed and device.
        setting: Setting that names the algorithm, for error messages.
        with_rewards: False to leave out reward signals, which acting does not need.
        team: Team whose settings it has; by default the one that it acts for.

    Raises:
        UserError: If it does not support the team's spaces.
    """
    name, owner = team or context.team.name, context.team
    choice = config.algo_of(name)
    cls = registry.algorithm(choice.name)
    cls.capabilities.check(choice.name, owner, setting)
    require_centralized(choice, setting)
    rewards = config.rewards_of(name)
    if rewards.is_extrinsic_only:
        algorithm = cls(choice.params, context)
    else:
        if rewards.gail is not None and rewards.gail.demos is not None and with_rewards:
            load_demos(rewards.gail.demos, "rewards.gail.demos", config.env.name, owner)  # checks them
        algorithm = make_rewarded(choice, rewards, context, with_signals=with_rewards)
    if registry.is_own_algorithm(choice.name):
        require_complete(algorithm, choice.name)
    if isinstance(algorithm, Frozen):
        algorithm.set_policy(*load_frozen_policy(owner.name, algorithm.config, context.device))
    elif isinstance(algorithm, Scripted):
        algorithm.set_script(*load_script(owner, config.env, algorithm.config.script))
    wanted = _wanted_rollout_length(config, name)
    if cls.capabilities.learns and algorithm.rollout_length != wanted:
        note = f"rollout_length is {algorithm.rollout_length}, not {wanted}: a multiple of the shortest of all teams"
        algorithm.notes = (*algorithm.notes, note)
    return algorithm


def _frozen_copy(algorithm: Algorithm, team: TeamSpec, num_envs: int, device: torch.device) -> Algorithm:
    """Returns an algorithm that acts for another team with the policy of `algorithm`."""
    context = AlgorithmContext(
        team=team, num_envs=num_envs, seed=0, device=device, rollout_length=algorithm.rollout_length
    )
    frozen = Frozen(FrozenConfig(), context)
    frozen.set_policy(algorithm.policy, algorithm.capabilities.eval_mode)
    return frozen


def _wanted_rollout_length(config: RunConfig, team: str) -> int:
    return config.rollout_length or vars(config.algo_of(team).params)["rollout_length"]


def _rollout_lengths(config: RunConfig, teams: list[str]) -> dict[str, int]:
    """Returns the rollout length of every team.

    Those of learning teams are multiples of the shortest one, rounded up. Other teams use the shortest one.
    """
    learns = {name: registry.algorithm(config.algo_of(name).name).capabilities.learns for name in teams}
    wanted = {name: _wanted_rollout_length(config, name) for name in teams}
    shortest = min([wanted[name] for name in teams if learns[name]] or wanted.values())
    return {
        name: -(-wanted[name] // shortest) * shortest if learns[name] else config.rollout_length or shortest
        for name in teams
    }


# ------------------------------------------------------------------------------------------------------- trained runs


def load_frozen_policy(team: str, config: FrozenConfig, device: torch.device) -> tuple[Policy, Mode]:
    """Loads the policy that a frozen team acts with, and its action selection in evaluation.

    Raises:
        UserError: If the run, or its team, does not exist.
    """
    if config.run is None:
        raise UserError(f"team '{team}' is frozen but has no run. Set teams.{team}.run=RUN.")
    algorithms = load_run(config.run, config.checkpoint, device, team=config.team or team).algorithms
    wanted = config.team or (team if team in algorithms or len(algorithms) > 1 else next(iter(algorithms)))
    if wanted not in algorithms:
        raise UserError(f"the run {config.run} has no team '{wanted}'. {nearest(wanted, algorithms)}")
    return algorithms[wanted].policy, algorithms[wanted].capabilities.eval_mode


@dataclass(frozen=True)
class TrainedRun:
    """Configuration and algorithms of a run, with the policies of a checkpoint.

    Attributes:
        config: Configuration of the run.
        algorithms: Algorithm of each team.
        choice: The checkpoint and how it was chosen; None for algorithms that were not loaded from a run.
    """

    config: RunConfig
    algorithms: dict[str, Algorithm]
    choice: CheckpointChoice | None = None

    @property
    def checkpoint(self) -> LoadedCheckpoint | None:
        """The checkpoint; None for algorithms that were not loaded from a run."""
        return None if self.choice is None else self.choice.found

    @property
    def warnings(self) -> list[str]:
        """Why another checkpoint than the preferred one was loaded, or may be better; usually empty."""
        return [] if self.choice is None else list(self.choice.warnings)


def load_run(
    run: Path,
    checkpoint: str | CheckpointChoice,
    device: torch.device,
    *,
    team: str | None = None,
    announce: bool = True,
) -> TrainedRun:
    """Loads the algorithms of a run with the policies of a checkpoint.

    Args:
        run: Folder of the run.
        checkpoint: auto, best, best:TEAM, last or a number of steps; or a checkpoint that was chosen before.
        device: Device of the networks.
        team: The only team that is needed, whose own best checkpoint auto and best then take, if it has one.
        announce: False to print warnings only, not which checkpoint is loaded.

    Raises:
        UserError: If the run or the checkpoint cannot be read.
    """
    folder = RunFolder.open(run)
    manifest = folder.read_manifest()
    config = with_agent_order(load_resolved(folder.config_path).config, recorded_agents(manifest))
    with no_memory_check():
        teams = load_teams(config, device)
        require_recorded_agents(manifest, config.env.name, teams)
        algorithms = make_algorithms(config, teams, device, with_rewards=False)
    if isinstance(checkpoint, CheckpointChoice):
        choice = checkpoint
    else:
        choice = find_checkpoint(folder, checkpoint, team=team, announce=announce)
    found = choice.found
    for name, algorithm in algorithms.items():
        with decoding(found):
            algorithm.policy.load_state_dict(found.state["algorithms"][name]["policy"])
    return TrainedRun(config, algorithms, choice)


def load_run_or_make(run: Path | None, resolved: Resolved | None, checkpoint: str = "auto") -> TrainedRun:
    """Returns configuration and algorithms of a run's checkpoint or, without a run, those of `resolved`."""
    if run is not None:
        return load_run(run, checkpoint, device_of_run(run))
    assert resolved is not None
    config = resolved.config
    device = select_device(config.device)
    return TrainedRun(config, make_algorithms(config, load_teams(config, device), device))


def device_of_run(run: Path) -> torch.device:
    """Returns the device of the run's configuration, or the CPU if this machine does not have it."""
    name = load_resolved(RunFolder.open(run).config_path).config.device
    try:
        return select_device(name)
    except UserError:
        return torch.device("cpu")

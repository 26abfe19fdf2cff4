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
from coterie.commands.environment import load_teams, select_device
from coterie.config import registry
from coterie.config.resolve import Resolved, load_resolved
from coterie.config.schema import RunConfig, parse_count
from coterie.core.errors import UserError, nearest
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.core.terminal import print_message
from coterie.envs.script_registry import load_script
from coterie.imitation.demo_batches import load_demos
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import team_mismatch
from coterie.rewards.rewarded import make_rewarded
from coterie.runs.checkpoints import Checkpoints, LoadedCheckpoint, decoding
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


def make_algorithms(
    config: RunConfig, teams: dict[str, TeamSpec], device: torch.device, *, with_rewards: bool = True
) -> dict[str, Algorithm]:
    """Creates one algorithm per team.

    Args:
        config: Configuration of the run.
        teams: Teams by name.
        device: Device of the networks.
        with_rewards: False to leave out reward signals, which acting does not need.

    Raises:
        UserError: If an algorithm does not support a team's spaces.
    """
    algorithms: dict[str, Algorithm] = {}
    shared = teams_sharing_policy(config, teams)
    own = [name for name in teams if shared is None or name != shared[1]]
    rollout_lengths = _rollout_lengths(config, own)
    for name in own:
        context = AlgorithmContext(
            team=teams[name],
            num_envs=config.num_envs,
            seed=seed_of(config.seed, "team", name),
            device=device,
            rollout_length=rollout_lengths[name],
        )
        setting = f"teams.{name}.algo" if len(teams) > 1 else "algo"
        algorithms[name] = _make_algorithm(config, context, setting, with_rewards=with_rewards)
    if shared is not None:
        first, second = shared
        algorithms[second] = _frozen_copy(algorithms[first], teams[second], config.num_envs, device)
    return {name: algorithms[name] for name in teams}


def _make_algorithm(config: RunConfig, context: AlgorithmContext, setting: str, *, with_rewards: bool) -> Algorithm:
    team, choice = context.team, config.algo_of(context.team.name)
    cls = registry.algorithm(choice.name)
    cls.capabilities.check(choice.name, team, setting)
    rewards = config.rewards_of(team.name)
    if rewards.is_extrinsic_only:
        algorithm = cls(choice.params, context)
    else:
        if rewards.gail is not None and rewards.gail.demos is not None and with_rewards:
            load_demos(rewards.gail.demos, "rewards.gail.demos", config.env.name, team)  # checks them
        algorithm = make_rewarded(choice, rewards, context, with_signals=with_rewards)
    if isinstance(algorithm, Frozen):
        algorithm.set_policy(*load_frozen_policy(team.name, algorithm.config, context.device))
    elif isinstance(algorithm, Scripted):
        algorithm.set_script(*load_script(team, config.env, algorithm.config.script))
    wanted = _wanted_rollout_length(config, team.name)
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
    algorithms = load_run(config.run, config.checkpoint, device).algorithms
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
        checkpoint: The checkpoint; None for algorithms that were not loaded from a run.
    """

    config: RunConfig
    algorithms: dict[str, Algorithm]
    checkpoint: LoadedCheckpoint | None = None

    @property
    def warnings(self) -> list[str]:
        """Why another checkpoint than the preferred one was loaded; usually empty."""
        return [self.checkpoint.warning] if self.checkpoint is not None and self.checkpoint.warning else []


def load_run(run: Path, checkpoint: str, device: torch.device) -> TrainedRun:
    """Loads the algorithms of a run with the policies of a checkpoint.

    Args:
        run: Folder of the run.
        checkpoint: auto, best, last or a number of steps.
        device: Device of the networks.

    Raises:
        UserError: If the run or the checkpoint cannot be read.
    """
    folder = RunFolder.open(run)
    config = load_resolved(folder.config_path).config
    with no_memory_check():
        algorithms = make_algorithms(config, load_teams(config, device), device, with_rewards=False)
    found = find_checkpoint(folder, checkpoint)
    for name, algorithm in algorithms.items():
        with decoding(found):
            algorithm.policy.load_state_dict(found.state["algorithms"][name]["policy"])
    return TrainedRun(config, algorithms, found)


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


def find_checkpoint(folder: RunFolder, which: str, setting: str = "--checkpoint") -> LoadedCheckpoint:
    """Loads a checkpoint: the best, the last, or the nearest one at or below a number of steps.

    With auto, it is the one that the folder was opened with, otherwise the best one, the last one if none is marked as
    best, or the newest intact one if these are corrupt. Another one than was asked for is reported on stderr.

    Args:
        folder: Folder of the run.
        which: auto, best, last or a number of steps, such as 20000 or 1e6.
        setting: Option or key that `which` comes from, for error messages.

    Raises:
        UserError: If there is no such checkpoint, with the existing ones, or if a checkpoint that was named is corrupt.
    """
    store = Checkpoints(folder.checkpoints_path)
    if which == "auto" and folder.checkpoint is not None:
        which = folder.checkpoint.resolve().name
    if which == "auto":
        found = store.load_best() if store.has_best() else store.latest(segments=False)
    elif which in {"best", "last"}:
        found = store.load_best() if which == "best" else store.latest(segments=False)
        if found is not None and found.warning:
            raise UserError(f"{setting} {which}: {found.warning.partition('. Using')[0]}. Leave the option out.")
    else:
        steps = parse_count(which)
        found = store.load_steps(steps) if isinstance(steps, int) else None
        if found is None and store.all():
            existing = ", ".join(str(int(path.name)) for path in store.all())
            raise UserError(f"the run {folder.path} has no checkpoint '{which}'. Use best, last or one of {existing}.")
    if found is None:
        raise UserError(f"the run {folder.path} has no checkpoint yet. Wait for its first one.")
    if found.warning:
        print_message(found.warning)
    return found

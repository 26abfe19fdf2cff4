"""The algorithms that a configuration describes, and those of trained runs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from coterie.algos import registry
from coterie.algos.algorithm import Algorithm, AlgorithmContext
from coterie.algos.base_config import LearnerConfig
from coterie.algos.other_teams import GlobalCriticLearner
from coterie.algos.replay.memory import no_memory_check
from coterie.algos.scripted import Frozen, FrozenConfig, Scripted
from coterie.assembly.checkpoint_choice import CheckpointChoice, find_checkpoint
from coterie.assembly.environment import (
    load_teams,
    recorded_agents,
    require_recorded_agents,
    select_device,
    with_agent_order,
)
from coterie.assembly.resolve import Resolved, load_resolved
from coterie.config import messages, user_code
from coterie.config.schema import Choice, RunConfig, SelfPlayConfig, TeamConfig
from coterie.config.sources import DERIVED
from coterie.core.errors import UserError, nearest
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.envs.script_registry import load_script
from coterie.imitation.demo_batches import load_demos
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import team_mismatch
from coterie.ranks.ranks import ONE, Ranks
from coterie.rewards.rewarded import RewardedAlgorithm, make_rewarded
from coterie.runs.checkpoints import LoadedCheckpoint, decoding
from coterie.runs.folder import RunFolder
from coterie.training.run_parts import RunComponents

CENTRALIZED = {"ppo": "mappo", "ippo": "mappo", "ia2c": "maa2c", "ddpg": "maddpg", "td3": "matd3", "sac": "masac"}
"""Methods with independent critics, and the same methods with centralized ones."""

EvalMode = Literal["auto", "greedy", "sample"]
"""Action selection in evaluation; auto is that of the method's publication."""


def eval_modes(mode: EvalMode, algorithms: dict[str, Algorithm]) -> dict[str, Mode]:
    """Returns how each team selects actions in evaluation."""
    return {name: a.capabilities.eval_mode if mode == "auto" else mode for name, a in algorithms.items()}


def teams_sharing_policy(
    selfplay: SelfPlayConfig, own: Container[str], teams: dict[str, TeamSpec]
) -> tuple[str, str] | None:
    """Returns the two teams for which one policy plays both sides in self-play, the learning one first; else None.

    Args:
        selfplay: Settings of self-play.
        own: Names of the teams that have settings of their own.
        teams: Teams by name.

    Raises:
        UserError: If the configuration asks for it and it is not possible.
    """
    sides = selfplay.sides
    if not selfplay.enabled or sides == "alternate":
        return None
    names = tuple(teams)
    if sides == "auto" and not (len(names) == 2 and teams[names[0]].symmetric and names[1] not in own):
        return None
    why = f"there are {len(names)} teams" if len(names) != 2 else team_mismatch(teams[names[1]], teams[names[0]])
    if why is None and names[1] in own:
        why = f"teams.{names[1]} has settings of its own"
    if why is not None:
        raise UserError(
            f"selfplay.sides={sides}: one policy cannot play both sides, because {why}. Use selfplay.sides=alternate."
        )
    return names[0], names[1]


# ------------------------------------------------------------------------------------------------------- construction


def algorithm_contexts(
    config: RunConfig, teams: dict[str, TeamSpec], device: torch.device, ranks: Ranks = ONE
) -> dict[str, AlgorithmContext]:
    """Returns what the algorithm of each team is constructed with.

    The rollout lengths of learning teams are multiples of the shortest one, rounded up. Other teams use the shortest.
    """
    learns = {name: registry.algorithm(config.algo_of(name).name).capabilities.learns for name in teams}
    wanted = {name: config.rollout_length_of(name) for name in teams}
    shortest = min([wanted[name] for name in teams if learns[name]] or wanted.values())
    rounded = {name: -(-length // shortest) * shortest for name, length in wanted.items()}
    return {
        name: AlgorithmContext(
            team=team,
            num_envs=config.num_envs // ranks.size,
            seed=seed_of(config.seed, "team", name),
            device=device,
            rollout_length=rounded[name] if learns[name] else shortest,
            ranks=ranks,
            steps=config.steps,
            cuda_graphs=config.cuda_graphs == "on",
        )
        for name, team in teams.items()
    }


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
    shared = teams_sharing_policy(config.selfplay, config.teams, teams)
    own = {name: team for name, team in teams.items() if shared is None or name != shared[1]}
    for name, context in algorithm_contexts(config, own, device, ranks).items():
        setting, wanted = f"teams.{name}.algo" if len(teams) > 1 else "algo", config.rollout_length_of(name)
        algorithm = make_algorithm(config.team(name), context, config.env, setting=setting, with_rewards=with_rewards)
        length = algorithm.rollout_length
        if algorithm.capabilities.learns and length != wanted:
            note = f"rollout_length is {length}, not {wanted}: a multiple of the shortest of all teams"
            algorithm.notes = (*algorithm.notes, note)
        algorithms[name] = algorithm
    if shared is not None:
        first, second = shared
        algorithms[second] = _frozen_copy(algorithms[first], teams[second], config.num_envs // ranks.size, device)
    return {name: algorithms[name] for name in teams}


def make_algorithm(
    settings: TeamConfig, context: AlgorithmContext, env: Choice, *, setting: str, with_rewards: bool
) -> Algorithm:
    """Creates the algorithm of one team.

    Args:
        settings: Settings of the team.
        context: The team that it acts for, number of environments, seed and device.
        env: The environment.
        setting: Setting that names the algorithm, for error messages.
        with_rewards: False to leave out reward signals, which acting does not need.

    Raises:
        UserError: If it does not support the team's spaces.
    """
    choice, rewards, team = settings.algo, settings.rewards, context.team
    cls = registry.algorithm(choice.name)
    cls.capabilities.check(choice.name, team, setting)
    _require_centralized(choice, setting)
    if rewards.is_extrinsic_only:
        algorithm = cls(choice.params, context)
    else:
        if rewards.gail is not None and rewards.gail.demos is not None and with_rewards:
            load_demos(rewards.gail.demos, "rewards.gail.demos", env.name, team)  # checks them
        algorithm = make_rewarded(choice, rewards, context, with_signals=with_rewards)
    if registry.is_own_algorithm(choice.name):
        _require_complete(algorithm, choice.name)
    if isinstance(algorithm, Frozen):
        algorithm.set_policy(*load_frozen_policy(team.name, algorithm.config, context.device))
    elif isinstance(algorithm, Scripted):
        algorithm.set_script(*load_script(team, env, algorithm.config.script))
    return algorithm


def _require_complete(algorithm: Algorithm, name: str) -> None:
    """Checks that an algorithm has the attributes of the interface.

    Args:
        algorithm: The algorithm.
        name: Its name, `package.module:Class`.

    Raises:
        UserError: If `policy`, `rollout_length` or the policy's state is missing.
    """
    prefix = f"algorithm '{name}'"
    policy = getattr(algorithm, "policy", None)
    if not isinstance(policy, Policy):
        found = "no policy" if policy is None else f"a policy of type {type(policy).__name__}"
        raise UserError(f"{prefix}: its constructor set {found}. Set self.policy to a coterie.policies.base.Policy.")
    length = getattr(algorithm, "rollout_length", None)
    if not isinstance(length, int) or length < 1:
        raise UserError(
            f"{prefix}: its constructor set rollout_length to {length}. Set self.rollout_length = "
            "context.rollout_length or config.rollout_length."
        )
    state = algorithm.state_dict()
    if not isinstance(state, dict) or "policy" not in state:
        raise UserError(
            f"{prefix}: state_dict() has no entry 'policy', which evaluations load. Add "
            "'policy': self.policy.state_dict()."
        )


def _require_centralized(choice: Choice, setting: str) -> None:
    """Raises UserError if a method with independent critics is given a global one.

    Args:
        choice: The algorithm and its settings.
        setting: Key of the configuration that selects the algorithm.
    """
    name = registry.base_name(choice.name)
    if name in CENTRALIZED and vars(choice.params).get("critic") == "global":
        raise UserError(
            f"{setting}.critic: global does not fit {name}, whose agents learn independently. "
            f"Use {setting}={CENTRALIZED[name]}, or {setting}.critic=own."
        )


def _frozen_copy(algorithm: Algorithm, team: TeamSpec, num_envs: int, device: torch.device) -> Algorithm:
    """Returns an algorithm that acts for another team with the policy of `algorithm`."""
    context = AlgorithmContext(
        team=team, num_envs=num_envs, seed=0, device=device, rollout_length=algorithm.rollout_length
    )
    frozen = Frozen(FrozenConfig(), context)
    frozen.set_policy(algorithm.policy, algorithm.capabilities.eval_mode)
    return frozen


def connect_global_critics(algorithms: dict[str, Algorithm], *, selfplay: bool) -> frozenset[str]:
    """Lets global critics read the other teams' policies. Returns the teams that have a global critic.

    In self-play the other team acts as snapshots, so that its policy is not the one that acts.
    """
    learners = {
        name: algorithm.algorithm if isinstance(algorithm, RewardedAlgorithm) else algorithm
        for name, algorithm in algorithms.items()
    }
    readers = {name: x for name, x in learners.items() if isinstance(x, GlobalCriticLearner) and x.others.roles}
    for name, learner in readers.items():
        others = [] if selfplay else [other for team, other in learners.items() if team != name]
        learner.others.connect(others)
    return frozenset(readers)


def with_derived(resolved: Resolved, components: RunComponents) -> tuple[Resolved, list[str]]:
    """Derives settings that are null from the environment and the length of the run.

    Args:
        resolved: The settings.
        components: Parts of the run.

    Returns:
        The settings with derived values in place of null and reasons as origins, and a line for each.
    """
    config, origins, lines = resolved.config, dict(resolved.origins), []
    device = components.collector.env.device
    for team, context in algorithm_contexts(config, components.teams, device, components.ranks).items():
        prefix, params = config.algo_key(team), config.algo_of(team).params
        found = params.derived(context.facts(params)) if isinstance(params, LearnerConfig) else {}
        for name, (value, reason) in found.items():
            origins[f"{prefix}.{name}"] = f"{DERIVED}{reason}"
            lines.append(f"{prefix}.{name}={messages.show(value)}: {reason}")
        config = config.with_algo_params(team, {name: value for name, (value, _) in found.items()})
    return replace(resolved, config=config, origins=origins), lines


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


def load_run_or_make(
    run: Path | None, resolved: Resolved | None, checkpoint: str = "auto", *, announce: bool = True
) -> TrainedRun:
    """Returns configuration and algorithms of a run's checkpoint or, without a run, those of `resolved`."""
    if run is not None:
        return load_run(run, checkpoint, device_of_run(run), announce=announce)
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

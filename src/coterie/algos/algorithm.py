"""The interface of algorithms: a policy and a method that improves it from rollouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor

from coterie.algos.base_config import C, LearnerConfig, RunFacts
from coterie.algos.optimizer import Optimizer, TargetNetwork
from coterie.algos.reward_streams import RewardStream
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.core.types import HiddenState, Rollout, Timestep
from coterie.nets.config import CentralInputs, ShareParams
from coterie.nets.encoders import can_share_network, observation_layout
from coterie.policies.base import Mode, Policy
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch
from coterie.ranks.ranks import ONE, Ranks


@dataclass(frozen=True)
class CloningOptimizer:
    """Gradient steps on a policy that leave the learner's own optimizer as it is.

    Attributes:
        optimizer: Trains the networks that act.
        targets: Target networks of the networks that act.
    """

    optimizer: Optimizer
    targets: tuple[TargetNetwork, ...] = ()

    def step(self, loss: Tensor, lr: float) -> Tensor:
        """Takes one gradient step and returns the gradient norm before clipping []."""
        return self.optimizer.step(loss, dict.fromkeys(self.optimizer.flat, lr))[0]

    def update_targets(self) -> None:
        """Sets target networks equal to the networks that they follow."""
        for target in self.targets:
            target.hard_update()


class CloningLearner(ABC):
    """An algorithm whose policy supports behavior cloning."""

    policy: Any

    @abstractmethod
    def cloning_optimizer(self) -> CloningOptimizer:
        """Returns an optimizer of the networks that act, with moments of its own."""

    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        """Returns what this optimizer minimizes, and True where the greedy action is the demonstrated one: by default
        those of the policy, see `NetworkPolicy.cloning_loss`.
        """
        return self.policy.cloning_loss(batch, options)


ALL_ACTIONS = frozenset({"discrete", "multi_discrete", "continuous", "hybrid"})


@dataclass(frozen=True)
class Capabilities:
    """Properties of an algorithm, declared next to its implementation."""

    actions: frozenset[str]
    """Supported kinds of actions: discrete, multi_discrete, continuous, hybrid."""
    masks: bool = True
    """Supports action masks."""
    rnn: bool = True
    """Supports recurrent networks."""
    memory: bool = False
    """Can remember earlier timesteps by a network of its own, without the setting `rnn`."""
    dying_agents: bool = True
    """Supports agents that die before their episode ends."""
    roles: bool = True
    """Supports several roles with different spaces in one team."""
    multi_agent: bool = True
    """Supports more than one agent."""
    images: bool = False
    """Supports images and dictionaries as observations."""
    learns: bool = True
    """Improves its policy."""
    reward_streams: bool = False
    """Learns a value per reward signal. Other algorithms learn from the weighted sum of the signals."""
    cuda_graphs: bool = False
    """Captures its gradient steps as a CUDA graph if the setting `cuda_graphs` is on."""
    off_policy: bool = False
    """Learns from the experience of older policies, too: from a replay buffer."""
    centralized_execution: bool = False
    """Acts by the observations of the whole team, with any network. With others, `algo.network` decides."""
    eval_mode: Mode = "sample"
    """Default mode of evaluation: the one that the method was published with."""

    def check(self, name: str, team: TeamSpec, setting: str = "algo") -> None:
        """Checks that the algorithm supports a team.

        Args:
            name: Name of the algorithm.
            team: The team that it is to train.
            setting: Key of the configuration that selects the algorithm.

        Raises:
            UserError: If the team needs something that the algorithm does not support.
        """
        choose = f"another algorithm with {setting}=NAME (coterie list algos)"
        for role in team.roles:
            kind = role.action.kind
            if kind not in self.actions:
                raise UserError(
                    f"{setting}: {name} does not support the {kind} actions of role '{role.name}' "
                    f"({role.action_space}), only {', '.join(sorted(self.actions))}. Choose {choose}."
                )
            shapes = observation_layout(role.observation_space)
            if shapes is None:
                raise UserError(
                    f"role '{role.name}': no network supports its observation space {role.observation_space}. Use a "
                    "one-dimensional Box, a Box [height, width, channels], or a Dict of these."
                )
            if not self.images and (len(shapes) != 1 or not isinstance(shapes[0], int)):
                raise UserError(
                    f"{setting}: {name} supports only vector observations, and role '{role.name}' observes "
                    f"{role.observation_space}. Flatten the observation to one dimension, or choose {choose}."
                )
        if not self.roles and len(team.roles) > 1:
            raise UserError(
                f"{setting}: {name} trains a single role, and team '{team.name}' has {len(team.roles)}. "
                f"Split the team, or choose {choose}."
            )
        if not self.multi_agent and team.n > 1:
            raise UserError(
                f"{setting}: {name} trains a single agent, and team '{team.name}' has {team.n}. "
                f"Use a multi-agent algorithm, {setting}=ippo or {setting}=mappo."
            )
        if not self.dying_agents and team.agents_can_die:
            raise UserError(
                f"{setting}: {name} does not support agents that die, and those of team '{team.name}' can. "
                f"Choose {choose}."
            )


def require_equal_spaces(team: TeamSpec, share: ShareParams) -> None:
    """Raises UserError if all agents are to share parameters and the spaces of their roles differ."""
    if share == "all" and not can_share_network(team.roles):
        raise UserError(
            f"algo.share_params: all agents of team '{team.name}' cannot share parameters because the spaces of its "
            "roles differ. Use algo.share_params=role."
        )


def central_state_name(team: TeamSpec, critic: str) -> str:
    """Returns the name of the state that a central critic reads: the team's own if there is one, else the global one.

    Raises:
        UserError: If the environment provides no state.
    """
    for name in (*dict.fromkeys(role.group for role in team.roles), "global"):
        if name in team.state_sizes:
            return name
    raise UserError(f"algo.critic: {critic} needs an environment state, and there is none. Use algo.critic=joint.")


def learns_common_reward(config: Any, team: TeamSpec) -> bool:
    """True if every agent learns from the mean of the team's rewards: by `algo.common_reward`, or `env.teams`."""
    return config.common_reward or team.common_reward


def returns_outlive_agents(config: Any, team: TeamSpec, centralized: bool) -> bool:
    """True if the return of an agent goes on after its death.

    Rewards that a group or the whole team shares reach what an agent did for the others before it left, so that
    retreat is not better than a sacrifice. The return of a centralized value function goes on with any rewards, and
    that of an agent's own rewards ends with it.

    Args:
        config: Settings of the learner.
        team: The team.
        centralized: True for a value function of the whole team.
    """
    return centralized or (team.agents_can_die and (team.has_group_reward or learns_common_reward(config, team)))


def central_inputs(critic: str, team: TeamSpec, state_size: int) -> CentralInputs:
    """Returns the inputs of a centralized critic: `joint`, `state`, `joint_state`, `global`, or `own` for none.

    Args:
        critic: The setting `algo.critic`.
        team: The team.
        state_size: Features of the state that the critic reads, see `CentralState`; 0 for none.
    """
    return CentralInputs(
        joint_obs=critic in ("joint", "joint_state", "global"),
        state_size=state_size,
        other_roles=team.other_roles if critic == "global" else (),
    )


def group_membership(team: TeamSpec) -> Tensor:
    """Returns [G, N], 1 where an agent belongs to a group of the team."""
    groups = list(dict.fromkeys(role.group for role in team.roles))
    group_of_agent = [groups.index(role.group) for role in team.roles for _ in role.agents]
    return torch.nn.functional.one_hot(torch.tensor(group_of_agent), len(groups)).T.float()


def component_matrix(team: TeamSpec, device: torch.device) -> Tensor | None:
    """Returns [N, A, K], 1 where an agent's choice belongs to a discrete component; None if all have only one."""
    components = max(len(role.action.choices) for role in team.roles)
    if components == 1:
        return None
    choices = max(role.action.mask_size for role in team.roles)
    matrix = torch.zeros(team.n, choices, components, device=device)
    start = 0
    for role in team.roles:
        sizes = torch.tensor(role.action.choices)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        matrix[start : start + role.n, torch.arange(len(owner)), owner] = 1.0
        start += role.n
    return matrix


@dataclass(frozen=True, kw_only=True)
class AlgorithmContext:
    """Everything besides its configuration that an algorithm is constructed with.

    Attributes:
        team: The team to train.
        num_envs: Number of environments in each rollout of this rank.
        seed: Seed of the team. Weights, minibatches and other random draws derive from it.
        device: Device of networks and rollouts.
        rollout_length: Steps per environment between updates; None for the configured length.
        reward_streams: Reward signals of the team, the environment's first; empty if that is the only one. Only for
            algorithms with `Capabilities.reward_streams`.
        ranks: The ranks that train the team together.
        steps: Environment steps of the whole run; None if unknown.
        cuda_graphs: Capture targets and gradient steps as CUDA graphs; only with `Capabilities.cuda_graphs`.
    """

    team: TeamSpec
    num_envs: int
    seed: int
    device: torch.device
    rollout_length: int | None = None
    reward_streams: tuple[RewardStream, ...] = ()
    ranks: Ranks = ONE
    steps: int | None = None
    cuda_graphs: bool = False

    def with_derived(self, config: C) -> C:
        """Returns the settings of a learner with derived values in place of null, see `LearnerConfig.derived`."""
        return config.with_derived(self.facts(config))

    def facts(self, config: LearnerConfig) -> RunFacts:
        """Returns what settings that are null or auto derive from."""
        length = self.rollout_length or config.rollout_length
        return RunFacts(self.team.episode_limit, self.steps, self.total_envs, length, self.team)

    @property
    def total_envs(self) -> int:
        """Number of environments of all ranks."""
        return self.num_envs * self.ranks.size


class Algorithm(ABC):
    """Owns a policy and improves it from rollouts."""

    Config: ClassVar[type[BaseModel]]
    capabilities: ClassVar[Capabilities]
    base: ClassVar[str] = "none"
    """Algorithm of Coterie whose presets a class of your own starts from, unless `algo.base` names another. Subclasses
    inherit it; none: the defaults of `Config`.
    """

    policy: Policy
    rollout_length: int
    """Steps per environment in the rollouts that `update` expects."""
    notes: tuple[str, ...] = ()
    """Lines for the user at the start of a run, such as the size of a replay buffer."""

    @abstractmethod
    def __init__(self, config: Any, context: AlgorithmContext) -> None: ...

    @property
    def behavior_policy(self) -> Policy:
        """The policy that collects the rollouts: `policy`, unless an algorithm learns it from what another one does."""
        return self.policy

    @abstractmethod
    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """Improves the policy.

        Args:
            rollout: Experience of the team, `rollout_length` timesteps of all environments.
            progress: Fraction of the run that is done, in [0, 1].

        Returns:
            Metrics by name.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns all state that resuming needs, the policy's under `policy`."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state."""


class ValueEstimator(ABC):
    """An algorithm whose critic estimates the return of a timestep before anyone acts."""

    @abstractmethod
    def start_value_estimation(self, num_envs: int) -> HiddenState:
        """Returns the critic's hidden state before the first timestep; {} without recurrence."""

    @abstractmethod
    def estimate_value(self, timestep: Timestep, hidden_state: HiddenState) -> tuple[Tensor, HiddenState]:
        """Estimates the discounted return of the environment's reward.

        Args:
            timestep: The team's part of a timestep, [B, ..].
            hidden_state: Hidden state of the critic before the timestep.

        Returns:
            The value of each agent [B, N] and the hidden state after the timestep.
        """

    @abstractmethod
    def load_critic(self, state: dict[str, Any]) -> None:
        """Restores from the algorithm's `state_dict` what value estimation needs besides the policy."""

"""Q-networks of a team with a mixer and epsilon-greedy exploration, as Q-learning with and without replay has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.algos.algorithm import AlgorithmContext, require_equal_spaces, returns_outlive_agents
from coterie.algos.base_config import Derived, RunFacts, ScaledRewardConfig
from coterie.algos.learner import CentralState
from coterie.algos.mixing import MixerConfig, OwnMixer, make_mixer, mixer_state, require_mixer
from coterie.algos.optimizer import Schedule, scheduled
from coterie.algos.scaled_rewards import ScaledRewardLearner
from coterie.config.needs import Needs
from coterie.config.schema import Count
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.core.types import Rollout, Timestep
from coterie.functional.returns import agent_rewards, bootstrap_masks, team_bootstrap_masks, team_rewards, valid_mask
from coterie.nets.config import CentralInputs
from coterie.nets.joint_actions import JointAction
from coterie.nets.mixers import Choices, Mixer, MixerKind, TeamQNetwork, greedy_actions
from coterie.nets.team import CentralEncoder
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy

OUTPUT_GAIN = 0.01
"""Default gain of the output layer."""
EPSILON_DECAY_STEPS = 50_000
"""Environment steps over which epsilon decays if the length of the run is unknown."""
DISCOUNTS = 0.9, 0.99
"""Smallest discount that derives from a step limit, and that of long episodes."""


Discount = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        description="Discount factor per step; null: 1 - 2 / limit, a horizon of half an episode, between 0.9 and "
        "0.99, or 0.99 without a known step limit.",
    ),
]
"""Discount factor that may derive from the step limit."""


class TeamQConfig(MixerConfig, ScaledRewardConfig):
    """Settings of learners of Q-values: mixers, and epsilon-greedy exploration."""

    mixer: MixerKind | OwnMixer = "none"
    """Mixer of the agents' Q-values: none (independent learners), vdn, qmix, qplex, qfix_sum, qfix_mono or qfix_lin, or
    your own class of a torch module package.module:Class, called as Class(agents, state_size, embed_dim=).
    """
    qfix_additive: Annotated[bool, Needs("mixer=qfix_sum|qfix_mono|qfix_lin")] = True
    """QFIX adds to the mixer that it fixes, from which alone the agents learn (Q+FIX); false: the weighted advantage
    replaces this mixer's Q.
    """
    obs_last_action: bool = False
    """Append the agent's last action to the input of its network; requires a recurrent layer."""
    epsilon_start: float = Field(1.0, ge=0, le=1)
    """Initial probability of a random action."""
    epsilon_end: Annotated[float, Needs("epsilon_schedule!=constant")] = Field(0.05, ge=0, le=1)
    """Final probability of a random action."""
    epsilon_decay_steps: Annotated[Count | None, Needs("epsilon_schedule!=constant")] = Field(None, ge=1, le=10**15)
    """Environment steps over which epsilon decays; null: a fifth of the run."""
    epsilon_schedule: Schedule = "linear"
    """Schedule of epsilon."""
    output_gain: float = Field(OUTPUT_GAIN, gt=0, le=10)
    """Gain of the orthogonal initialization of the output layer. A small one lets Q-values start near 0, and not far
    from all returns.
    """
    huber_delta: float | None = Field(None, gt=0, le=10**12)
    """Error beyond which the loss is linear; null: squared error."""

    @property
    def additive(self) -> bool:
        return self.qfix_additive

    @property
    def values_read_state(self) -> bool:
        return self.reads_central

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.gamma is None:
            found["gamma"] = _discount(run.limit)
        if self.epsilon_decay_steps is None and run.steps is not None:
            found["epsilon_decay_steps"] = Derived(max(1, run.steps // 5), f"a fifth of {run.steps:,} steps")
        return found


def _discount(limit: int | None) -> Derived:
    """Returns the discount factor for episodes with a step limit, None if unknown."""
    low, high = DISCOUNTS
    if limit is None:
        return Derived(high, "the environment has no known step limit")
    return Derived(round(min(max(1 - 2 / limit, low), high), 4), f"the step limit is {limit}")


def require_consistent(team: TeamSpec, config: TeamQConfig) -> None:
    """Checks that settings do not contradict each other.

    Raises:
        UserError: If they do.
    """
    require_equal_spaces(team, config.share_params)
    for name, epsilon in (("epsilon_start", config.epsilon_start), ("epsilon_end", config.epsilon_end)):
        if config.epsilon_schedule == "exponential" and epsilon == 0:
            raise UserError(
                f"algo.{name}=0: must be > 0 for an exponential schedule. Increase it, or set "
                f"algo.epsilon_schedule=linear."
            )
    if config.common_reward and config.mixer != "none":
        raise UserError(
            f"algo.common_reward=true: has no effect with algo.mixer={config.mixer}, which learns from the sum of the "
            f"team's rewards. Omit it."
        )
    if config.obs_last_action and not config.recurrent:
        raise UserError("algo.obs_last_action=true: requires a recurrent network. Set algo.rnn=gru.")
    if config.output_gain != OUTPUT_GAIN and config.init != "orthogonal":
        raise UserError(
            f"algo.output_gain={config.output_gain:g}: has no effect with algo.init={config.init}. Omit one of them."
        )
    if config.value_time_left and not config.reads_central:
        raise UserError(
            f"algo.value_time_left=true: has no effect with algo.mixer={config.mixer}, which reads no state. Omit it."
        )
    require_mixer(config)


def build_policy(
    config: TeamQConfig, team: TeamSpec, draw: torch.Generator, device: torch.device
) -> EpsilonGreedyPolicy:
    """Returns the policy, which owns the agents' Q-networks; `draw` draws the initial weights."""
    network = replace(config.network_config(team), obs_last_action=config.obs_last_action, part="q")
    return EpsilonGreedyPolicy(team, network, draw, device, config.output_gain)


MakeMixer = Callable[[TeamQConfig, TeamSpec, int, torch.Generator], Mixer | None]
"""A function with the arguments of `make_mixer`."""


def build_value(
    config: TeamQConfig,
    team: TeamSpec,
    policy: EpsilonGreedyPolicy,
    inputs: CentralInputs,
    draw: torch.Generator,
    *,
    make_mixer: MakeMixer = make_mixer,
) -> TeamQNetwork:
    """Returns the Q-networks of the policy with a mixer.

    Args:
        config: Settings of the learner.
        team: The team.
        policy: The policy.
        inputs: What the mixer reads besides Q-values.
        draw: Source of the initial weights.
        make_mixer: Creates the mixer.
    """
    encoder = CentralEncoder(team, inputs, draw) if config.reads_central else None
    mixer = make_mixer(config, team, 0 if encoder is None else encoder.features, draw)
    return TeamQNetwork(policy.net, mixer, encoder, JointAction(team, policy.device))


class TeamQLearner(ScaledRewardLearner):
    """A learner that owns an epsilon-greedy policy and a mixer of its Q-values.

    Attributes:
        policy: The policy, which owns the agents' Q-networks.
        value: These Q-networks with the mixer.
    """

    policy: EpsilonGreedyPolicy
    value: TeamQNetwork

    def _create_value(self, config: TeamQConfig, context: AlgorithmContext, draw: torch.Generator) -> CentralInputs:
        """Creates policy and mixer, and returns what the mixer reads; `draw` draws the initial weights."""
        self._q_config, team, device = config, context.team, context.device
        require_consistent(team, config)
        self.policy = build_policy(config, team, draw, device)
        self.policy.epsilon = config.epsilon_start
        state_name = mixer_state(team, config)
        self._reads_obs = config.reads_central and state_name is None
        self._state = CentralState(config, team, state_name, device)
        inputs = CentralInputs(self._reads_obs, self._state.size)
        self.value = build_value(config, team, self.policy, inputs, draw, make_mixer=self.make_mixer)
        self._mixes = self.value.mixer is not None
        self._outlives = not self._mixes and returns_outlive_agents(config, team, False)
        return inputs

    def make_mixer(self, config: TeamQConfig, team: TeamSpec, state_size: int, draw: torch.Generator) -> Mixer | None:
        """Returns the mixer of the agents' Q-values, see `coterie.nets.mixers.Mixer`; for subclasses to override.

        The constructor calls it. `state_size` is the number of features of the state or joint observation that the
        mixer reads, 0 if `config.mixer` is `none` or `vdn`; `draw` is the source of the initial weights.
        """
        return make_mixer(config, team, state_size, draw)

    def _decay_epsilon(self, steps: int) -> None:
        """Sets the probability of random actions after `steps` environment steps."""
        config = self._q_config
        decayed = min(1.0, steps / (config.epsilon_decay_steps or EPSILON_DECAY_STEPS))
        self.policy.epsilon = scheduled(config.epsilon_schedule, config.epsilon_start, config.epsilon_end, decayed)

    def _greedy(self, q: dict[str, Tensor], timesteps: Timestep) -> Choices:
        return greedy_actions(self.policy.net, q, self._masks(timesteps))

    def _masks(self, timesteps: Timestep | Rollout) -> dict[str, Tensor | None]:
        return {block.name: block.join_masks(timesteps.action_mask) for block in self.policy.blocks}

    def _bootstrap_masks(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Returns where returns end and where they are cut off: of agents [T, S, N], or with a mixer of the team."""
        if self._mixes:
            return team_bootstrap_masks(rollout, self.team.agents_can_die)
        return bootstrap_masks(rollout, self._outlives, self.team.agents_can_die)

    def _of_living(self, actions: Choices, alive: Tensor) -> Choices:
        """Returns actions by block [.., n, K]: the first choices of dead agents, if returns outlive them."""
        if not self._outlives:
            return actions
        blocks = self.policy.blocks
        return {b.name: actions[b.name] * alive[..., b.start : b.stop, None] for b in blocks}

    def _rewards(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Returns rewards and valid entries: of agents [T, S, N], or with a mixer of the team [T, S]."""
        valid = valid_mask(rollout, of_team=self._outlives)
        if not self._mixes:
            has_group_reward = self.team.has_group_reward
            return agent_rewards(rollout, self._membership, has_group_reward, self._common_reward), valid
        return team_rewards(rollout, self.team.has_group_reward), valid.any(-1)

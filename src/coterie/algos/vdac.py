"""VDAC: actor-critic whose agents have critics of their own observations, which a mixer combines into one of the team.

Each agent's critic estimates V_i(o_i). A mixer, their sum (VDAC-sum) or a monotonic network of the state (VDAC-mix),
makes the value of the team of them, which is learned from the team's return. All agents follow the advantage of the
team; an agent's V_i tells how much the team's value depends on what that agent observes.

Source: Su et al. 2021, Value-Decomposition Multi-Agent Actor-Critics.
Differences: the gradient is that of PPO, which is the actor-critic gradient in a single step per rollout; advantages
are generalized advantage estimates; values are learned on a normalized scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.mixing import MixerConfig, OwnMixer, make_mixer, mixer_state, require_mixer
from coterie.algos.ppo import PPO, DecentralizedCritic, PPOConfig
from coterie.config.needs import Needs
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import TIME_LEFT, HiddenState, Rollout, Timestep
from coterie.functional.policy_gradient import gae
from coterie.functional.returns import present_agents, team_bootstrap_masks, team_rewards
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.team import CentralEncoder
from coterie.nets.team_view import VIEW, TeamView, view_of


class VDACConfig(PPOConfig, MixerConfig):
    """Settings of VDAC."""

    critic: Literal["own"] = "own"
    """Input of the agents' critics: their own observations. The mixer reads the rest, see `mixer_input`."""
    mixer: Literal["vdn", "qmix"] | OwnMixer = "qmix"
    """Mixer of the agents' values: vdn (VDAC-sum), qmix (VDAC-mix), or your own class of a torch module
    package.module:Class, called as Class(agents, state_size, embed_dim=).
    """
    mixer_input: Annotated[Literal["auto", "state", "joint"], Needs("mixer!=vdn")] = "auto"
    mixing_embed_dim: Annotated[int, Needs("mixer!=vdn")] = Field(32, ge=1, le=100_000)
    hypernet_embed_dim: Annotated[int, Needs("mixer=qmix"), Needs("hypernet_layers!=1")] = Field(64, ge=1, le=100_000)

    @property
    def centralized(self) -> bool:
        return True

    @property
    def needs_state(self) -> bool:
        """True if the mixer reads an environment state where there is one."""
        return self.reads_central and self.mixer_input != "joint"


class MixedCritic(DecentralizedCritic):
    """V_tot of the values V_i(o_i) of the agents that are alive, the same for every agent: [.., N, 1].

    Args:
        team: The team.
        config: Architecture of the agents' critics.
        generator: Source of the initial weights.
        mixer: Combines the agents' values.
        encoder: Network of the mixer's input; None if it has none.
        reads_time_left: The last feature of the state is the time left, which the agents' critics read, too.
    """

    def __init__(
        self,
        team: TeamSpec,
        config: NetworkConfig,
        generator: torch.Generator,
        *,
        mixer: nn.Module,
        encoder: CentralEncoder | None,
        reads_time_left: bool,
    ):
        super().__init__(team, 1, config, generator, state_size=int(reads_time_left))
        self.mixer, self.encoder, self._reads_time_left = mixer, encoder, reads_time_left

    def forward(
        self, obs: dict[str, Tree], state: Tensor | None, first: Tensor | None, hidden_state: HiddenState
    ) -> tuple[Tensor, HiddenState]:
        """Returns V_tot [.., N, 1] and the next hidden state; arguments as in `DecentralizedCritic`, with a `TeamView`
        in `obs`.
        """
        time_left = state[..., -1:] if state is not None and self._reads_time_left else None
        values, hidden_state = super().forward(obs, time_left, first, hidden_state)
        alive = view_of(obs).alive
        values = torch.where(alive, values.squeeze(-1), 0.0)
        seen = values if self.encoder is None else self.encoder(obs, state)
        total = self.mixer(values, values, seen, values, alive)
        return total.unsqueeze(-1).expand_as(values).unsqueeze(-1), hidden_state


class VDAC(PPO):
    """VDAC-sum and VDAC-mix, see the module's description."""

    Config: ClassVar = VDACConfig
    base: ClassVar = "vdac"
    capabilities: ClassVar = replace(PPO.capabilities, reward_streams=False)

    def __init__(self, config: VDACConfig, context: AlgorithmContext) -> None:
        if config.common_reward:
            raise UserError(
                "algo.common_reward=true: has no effect with VDAC, which learns from the sum of the team's rewards. "
                "Omit it."
            )
        require_mixer(config)
        super().__init__(config, context)

    def state_name(self, config: VDACConfig, team: TeamSpec) -> str | None:
        return mixer_state(team, config)

    def _build_critic(self, signals: int, weights: torch.Generator) -> MixedCritic:
        config: Any = self.config
        team, encoder, features = self.team, None, 0
        if config.reads_central:
            joint_obs = self.state_name(config, team) is None
            encoder = CentralEncoder(team, CentralInputs(joint_obs, self._state.size), weights)
            features = encoder.features
        mixer = make_mixer(config, team, features, weights)
        assert mixer is not None
        network, time_left = config.critic_network_config(team), TIME_LEFT in self._state.names
        return MixedCritic(team, network, weights, mixer=mixer, encoder=encoder, reads_time_left=time_left)

    def _critic_first(self, rollout: Rollout) -> Tensor:
        return rollout.first  # critics of the agents' own observations are reset where the policy is

    def _timestep_critic_first(self, timestep: Timestep) -> Tensor:
        return timestep.first

    def read_rollout(self, rollout: Rollout) -> dict[str, Tree]:
        return _with_alive(super().read_rollout(rollout), present_agents(rollout))

    def read_timestep(self, timestep: Timestep) -> dict[str, Tree]:
        return _with_alive(super().read_timestep(timestep), timestep.alive)

    def advantages(self, rollout: Rollout, value: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Returns advantages and lambda-returns of the team, the same for every agent."""
        total = value[..., :1, :]
        terminated, boundary = team_bootstrap_masks(rollout, self.team.agents_can_die)
        advantage = gae(
            reward=team_rewards(rollout, self.team.has_group_reward)[..., None, None],
            value=total[:-1],
            next_value=total[1:],
            terminated=terminated[..., None, None],
            boundary=boundary[..., None, None],
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        advantage = advantage.expand_as(value[:-1])
        return advantage, advantage + value[:-1]


def _with_alive(obs: dict[str, Tree], alive: Tensor) -> dict[str, Tree]:
    """Returns observations with a `TeamView`, by which the mixer knows who is alive."""
    return obs if VIEW in obs else obs | {VIEW: TeamView(alive, None, {})}

"""MAT and MAT-Dec: a transformer over the agents of a team, trained with PPO's loss.

An encoder over agents gives a value of each. In MAT, a decoder chooses their actions one after another, each by those
before, so that the policy is one of the whole team and its execution is centralized. In MAT-Dec, each agent acts by an
actor on its own observation, and the encoder is only the critic.

Source: Wen et al. 2022, Multi-Agent Reinforcement Learning is a Sequence Modeling Problem, and its code.
Differences: dead agents neither attend nor are attended to; the encoder's gradients and those of the value head are
clipped separately; a decision reads that of the last live agent before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext, Capabilities
from coterie.algos.base_config import Units
from coterie.algos.ppo import PPO, Batch, PPOConfig
from coterie.config.needs import HIDDEN_LAYERS, SEVERAL
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.core.types import HiddenState
from coterie.nets.autoregressive import order_of
from coterie.nets.config import Activation, BodyKind, Init, LayerNormKind, ModuleFactory, NetworkConfig, View
from coterie.nets.mat import AgentEncoder, AgentValues, EncoderCritic, MATActor, TokenCritic, TransformerSizes
from coterie.nets.team_view import view_of
from coterie.policies.autoregressive import AgentOrderKind, AutoregressivePolicy


class EncoderConfig(PPOConfig):
    """Settings of MAT and MAT-Dec."""

    critic: Literal["joint"] = "joint"
    """Input of the critic: the observations of the whole team, which the encoder reads."""
    critic_network: None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Layers of the critic: always a transformer."""
    critic_hidden_sizes: None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Units of the critic's hidden layers: always `embedding_size`."""
    obs_agent_id: Annotated[bool | None, SEVERAL] = None
    """Append the agent's one-hot id to the input of the encoder, and of actors; null: of the encoder, and of actors
    only with share_params=all.
    """
    embedding_size: Units = 32
    """Features of an agent and of an action in encoder and decoder."""
    num_blocks: int = Field(1, ge=1, le=100)
    """Layers of the encoder, and of the decoder."""
    num_heads: int = Field(1, ge=1, le=1024)
    """Attention heads; they divide `embedding_size`."""

    def sizes(self) -> TransformerSizes:
        """Returns the size of the transformer. UserError if heads do not divide the features."""
        if self.embedding_size % self.num_heads:
            raise UserError(
                f"algo.num_heads={self.num_heads}: does not divide algo.embedding_size={self.embedding_size}. Change "
                "one of them."
            )
        return TransformerSizes(self.embedding_size, self.num_blocks, self.num_heads)

    def encoder_config(self, team: TeamSpec) -> NetworkConfig:
        """Returns the inputs of the encoder, by default with the agents' ids, since its parameters are shared."""
        ids = team.n > 1 if self.obs_agent_id is None else self.obs_agent_id
        return replace(self.critic_network_config(team, per_agent=False), body=None, obs_agent_id=ids)

    def _view(self) -> View:
        view = super()._view()
        return "team" if view == "none" else view


class MATConfig(EncoderConfig):
    """Settings of MAT."""

    network: Literal["transformer"] = "transformer"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Layers of the network: an encoder and a decoder over agents."""
    network_edges: Literal["full"] = "full"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Agents that attend to each other: all."""
    network_heads: Annotated[int, HIDDEN_LAYERS] = Field(4, ge=1, le=1024)
    network_rounds: Annotated[int | None, HIDDEN_LAYERS] = Field(None, ge=1, le=100)
    network_radius: Annotated[float | None, HIDDEN_LAYERS] = Field(None, gt=0, le=10**9)
    hidden_sizes: Annotated[tuple[Units, ...], HIDDEN_LAYERS] = Field((64, 64), min_length=1)
    activation: Annotated[Activation, HIDDEN_LAYERS] = "tanh"
    layer_norm: Annotated[LayerNormKind, HIDDEN_LAYERS] = False
    init: Annotated[Init, HIDDEN_LAYERS] = "orthogonal"
    agent_order: Annotated[AgentOrderKind, SEVERAL] = "fixed"
    """Order in which agents decide: that of the team (fixed), or a new one for each rollout (random). Agents of a role
    are ordered among themselves.
    """

    def _body(self, name: str | None, setting: str) -> ModuleFactory | BodyKind | None:
        return None if name == self.network else super()._body(name, setting)


class MATDecConfig(EncoderConfig):
    """Settings of MAT-Dec."""


class MATDec(PPO):
    """MAT-Dec, see the module's description."""

    Config: ClassVar = MATDecConfig
    base: ClassVar = "mat_dec"
    config: EncoderConfig

    def _build_critic(self, signals: int, weights: torch.Generator) -> nn.Module:
        config, sizes = self.config, self.config.sizes()
        encoder = AgentEncoder(self.team, config.encoder_config(self.team), sizes, weights)
        return EncoderCritic(encoder, AgentValues(self.team, signals, sizes, weights, state_size=self._state.size))


class MAT(PPO):
    """MAT, see the module's description.

    Attributes:
        actor: Encoder and decoder.
    """

    Config: ClassVar = MATConfig
    base: ClassVar = "mat"
    capabilities: ClassVar = Capabilities(
        actions=ALL_ACTIONS,
        images=True,
        rnn=False,
        reward_streams=True,
        cuda_graphs=True,
        centralized_execution=True,
    )
    config: MATConfig
    policy: AutoregressivePolicy  # pyright: ignore[reportIncompatibleVariableOverride]
    critic: TokenCritic

    def __init__(self, config: MATConfig, context: AlgorithmContext) -> None:
        if config.recurrent:
            raise UserError(f"algo.rnn={config.rnn}: MAT has no recurrent networks. Omit it, or use algo=mat_dec.")
        if config.share_params == "none":
            raise UserError(
                "algo.share_params=none: the agents of MAT share encoder and decoder. Omit it, or use algo=mat_dec."
            )
        super().__init__(config, context)

    def _build_policy(self, config: MATConfig, weights: torch.Generator) -> AutoregressivePolicy:
        team = self.team
        inputs = config.encoder_config(team)
        encoder = AgentEncoder(team, inputs, config.sizes(), weights)
        self.actor = MATActor(
            encoder,
            config.sizes(),
            weights,
            state_dependent_std=config.state_dependent_std,
            init_std=config.init_std,
        )
        return AutoregressivePolicy(team, inputs, self.actor, self.device, order=config.agent_order)

    def _build_critic(self, signals: int, weights: torch.Generator) -> nn.Module:
        values = AgentValues(self.team, signals, self.config.sizes(), weights, state_size=self._state.size)
        return TokenCritic(self.actor.encoder, values)

    def _evaluate(self, batch: Batch, hidden_state: dict[str, HiddenState]) -> tuple[Tensor, Tensor, Tensor]:
        actor, view = self.actor, view_of(batch.obs)
        tokens = actor.encoder(batch.obs)  # once for values and actions
        features = actor.decode(tokens, batch.obs, batch.action)
        log_prob, entropy = actor.log_probs(features, batch.action_mask, batch.action, order_of(view.place))
        return log_prob, entropy, self.critic.values(tokens, view.alive, batch.state)

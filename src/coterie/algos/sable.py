"""Sable: retention over the agents and timesteps of a team, trained with PPO's loss.

An encoder over agents gives a value of each, and a decoder chooses their actions one after another, each by those
before. Both keep what the team observed and did in states that decay over time, so that memory and time are linear in
the number of agents and in the length of a rollout. Execution is centralized.

Source: Mahjoub et al. 2025, Sable: a Performant, Efficient and Scalable Sequence Model for MARL, and Mava's code.
Differences: agents decide and are trained in the same order, see `nets.autoregressive`; returns bootstrap at time
limits; each head is normalized by itself; dead agents leave nothing in the memory.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.algos.algorithm import ALL_ACTIONS, AlgorithmContext, Capabilities
from coterie.algos.mat import MATConfig
from coterie.algos.ppo import PPO, Batch
from coterie.config.needs import Needs
from coterie.core.errors import UserError
from coterie.core.types import HiddenState, Rollout
from coterie.nets.autoregressive import order_of
from coterie.nets.mat import AgentValues
from coterie.nets.sable import ENCODER, STEP, RetentionSizes, SableActor, SableCritic, SableEncoder
from coterie.nets.team_view import view_of
from coterie.policies.autoregressive import AutoregressivePolicy

MEMORY = Needs("memory=true")


class SableConfig(MATConfig):
    """Settings of Sable."""

    minibatches: ClassVar[int] = 2

    epochs: int = Field(4, ge=1, le=1000)
    num_minibatches: int | None = Field(None, ge=1, le=10_000)
    """Minibatches per pass, each of which is a gradient step. null: 2, or one per sequence if a rollout has fewer."""
    network: Literal["retention"] = "retention"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Layers of the network: retention over agents and timesteps."""
    num_heads: int = Field(1, ge=1, le=1024)
    """Heads of each retention, with decays of their own; they divide `embedding_size`."""
    network_edges: Literal["full"] = "full"
    """Agents that read each other: all."""
    critic_network: None = None
    """Layers of the critic: those of the policy's encoder."""
    memory: bool = True
    """Keep what the team observed and did over the timesteps of an episode; false: retention over agents only."""
    decay_scale: Annotated[float, MEMORY] = Field(0.8, gt=0, le=1)
    """Factor of the decays of the memory per timestep, which are between 1 - 1/32 and 1 - 1/512."""
    rnn: Literal["none"] = "none"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Recurrent layer: none, as retention has a memory of its own."""
    sequence_length: Annotated[int | None, MEMORY] = Field(None, ge=1, le=100_000)
    """Timesteps per training sequence; null: the rollout length."""

    @property
    def recurrent(self) -> bool:
        return self.memory

    def retention_sizes(self) -> RetentionSizes:
        """Returns the size of encoder and decoder. UserError if heads do not divide the features."""
        sizes = self.sizes()
        scale = self.decay_scale if self.memory else None
        return RetentionSizes(sizes.features, sizes.blocks, sizes.heads, scale)


class Sable(PPO):
    """Sable, see the module's description.

    Attributes:
        actor: Encoder and decoder.
    """

    Config: ClassVar = SableConfig
    base: ClassVar = "sable"
    capabilities: ClassVar = Capabilities(
        actions=ALL_ACTIONS,
        rnn=False,
        memory=True,
        images=True,
        reward_streams=True,
        cuda_graphs=True,
        centralized_execution=True,
    )
    config: SableConfig
    policy: AutoregressivePolicy  # pyright: ignore[reportIncompatibleVariableOverride]
    critic: SableCritic

    def __init__(self, config: SableConfig, context: AlgorithmContext) -> None:
        if config.share_params == "none":
            raise UserError(
                "algo.share_params=none: the agents of Sable share encoder and decoder. Omit it, or use algo=mat_dec."
            )
        super().__init__(config, context)

    def _build_policy(self, config: SableConfig, weights: torch.Generator) -> AutoregressivePolicy:
        inputs = config.encoder_config(self.team)
        encoder = SableEncoder(self.team, inputs, config.retention_sizes(), weights)
        self.actor = SableActor(
            encoder, weights, state_dependent_std=config.state_dependent_std, init_std=config.init_std
        )
        return AutoregressivePolicy(self.team, inputs, self.actor, self.device, order=config.agent_order)

    def _build_critic(self, signals: int, weights: torch.Generator) -> nn.Module:
        values = AgentValues(self.team, signals, self.config.sizes(), weights, state_size=self._state.size)
        return SableCritic(self.actor.encoder, values)

    def _critic_first(self, rollout: Rollout) -> Tensor:
        return rollout.first  # the encoder is the critic's and the policy's, and is reset where the policy is

    def _evaluate(self, batch: Batch, hidden_state: dict[str, HiddenState]) -> tuple[Tensor, Tensor, Tensor]:
        actor, view = self.actor, view_of(batch.obs)
        inputs = (batch.obs, batch.action, batch.first, hidden_state.get("actor", {}))
        features, encoded, _ = actor.decode(*inputs)  # one pass for values and actions
        log_prob, entropy = actor.log_probs(features, batch.action_mask, batch.action, order_of(view.place))
        return log_prob, entropy, self.critic.values(encoded, view.alive, batch.state)

    def start_value_estimation(self, num_envs: int) -> HiddenState:
        hidden_state = self.policy.initial_hidden_state(num_envs)
        return {name: hidden_state[name] for name in (ENCODER, STEP) if hidden_state}

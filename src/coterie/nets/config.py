"""Settings of networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
Init = Literal["orthogonal", "xavier"]
RNNKind = Literal["none", "gru", "lstm"]
ShareParams = Literal["role", "all", "none"]


@dataclass(frozen=True)
class NetworkConfig:
    """Architecture and inputs of a network.

    Attributes:
        hidden_sizes: Units of the hidden layers.
        activation: Activation after each hidden layer.
        layer_norm: Apply layer normalization to the input and to each hidden layer.
        rnn: Recurrent layer after the hidden layers.
        rnn_size: Units of the recurrent layer.
        init: Initialization of linear layers.
        share_params: Agents that share parameters: those of a role, all agents of the team, or none.
        obs_agent_id: Append the agent's one-hot id to the input.
        obs_last_action: Append the agent's last action to the input of a policy.
        normalize_obs: Normalize the observations that a policy reads by their running mean and standard deviation.
    """

    hidden_sizes: Sequence[int] = (64, 64)
    activation: Activation = "relu"
    layer_norm: bool = False
    rnn: RNNKind = "none"
    rnn_size: int = 64
    init: Init = "orthogonal"
    share_params: ShareParams = "role"
    obs_agent_id: bool = False
    obs_last_action: bool = False
    normalize_obs: bool = False

    def parameter_sets(self, agents: int) -> int | None:
        """Returns the number of parameter sets of a network: one per agent, or None for one that all share."""
        return agents if self.share_params == "none" else None


@dataclass(frozen=True)
class CentralInputs:
    """Input of a centralized network: the joint observation, and `state_size` features of the environment's state."""

    joint_obs: bool
    state_size: int = 0

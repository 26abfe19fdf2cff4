"""Settings of networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.core.specs import RoleSpec

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
Init = Literal["orthogonal", "xavier"]
RNNKind = Literal["none", "gru", "lstm"]
ShareParams = Literal["role", "all", "none"]
NetworkPart = Literal["actor", "critic", "q"]


@dataclass(frozen=True)
class ModuleFactory:
    """A user's factory of modules in place of hidden layers or a mixer, see `nets/user_body.py` and `user_mixer.py`.

    Attributes:
        name: Its name, `package.module:factory`.
        setting: Key of the setting that names it, for error messages.
        make: The factory.
    """

    name: str
    setting: str
    make: Callable[..., Any]


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
        body: A user's factory of modules in place of the hidden layers; None for hidden layers.
        part: Use of the network: actor, critic, or Q-network.
        role: Role whose agents read the network; None if it reads the whole team.
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
    body: ModuleFactory | None = None
    part: NetworkPart = "actor"
    role: str | None = None

    def parameter_sets(self, agents: int) -> int | None:
        """Returns the number of parameter sets of a network: one per agent, or None for one that all share."""
        return agents if self.share_params == "none" else None

    def of_role(self, role: str) -> NetworkConfig:
        """Returns the settings of a network that the agents of a role read."""
        return replace(self, role=role)


@dataclass(frozen=True)
class CentralInputs:
    """Input of a centralized network.

    Attributes:
        joint_obs: The joint observation of the team.
        state_size: Number of features of the environment's state.
        other_roles: Roles of other teams whose observations are read, and whose actions if actions are read.
    """

    joint_obs: bool
    state_size: int = 0
    other_roles: tuple[RoleSpec, ...] = ()

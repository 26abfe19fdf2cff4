"""Settings of networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.core.specs import RoleSpec

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
Init = Literal["orthogonal", "xavier"]
LayerNormKind = bool | Literal["hidden"]
RNNKind = Literal["none", "gru", "lstm"]
ShareParams = Literal["role", "all", "none"]
NetworkPart = Literal["actor", "critic", "q"]
BodyKind = Literal["attention", "graph", "commnet", "ic3net", "tarmac"]
Edges = Literal["full", "radius", "given"]
View = Literal["none", "team", "entities"]

BODY_SUMMARIES: dict[str, str] = {
    "mlp": "hidden layers that read an agent's own observation",
    "attention": "attention over the entities that an agent observes: one policy for any number of agents and objects",
    "graph": "graph attention over neighbors, by distance or as the environment declares (Velickovic et al. 2018)",
    "commnet": "the mean of the others' features as a message (Sukhbaatar et al. 2016)",
    "ic3net": "means of features as messages, which each agent learns to send or not (Singh et al. 2019)",
    "tarmac": "targeted messages: attention over what others send (Das et al. 2019)",
}
"""Networks of Coterie in a few words each."""

MESSAGE_BODIES = ("graph", "commnet", "ic3net", "tarmac")
"""Bodies by which an agent reads what others observe, so that acting needs a channel between them."""


@dataclass(frozen=True)
class ModuleFactory:
    """A user's factory of modules in place of hidden layers or a mixer, see `nets/user_body.py` and `user_mixer.py`.

    Attributes:
        name: Its name, `package.module:factory`.
        setting: Key of the setting that names it, for error messages.
        make: The factory.
        sees_team: True if its modules read all agents of a team at once.
    """

    name: str
    setting: str
    make: Callable[..., Any]
    sees_team: bool = False


@dataclass(frozen=True)
class NetworkConfig:
    """Architecture and inputs of a network.

    Attributes:
        hidden_sizes: Units of the hidden layers.
        activation: Activation after each hidden layer.
        layer_norm: Apply layer normalization to the input and after each activation (True), or before each activation
            of hidden layers and not to the input (hidden).
        rnn: Recurrent layer after the hidden layers.
        rnn_size: Units of the recurrent layer.
        init: Initialization of linear layers.
        share_params: Agents that share parameters: those of a role, all agents of the team, or none.
        obs_agent_id: Append the agent's one-hot id to the input.
        obs_last_action: Append the agent's last action to the input of a policy.
        normalize_obs: Normalize the observations that a policy reads by their running mean and standard deviation.
        body: A body that sees entities or the team, see `nets/team_bodies.py`, or a user's factory of modules in place
            of the hidden layers; None for hidden layers.
        heads: Attention heads of `attention` and `graph`.
        rounds: Layers of attention, or rounds of messages; None for 1, or 2 of `tarmac`.
        edges: Agents that hear each other: all (full), those within `radius`, or those that the environment gives.
        radius: Distance up to which agents hear each other, in the unit of positions.
        joint: The network is a critic that reads the whole team.
        view: The part of a `TeamView` that the learner's networks read: none, its agents and edges (team), or also the
            entities that agents observe.
        part: Use of the network: actor, critic, or Q-network.
        role: Role whose agents read the network; None if it reads the whole team.
    """

    hidden_sizes: Sequence[int] = (64, 64)
    activation: Activation = "relu"
    layer_norm: LayerNormKind = False
    rnn: RNNKind = "none"
    rnn_size: int = 64
    init: Init = "orthogonal"
    share_params: ShareParams = "role"
    obs_agent_id: bool = False
    obs_last_action: bool = False
    normalize_obs: bool = False
    body: ModuleFactory | BodyKind | None = None
    heads: int = 4
    rounds: int | None = None
    edges: Edges = "full"
    radius: float | None = None
    joint: bool = False
    view: View = "none"
    part: NetworkPart = "actor"
    role: str | None = None

    @property
    def reads_entities(self) -> bool:
        """True if networks read observations as entities."""
        return self.body == "attention"

    @property
    def sees_team(self) -> bool:
        """True if the features of an agent depend on the observations of others."""
        if isinstance(self.body, ModuleFactory):
            return self.body.sees_team
        return self.body in MESSAGE_BODIES or (self.reads_entities and self.joint)

    @property
    def reads_view(self) -> bool:
        """True if networks read a `TeamView` besides observations."""
        return self.reads_entities or self.sees_team

    def parameter_sets(self, agents: int) -> int | None:
        """Returns the number of parameter sets of a network: one per agent, or None for one that all share."""
        return agents if self.share_params == "none" else None

    def of_role(self, role: str) -> NetworkConfig:
        """Returns the settings of a network that the agents of a role read."""
        return replace(self, role=role)

    def of_rows(self, role: str) -> NetworkConfig:
        """Returns the settings of a role's network that reads encoded observations, for which a body that reads a view
        has no use.
        """
        return replace(self, role=role, body=None if self.reads_view else self.body)


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

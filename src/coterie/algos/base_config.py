"""Settings and metrics shared by on-policy and off-policy learners."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.algos.optimizer import Schedule
from coterie.config import registry
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.specs import TeamSpec
from coterie.nets.config import Activation, BodyFactory, Init, NetworkConfig, RNNKind, ShareParams

declare(
    Metric("loss/policy", "", "policy loss, mean over the update", better=None, combine="mean"),
    Metric("policy/entropy", "nat", "entropy of an agent's action distribution", better=None, combine="mean"),
    Metric("policy/grad_norm", "", "gradient norm of the actor before clipping", better=None, combine="mean"),
    Metric("value/grad_norm", "", "gradient norm of the critic before clipping", better=None, combine="mean"),
    Metric("policy/lr", "", "learning rate of the actor", better=None, combine="last"),
    Metric("policy/epsilon", "share", "probability of a random action", better=None, combine="last"),
    Metric(
        "value/td_error_abs",
        "reward",
        "absolute temporal-difference error, after reward scaling",
        better="down",
        combine="mean",
    ),
    Metric(
        "value/q_taken_mean", "reward", "mean Q of the actions taken, after reward scaling", better=None, combine="mean"
    ),
    Metric("value/target_mean", "reward", "mean target of Q, after reward scaling", better=None, combine="mean"),
)

Units = Annotated[int, Field(ge=1, le=100_000)]
"""Number of units in a layer."""


def _check_network(value: str) -> str:
    if value != "mlp" and ":" not in value:
        raise ValueError("expected mlp, or a factory package.module:name of your own")
    return value


NetworkName = Annotated[str, AfterValidator(_check_network)]
"""Layers of a network: `mlp`, or a user's factory of torch modules `package.module:name`."""


class LearnerConfig(BaseModel):
    """Settings that every learner has.

    A subclass that only changes a default repeats the field without its docstring: the description is inherited.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollout_length: int = Field(128, ge=1, le=100_000)
    """Steps per environment between updates, including the reset step after each episode."""
    lr: float = Field(5e-4, gt=0, lt=1)
    """Adam's learning rate."""
    lr_schedule: Schedule = "constant"
    """Schedule of the learning rates, from their value to `lr_end` times their value over the run."""
    lr_end: float = Field(0.01, gt=0, le=1)
    """Final learning rates as a fraction of their initial values."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per step."""
    max_grad_norm: float | None = Field(10.0, gt=0, le=10**12)
    """Maximum gradient norm, applied to each network separately; null: no clipping."""
    max_grad_value: float | None = Field(None, gt=0, le=10**12)
    """Maximum absolute value of each entry of a gradient, applied before `max_grad_norm`; null: no limit."""
    adam_eps: float = Field(1e-5, gt=0, le=1)
    """Adam's epsilon."""
    weight_decay: float = Field(0.0, ge=0, le=1000)
    """Adam's weight decay."""
    hidden_sizes: tuple[Units, ...] = Field((64, 64), min_length=1)
    """Units of the hidden layers of the network that acts."""
    network: NetworkName | None = None
    """Your own factory of torch modules package.module:name, called as name(input_size, role=, part=), in place of the
    hidden layers of all networks but mixers; null or `mlp`: `hidden_sizes` units with `activation` and `layer_norm`.
    """
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    layer_norm: bool = False
    """Apply layer normalization to the input and to each hidden layer."""
    init: Init = "orthogonal"
    """Initialization of linear layers: orthogonal, with a small gain in the actor's output layer, or Xavier normal for
    all layers, which starts from a policy far from uniform. Mixers and MA-POCA's critic have an initialization of their
    own.
    """
    rnn: RNNKind = "none"
    """Recurrent layer."""
    rnn_size: int = Field(64, ge=1, le=100_000)
    """Units of the recurrent layer."""
    sequence_length: int | None = Field(None, ge=1, le=100_000)
    """Timesteps per training sequence of a recurrent network; null: the rollout length."""
    share_params: ShareParams = "role"
    """Agents that share parameters: those of a role (role), all agents of the team, distinguished by their id (all), or
    none.
    """
    obs_agent_id: bool | None = None
    """Append the agent's one-hot id to the network's input; null: only where agents share parameters."""
    normalize_obs: bool = False
    """Normalize observations by their running mean and standard deviation."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Copies the descriptions of fields that a subclass repeats with another default."""
        for name, field in cls.model_fields.items():
            if field.description is None:
                parents = (parent.model_fields.get(name) for parent in cls.__mro__[1:] if issubclass(parent, BaseModel))
                field.description = next((p.description for p in parents if p is not None and p.description), None)

    @property
    def recurrent(self) -> bool:
        """True if networks have a recurrent layer."""
        return self.rnn != "none"

    @property
    def adam_settings(self) -> tuple[float, float, float | None, float | None]:
        """Arguments of `Optimizer` after the modules: epsilon, weight decay, and the limits of gradients."""
        return self.adam_eps, self.weight_decay, self.max_grad_norm, self.max_grad_value

    def network_config(self, team: TeamSpec) -> NetworkConfig:
        """Returns the architecture and the inputs of the network that acts."""
        return NetworkConfig(
            hidden_sizes=self.hidden_sizes,
            activation=self.activation,
            layer_norm=self.layer_norm,
            rnn=self.rnn,
            rnn_size=self.rnn_size,
            init=self.init,
            share_params=self.share_params,
            obs_agent_id=self.reads_agent_id(team),
            normalize_obs=self.normalize_obs,
            body=_body_factory(self.network, "algo.network"),
        )

    def reads_agent_id(self, team: TeamSpec) -> bool:
        """Returns True if inputs include the agent's id: as configured, by default where agents share parameters."""
        return (self.share_params != "none" and team.n > 1) if self.obs_agent_id is None else self.obs_agent_id


class CriticConfig(LearnerConfig):
    """Settings of learners with a critic of its own architecture."""

    critic_hidden_sizes: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critic's hidden layers; null: `hidden_sizes`."""
    critic_agent_id: bool | None = None
    """Append the agent's one-hot id to the input of a critic that is evaluated for each agent: of COMA, SAC and MASAC,
    and of other learners with critic=own; null: as the actor's, see `obs_agent_id`.
    """
    critic_network: NetworkName | None = None
    """Your own factory of torch modules for the critic, as `network`; `mlp`: hidden layers; null: `network`."""

    def critic_network_config(self, team: TeamSpec, *, per_agent: bool = True) -> NetworkConfig:
        """Returns the architecture and the inputs of the critic.

        Args:
            team: The team.
            per_agent: True if the critic is evaluated for each agent, so that it can read the agent's id.

        Raises:
            UserError: If `critic_agent_id` is set and has no effect.
        """
        if self.critic_agent_id is not None and not per_agent:
            raise UserError(
                f"algo.critic_agent_id={str(self.critic_agent_id).lower()}: has no effect, because the critic of team "
                f"{team.name} evaluates all agents together. Omit it."
            )
        body = self.network_config(team).body
        if self.critic_network is not None:
            body = _body_factory(self.critic_network, "algo.critic_network")
        sizes = self.critic_hidden_sizes or self.hidden_sizes
        network = self.network_config(team)
        ids = network.obs_agent_id if self.critic_agent_id is None else self.critic_agent_id
        return replace(network, hidden_sizes=sizes, obs_agent_id=ids, body=body, part="critic")


def _body_factory(name: str | None, setting: str) -> BodyFactory | None:
    """Imports a user's factory of torch modules. UserError if there is no such factory."""
    if name in (None, "mlp"):
        return None
    return BodyFactory(name, setting, registry.network_factory(name, setting))

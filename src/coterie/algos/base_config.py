"""Settings and metrics shared by on-policy and off-policy learners."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.algos.optimizer import Schedule
from coterie.config import user_code
from coterie.config.needs import SEVERAL, Needs, needs_of
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.specs import TeamSpec
from coterie.nets.config import Activation, Init, ModuleFactory, NetworkConfig, RNNKind, ShareParams

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


class RunFacts(NamedTuple):
    """Facts of a run that settings which are null derive from.

    Attributes:
        limit: Step limit of episodes; None if unknown.
        steps: Environment steps of the whole run; None if unknown.
        num_envs: Number of environments.
        rollout_length: Timesteps of a rollout.
    """

    limit: int | None
    steps: int | None
    num_envs: int
    rollout_length: int

    @property
    def rollout_steps(self) -> int:
        """Environment steps of a rollout, including reset steps."""
        return self.num_envs * self.rollout_length


class Derived(NamedTuple):
    """Value of a setting that is null, and the reason for it."""

    value: Any
    reason: str


C = TypeVar("C", bound="LearnerConfig")


class LearnerConfig(BaseModel):
    """Settings that every learner has.

    A subclass that only changes a default repeats the field without its docstring: the description is inherited.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rollout_length: int = Field(128, ge=1, le=10**6)
    """Steps per environment between updates, including the reset step after each episode."""
    lr: float = Field(5e-4, gt=0, lt=1)
    """Adam's learning rate."""
    lr_schedule: Schedule = "constant"
    """Schedule of the learning rates, from their value to `lr_end` times their value over the run."""
    lr_end: Annotated[float, Needs("lr_schedule!=constant")] = Field(0.01, gt=0, le=1)
    """Final learning rates as a fraction of their initial values."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per step."""
    bootstrap_at_limit: bool | None = None
    """Add the value of the final observation to returns that a step limit ends; false: returns end there, too. null:
    false where values read the time left, see `value_time_left`, and the environment has a known limit.
    """
    value_time_left: bool | None = None
    """Critics, and mixers of Q-values, also read the fraction of the step limit that is left; null: where returns end
    at the limit. Otherwise states that look late in an episode seem better or worse than they are.
    """
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
    rnn_size: Annotated[int, Needs("rnn!=none")] = Field(64, ge=1, le=100_000)
    """Units of the recurrent layer."""
    sequence_length: Annotated[int | None, Needs("rnn!=none")] = Field(None, ge=1, le=100_000)
    """Timesteps per training sequence of a recurrent network; null: the rollout length."""
    share_params: Annotated[ShareParams, SEVERAL] = "role"
    """Agents that share parameters: those of a role (role), all agents of the team, distinguished by their id (all), or
    none.
    """
    obs_agent_id: Annotated[bool | None, SEVERAL] = None
    """Append the agent's one-hot id to the network's input; null: only where agents share parameters."""
    normalize_obs: bool = True
    """Normalize observations by their running mean and standard deviation."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Copies descriptions and needs of fields that a subclass repeats with another default."""
        for name, field in cls.model_fields.items():
            if field.description is None:
                parents = (parent.model_fields.get(name) for parent in cls.__mro__[1:] if issubclass(parent, BaseModel))
                parent = next((p for p in parents if p is not None and p.description), None)
                field.description = None if parent is None else parent.description
                if parent is not None and not needs_of(field):
                    field.metadata = [*field.metadata, *needs_of(parent)]

    @property
    def recurrent(self) -> bool:
        """True if networks have a recurrent layer."""
        return self.rnn != "none"

    @property
    def values_read_state(self) -> bool:
        """True if values can depend on something that the policy does not observe, such as the time left.

        Algorithms return True here whose `update` ends returns at the limit if `bootstrap_at_limit` is false, and whose
        values are those of a `CentralState`.
        """
        return False

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        """Returns the values of settings that are null and follow from facts of the run, by name."""
        found, bootstraps = {}, self.bootstrap_at_limit
        if bootstraps is None:
            bootstraps, reason = True, "the environment has no known step limit"
            if run.limit is not None and self.values_read_state and self.value_time_left is not False:
                bootstraps, reason = False, f"values read how much is left of the limit of {run.limit} steps"
            elif run.limit is not None:
                reason = "values do not read the time left"
            found["bootstrap_at_limit"] = Derived(bootstraps, reason)
        if self.value_time_left is None and self.values_read_state:
            ends = run.limit is not None and not bootstraps
            found["value_time_left"] = Derived(ends, f"returns {'end' if ends else 'do not end'} at a step limit")
        return found

    def with_derived(self: C, run: RunFacts) -> C:
        """Returns the settings with derived values in place of null."""
        return self.model_copy(update={name: value for name, (value, _) in self.derived(run).items()})

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

    @property
    def values_read_state(self) -> bool:
        return True

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


def _body_factory(name: str | None, setting: str) -> ModuleFactory | None:
    """Imports a user's factory of hidden layers; None for Coterie's. UserError if there is no such factory."""
    return None if name in (None, "mlp") else module_factory(name, setting)


def module_factory(name: str, setting: str) -> ModuleFactory:
    """Imports the user's factory of torch modules that a setting names. UserError if there is no such factory."""
    return ModuleFactory(name, setting, user_code.module_factory(name, setting))

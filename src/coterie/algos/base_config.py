"""Settings and metrics shared by on-policy and off-policy learners."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.algos.optimizer import Rule, Schedule
from coterie.algos.replay.spec import SequenceStart, Storage
from coterie.config import user_code
from coterie.config.needs import CONTINUOUS, SEVERAL, Needs, needs_of
from coterie.config.schema import Count
from coterie.core.errors import UserError
from coterie.core.metrics import Metric, declare
from coterie.core.specs import TeamSpec
from coterie.nets.config import (
    Activation,
    BodyKind,
    Edges,
    Init,
    LayerNormKind,
    ModuleFactory,
    NetworkConfig,
    RNNKind,
    ShareParams,
    View,
)

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
    Metric(
        "loss/value", "", "value loss on the scale that is learned, mean over the update", better="down", combine="mean"
    ),
    Metric(
        "policy/kl",
        "nat",
        "estimated KL divergence from the policy that collected the rollout",
        better=None,
        combine="mean",
    ),
    Metric(
        "policy/clip_fraction",
        "share",
        "samples whose policy ratio is outside the clip range",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/explained_variance",
        "share",
        "variance of the returns that the values explain; 1 is all",
        better="up",
        combine="mean",
    ),
    Metric(
        "policy/advantage",
        "",
        "mean advantage of the actions taken, before normalization",
        better=None,
        combine="mean",
    ),
    Metric(
        "value/estimate",
        "reward",
        "mean value of the rollout's timesteps before the update, of the environment's reward",
        better=None,
        combine="mean",
    ),
    Metric("policy/entropy_coef", "", "weight of the entropy bonus", better=None, combine="last"),
    Metric(
        "policy/epochs",
        "",
        "passes over the rollout before the KL divergence ended the update",
        better=None,
        combine="mean",
    ),
    Metric("replay/sequences", "", "sequences in the replay buffer", better=None, combine="sum"),
    Metric("replay/age", "step", "mean age of the steps in the replay buffer", better=None, combine="mean"),
    Metric("replay/updates", "", "gradient steps since the start of the run", better=None, combine="max"),
    Metric(
        "replay/reward_scale",
        "reward",
        "root mean square of rewards, by which they are divided: values in rewards are this times the logged ones",
        better=None,
        combine="mean",
    ),
    Metric("loss/td", "", "temporal-difference loss", better="down", combine="mean"),
    Metric("loss/critic", "", "temporal-difference loss of the critics", better="down", combine="mean"),
    Metric("loss/temperature", "", "loss of the logarithm of the temperature", better=None, combine="mean"),
    Metric("policy/temperature", "", "coefficient of the entropy in the return", better=None, combine="mean"),
    Metric(
        "policy/noise_std",
        "",
        "standard deviation of the exploration noise; actions are in [-1, 1]",
        better=None,
        combine="last",
    ),
)

Units = Annotated[int, Field(ge=1, le=100_000)]
"""Number of units in a layer."""


BODIES = get_args(BodyKind)
"""Networks of Coterie that see entities or the team."""

_WITH_HEADS = "attention", "graph"
LAYERS = "network=null|mlp|" + "|".join(BODIES), "critic_network=mlp|" + "|".join(BODIES)
"""Conditions for layers of Coterie in the network that acts, and in the critic."""


def _needs(kinds: tuple[str, ...], *settings: str) -> Needs:
    """Returns the condition that one of the settings has one of these networks."""
    return Needs(*(f"{setting}={'|'.join(kinds)}" for setting in settings))


def _check_network(value: str) -> str:
    if value != "mlp" and value not in BODIES and ":" not in value:
        raise ValueError(f"expected mlp, {', '.join(BODIES)}, or a factory package.module:name of your own")
    return value


NetworkName = Annotated[str, AfterValidator(_check_network)]
"""Layers of a network: `mlp`, a body that sees entities or the team, or a user's factory `package.module:name`."""


class RunFacts(NamedTuple):
    """Facts of a run that settings which are null or auto derive from.

    Attributes:
        limit: Step limit of episodes; None if unknown.
        steps: Environment steps of the whole run; None if unknown.
        num_envs: Number of environments.
        rollout_length: Timesteps of a rollout.
        team: The team; None if it is unknown.
    """

    limit: int | None
    steps: int | None
    num_envs: int
    rollout_length: int
    team: TeamSpec | None = None

    @property
    def rollout_steps(self) -> int:
        """Environment steps of a rollout, including reset steps."""
        return self.num_envs * self.rollout_length


class Derived(NamedTuple):
    """Value of a setting that is null or auto, and the reason for it."""

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
    """Learning rate of the optimizer."""
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
    optimizer: Rule = "adam"
    """Optimizer: Adam, or RAdam (radam), which rectifies the size of its first steps."""
    adam_eps: float = Field(1e-5, gt=0, le=1)
    """Epsilon of the optimizer."""
    weight_decay: float = Field(0.0, ge=0, le=1000)
    """Weight decay of the optimizer."""
    hidden_sizes: tuple[Units, ...] = Field((64, 64), min_length=1)
    """Units of the hidden layers of the network that acts."""
    network: NetworkName | None = None
    """Layers of all networks but mixers. null or `mlp`: `hidden_sizes` units with `activation` and `layer_norm`.
    `attention` over the entities that an agent observes, for any number of agents. `graph`, `commnet`, `ic3net`,
    `tarmac`: agents exchange messages, so that execution is centralized. Or your own factory of torch modules
    package.module:name, called as name(input_size, role=, part=).
    """
    network_heads: Annotated[int, _needs(_WITH_HEADS, "network")] = Field(4, ge=1, le=1024)
    """Attention heads; they divide the units of the last hidden layer."""
    network_rounds: Annotated[int | None, _needs(BODIES, "network")] = Field(None, ge=1, le=100)
    """Layers of attention, or rounds of messages per timestep; null: 1, or 2 of tarmac."""
    network_edges: Edges = "full"
    """Agents that hear each other, in networks that exchange messages and in those of your own that see the team: all
    (full), those within `network_radius` (radius), or those that the environment declares in its observations (given).
    """
    network_radius: Annotated[float | None, Needs("network_edges=radius")] = Field(None, gt=0, le=10**9)
    """Distance up to which agents hear each other, in the unit of the positions that agents observe."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    layer_norm: LayerNormKind = False
    """Apply layer normalization to the input and to each hidden layer, after its activation (true), or only to hidden
    layers, before their activation (hidden).
    """
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
        """Returns the values of settings that are null or auto and follow from facts of the run, by name."""
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
    def adam_settings(self) -> tuple[float, float, float | None, float | None, Rule]:
        """Arguments of `Optimizer` after the modules: epsilon, weight decay, limits of gradients, and the rule."""
        return self.adam_eps, self.weight_decay, self.max_grad_norm, self.max_grad_value, self.optimizer

    def network_config(self, team: TeamSpec) -> NetworkConfig:
        """Returns the architecture and the inputs of the network that acts."""
        return NetworkConfig(
            hidden_sizes=self.hidden_sizes,
            activation=self.activation,
            layer_norm=self.layer_norm or False,
            rnn=self.rnn,
            rnn_size=self.rnn_size,
            init=self.init,
            share_params=self.share_params,
            obs_agent_id=self.reads_agent_id(team),
            normalize_obs=self.normalize_obs,
            body=self._body(self.network, "algo.network"),
            heads=self.network_heads,
            rounds=self.network_rounds,
            edges=self.network_edges,
            radius=self.network_radius,
            view=self._view(),
        )

    def _bodies(self) -> tuple[ModuleFactory | BodyKind | None, ...]:
        """Returns the bodies of all networks."""
        return (self._body(self.network, "algo.network"),)

    def _view(self) -> View:
        """Returns the part of a `TeamView` that networks read."""
        bodies = self._bodies()
        if "attention" in bodies:
            return "entities"
        sees_team = (body.sees_team if isinstance(body, ModuleFactory) else body is not None for body in bodies)
        return "team" if any(sees_team) else "none"

    def _body(self, name: str | None, setting: str) -> ModuleFactory | BodyKind | None:
        """Returns the body of a network; None for hidden layers.

        Raises:
            UserError: If there is no such factory, or other settings do not fit the body.
        """
        if name is None or name == "mlp":
            return None
        body = cast(BodyKind, name) if name in BODIES else module_factory(name, setting)
        if isinstance(body, ModuleFactory) and not body.sees_team:
            return body
        if self.share_params == "none":
            raise UserError(
                f"algo.share_params=none: agents share the parameters of {setting}={name}. Set algo.share_params=role, "
                "with algo.obs_agent_id=true for agents that act differently."
            )
        return body

    def reads_agent_id(self, team: TeamSpec) -> bool:
        """Returns True if inputs include the agent's id: as configured, by default where agents share parameters, but
        not in networks for any number of agents.
        """
        if self.obs_agent_id is not None:
            return self.obs_agent_id
        return self.share_params != "none" and team.n > 1 and self.network != "attention"


class CriticConfig(LearnerConfig):
    """Settings of learners with a critic of its own architecture."""

    critic_hidden_sizes: tuple[Units, ...] | None = Field(None, min_length=1)
    """Units of the critic's hidden layers; null: `hidden_sizes`."""
    critic_agent_id: bool | None = None
    """Append the agent's one-hot id to the input of a critic that is evaluated for each agent: of COMA, SAC and MASAC,
    and of other learners with critic=own; null: as the actor's, see `obs_agent_id`.
    """
    critic_network: NetworkName | None = None
    """Layers of the critic, as `network`; `mlp`: hidden layers; null: `network`. A critic of the whole team reads all
    agents by any of the networks that see entities or the team.
    """
    network_heads: Annotated[int, _needs(_WITH_HEADS, "network", "critic_network")] = Field(4, ge=1, le=1024)
    network_rounds: Annotated[int | None, _needs(BODIES, "network", "critic_network")] = Field(None, ge=1, le=100)

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
        body = self._bodies()[1]
        sizes = self.critic_hidden_sizes or self.hidden_sizes
        network = self.network_config(team)
        ids = network.obs_agent_id if self.critic_agent_id is None else self.critic_agent_id
        return replace(network, hidden_sizes=sizes, obs_agent_id=ids, body=body, part="critic")

    def row_critic_network_config(self, team: TeamSpec, *, reason: str) -> NetworkConfig:
        """Returns the architecture of a critic of the whole team whose layers cannot see its agents.

        Raises:
            UserError: If `critic_network` is set to a network that sees entities or the team, with the `reason` that it
                cannot; or as above.
        """
        network = self.critic_network_config(team, per_agent=False)
        if not network.reads_view:
            return network
        if self.critic_network is not None:
            raise UserError(f"algo.critic_network={self.critic_network}: {reason}. Set algo.critic_network=mlp.")
        return replace(network, body=None)

    def _bodies(self) -> tuple[ModuleFactory | BodyKind | None, ...]:
        actor = super()._bodies()
        if self.critic_network is None:
            return actor * 2
        return *actor, self._body(self.critic_network, "algo.critic_network")


class MinibatchConfig(LearnerConfig):
    """Settings of learners that make passes over the minibatches of each rollout.

    Attributes:
        minibatches: Minibatches per pass, unless they are set or a rollout has fewer samples.
    """

    minibatches: ClassVar[int] = 4

    epochs: int = Field(5, ge=1, le=1000)
    """Passes over each rollout."""
    num_minibatches: int | None = Field(None, ge=1, le=10_000)
    """Minibatches per pass. Each is one gradient step, or one of the actor if the critic has steps of its own. null: 4,
    or one per sequence if a rollout has fewer.
    """

    @property
    def learns_from_sequences(self) -> bool:
        """True if minibatches consist of sequences; false: of timesteps."""
        return self.recurrent

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.num_minibatches is None:
            samples, unit = run.rollout_steps, "timesteps"
            if self.learns_from_sequences:
                samples, unit = run.rollout_steps // (self.sequence_length or run.rollout_length), "sequences"
            number = max(1, min(self.minibatches, samples))
            found["num_minibatches"] = Derived(number, f"a rollout has {samples:,} {unit}")
        return found


class OnPolicyConfig(MinibatchConfig, CriticConfig):
    """Settings shared by on-policy learners of a policy and a critic."""

    critic_lr: float | None = Field(None, gt=0, lt=1)
    """Learning rate of the critic; null: `lr`."""
    entropy_coef: float = Field(0.01, ge=0, le=10**6)
    """Initial weight of the entropy bonus."""
    entropy_schedule: Annotated[Schedule, Needs("entropy_coef!=0")] = "constant"
    """Schedule of the entropy bonus, from its initial weight to `entropy_end` times that weight over the run."""
    entropy_end: Annotated[float, Needs("entropy_coef!=0"), Needs("entropy_schedule!=constant")] = Field(
        0.1, gt=0, le=1
    )
    """Final weight of the entropy bonus as a fraction of the initial weight."""
    normalize_advantage: bool = True
    """Normalize advantages over all valid entries that they are computed for, a rollout or a batch of sequences."""
    hidden_sizes: tuple[Units, ...] = Field((64, 64), min_length=1)
    """Units of the actor's hidden layers."""
    activation: Activation = "tanh"


SEVERAL_STEPS = Needs("epochs!=1", "num_minibatches!=1")
"""In the only gradient step of an update, the policy ratio is 1 and is not clipped."""


class ClippedConfig(OnPolicyConfig):
    """Settings shared by learners that clip the policy ratio and the value."""

    clip_eps: Annotated[float, SEVERAL_STEPS] = Field(0.2, gt=0, lt=1)
    """Clip range of the policy ratio."""
    value_coef: float = Field(1.0, gt=0, le=10**6)
    """Weight of the value loss."""
    value_clip_eps: float | None = Field(0.2, gt=0, le=10**12)
    """Clip range of the value around its old value, on the normalized scale; null: no clipping."""
    huber_delta: float | None = Field(10.0, gt=0, le=10**12)
    """Error above which the value loss is linear (Huber loss); null: squared error."""
    normalize_value: bool = True
    """Learn values that are normalized by the moving mean and standard deviation of the returns."""
    value_norm_decay: Annotated[float, Needs("normalize_value=true")] = Field(0.99999, gt=0, lt=1)
    """Decay of the moving return statistics."""
    state_dependent_std: Annotated[bool, CONTINUOUS] = False
    """The standard deviation of continuous actions is an output of the actor; false: a learned parameter."""
    init_std: Annotated[float, CONTINUOUS] = Field(0.6, gt=0, le=10)
    """Initial standard deviation of continuous actions, whose range has length 2."""
    rollout_length: int = Field(32, ge=1, le=100_000)
    lr: float = Field(1e-3, gt=0, lt=1)
    obs_agent_id: bool | None = None
    """Append the agent's one-hot id to the network's input; null: only with share_params=all."""

    def reads_agent_id(self, team: TeamSpec) -> bool:
        """Returns True if inputs include the agent's id: as configured, by default only with share_params=all."""
        return self.share_params == "all" if self.obs_agent_id is None else self.obs_agent_id


class ScaledRewardConfig(LearnerConfig):
    """Settings of learners that scale rewards."""

    common_reward: Annotated[bool, SEVERAL] = False
    """Each agent receives the mean of its team's rewards."""
    reward_scale: Literal["none", "rms", "standardize"] = "rms"
    """Divide rewards by their running root mean square (rms), or subtract their running mean and divide by their
    standard deviation (standardize), which changes the optimal policy where episodes differ in length.
    """


MOST_STEPS, LEAST_STEPS = 64, 4
"""Environment steps per gradient step in long and in short runs."""
GRADIENT_STEPS = 5_000
"""Gradient steps of a run of a length between them."""
BATCH_SIZE, RECURRENT_BATCH_SIZE = 256, 32
"""Sequences per gradient step by default."""
LONG_EPISODE, LONG_EPISODE_STEPS = 50, 3
"""Step limit from which targets have several rewards, and the number of these, see `How far values travel` on the page
of Q-learning.
"""


class OffPolicyConfig(ScaledRewardConfig):
    """Settings that off-policy learners share."""

    rollout_length: int = Field(32, ge=1, le=10**6)
    hidden_sizes: tuple[Units, ...] = Field((128, 128), min_length=1)
    gradient_steps: int | None = Field(None, ge=1, le=100_000)
    """Gradient steps after each rollout; null: by `steps`, one per 64 environment steps of the rollout, or up to one
    per 4 in runs so short that they would take fewer than 5,000; at least one.
    """
    batch_size: int | None = Field(None, ge=1, le=1_000_000)
    """Sequences per gradient step; a feed-forward network of Q-learning or DDPG learns from the first timestep of each.
    null: 256, or 32 for recurrent networks.
    """
    n_step: int | None = Field(None, ge=1, le=1000)
    """Rewards per target before it bootstraps; null: 3 without a recurrent layer where the step limit is 50 or more, or
    unknown; else 1.
    """
    buffer_size: Count = Field(100_000, ge=1, le=10**12)
    """Capacity of the replay buffer in environment steps."""
    buffer_storage: Storage = "device"
    """Location of the replay buffer: the networks' device, the host's memory (cpu), or memory-mapped files (disk)."""
    learning_starts: Count = Field(1_000, ge=0, le=10**15)
    """Environment steps before the first update."""
    priority_alpha: float = Field(0.0, ge=0, le=1)
    """Exponent of the priorities by which sequences are sampled; 0 samples uniformly."""
    priority_beta: Annotated[float, Needs("priority_alpha!=0")] = Field(0.4, ge=0, le=1)
    """Initial exponent of the importance weights; it increases linearly to 1 over the run."""
    tau: Annotated[float, Needs("target_update_interval=null")] = Field(0.01, gt=0, le=1)
    """Fraction of the online network in each soft update of the target networks."""
    target_update_interval: int | None = Field(None, ge=1, le=10**12)
    """Gradient steps between hard updates of the target networks; null: a soft update after each gradient step."""
    burn_in: Annotated[int, Needs("rnn!=none")] = Field(0, ge=0, le=100_000)
    """Timesteps before the training sequence that only warm up the hidden state of a recurrent network."""
    sequence_start: Annotated[Literal["auto", "episode", "rollout"], Needs("rnn!=none")] = "auto"
    """First timestep of training sequences of recurrent networks: that of an episode, with a zero hidden state, or that
    of a rollout, with the hidden state of the policy that collected it. auto: episode if no episode is longer than a
    sequence, else rollout.
    """

    def derived(self, run: RunFacts) -> dict[str, Derived]:
        found = super().derived(run)
        if self.gradient_steps is None:
            found["gradient_steps"] = _gradient_steps(run)
        if self.n_step is None:
            is_long, reason = self._long_episodes(run)
            found["n_step"] = Derived(LONG_EPISODE_STEPS if is_long else 1, reason)
        if self.recurrent and self.sequence_start == "auto":
            length = self.sequence_length or run.rollout_length
            holds = self._holds_episodes(run.limit, length)
            reason = f"a sequence of {length} timesteps {'holds' if holds else 'may not hold'} a whole episode"
            found["sequence_start"] = Derived("episode" if holds else "rollout", reason)
        if self.batch_size is None and self.recurrent:
            found["batch_size"] = Derived(RECURRENT_BATCH_SIZE, "networks are recurrent")
        elif self.batch_size is None:
            found["batch_size"] = Derived(BATCH_SIZE, "networks are not recurrent")
        return found

    def _long_episodes(self, run: RunFacts) -> tuple[bool, str]:
        """Returns True if rewards have a long way to the values of early timesteps, and the reason."""
        if self.recurrent:
            return False, "networks are recurrent"
        if run.limit is None:
            return True, "the environment has no known step limit"
        return run.limit >= LONG_EPISODE, f"the step limit is {run.limit}"

    def sequences_start(self, team: TeamSpec, rollout_length: int) -> SequenceStart:
        """Returns the first timestep of training sequences."""
        if not self.recurrent:
            return "timestep"
        if self.sequence_start != "auto":
            return self.sequence_start
        return "episode" if self._holds_episodes(team.episode_limit, rollout_length) else "rollout"

    def _holds_episodes(self, limit: int | None, rollout_length: int) -> bool:
        """Returns True if a training sequence holds any episode."""
        return self.burn_in == 0 and limit is not None and limit <= (self.sequence_length or rollout_length)

    def skipped_timesteps(self, team: TeamSpec, rollout_length: int) -> tuple[str, ...]:
        """Returns lines for the user on timesteps that are never learned from."""
        if not self.recurrent:
            return ()
        learned, limit, lines = self.sequence_length or rollout_length, team.episode_limit, []
        if self.sequences_start(team, rollout_length) == "rollout":
            if learned < rollout_length:
                lines.append(
                    f"algo.sequence_length={learned}: sequences start with rollouts of {rollout_length} timesteps, and "
                    f"only the first {learned} are learned from. Omit it, or set algo.rollout_length={learned}."
                )
            return tuple(lines)
        if limit is not None and limit > learned:
            lines.append(
                f"algo.sequence_length={learned}: episodes have up to {limit} steps, and those after step {learned} "
                f"are never learned from. Set algo.sequence_length={limit} or algo.sequence_start=rollout."
            )
        if self.burn_in:
            lines.append(
                f"algo.burn_in={self.burn_in}: the first {self.burn_in} steps of each episode only warm up the hidden "
                f"state and are never learned from. Set algo.sequence_start=rollout, or omit algo.burn_in."
            )
        return tuple(lines)


def _gradient_steps(run: RunFacts) -> Derived:
    """Returns the gradient steps after each rollout."""
    per_step = MOST_STEPS if run.steps is None else min(MOST_STEPS, max(LEAST_STEPS, run.steps / GRADIENT_STEPS))
    reason = f"one per {per_step:.3g} steps of a rollout"
    if run.steps is not None:
        reason += f" in a run of {run.steps:,} steps"
    return Derived(max(1, round(run.rollout_steps / per_step)), reason)


def joint_network(network: NetworkConfig, critic: str) -> NetworkConfig:
    """Returns the architecture of a critic: if it is one of the whole team, its body reads all agents if it can.

    Args:
        network: Architecture of the critic.
        critic: The setting `algo.critic`.

    Raises:
        UserError: If the critic reads something else than the agents' observations, and its body needs these.
    """
    if critic == "own" or not network.reads_view:
        return network
    if critic in ("state", "global"):
        reads = "no agents" if critic == "state" else "agents of other teams"
        raise UserError(
            f"algo.critic={critic}: reads {reads}, and the critic's network reads all agents of its own team. Set "
            "algo.critic=joint or algo.critic_network=mlp."
        )
    return replace(network, joint=True)


def module_factory(name: str, setting: str) -> ModuleFactory:
    """Imports the user's factory of torch modules that a setting names. UserError if there is no such factory.

    It sees the team if it is a class whose `forward` has a parameter `alive`, or has an attribute `sees_team` that is
    True.
    """
    make = user_code.module_factory(name, setting)
    target = getattr(make, "func", make)  # of a partial function
    sees_team = getattr(target, "sees_team", None)
    if sees_team is None:
        sees_team = (
            inspect.isclass(target) and "alive" in inspect.signature(getattr(target, "forward", target)).parameters
        )
    return ModuleFactory(name, setting, make, bool(sees_team))

"""Settings of reward signals. Loading them imports no heavy package, because every configuration includes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coterie.config.imitation import DemosPath
from coterie.config.needs import Needs

Units = Annotated[int, Field(ge=1, le=100_000)]
"""Number of units in a layer."""


class StreamConfig(BaseModel):
    """Weight and discount of a reward stream."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    weight: float = Field(default=1.0, ge=0, le=10**6)
    """Initial weight in the sum of rewards; 0 computes and logs the reward without training on it."""
    weight_schedule: Annotated[Literal["constant", "linear"], Needs("weight!=0")] = "constant"
    """Schedule of the weight, from `weight` to `weight_end` times `weight` over the run."""
    weight_end: Annotated[float, Needs("weight_schedule!=constant")] = Field(default=0.0, ge=0, le=1)
    """Final weight as a fraction of the initial one."""
    gamma: float | None = Field(default=None, ge=0, le=1)
    """Discount factor per step. A different one requires an algorithm with a value estimate per reward. Default: the
    algorithm's.
    """


class SignalConfig(StreamConfig):
    """Settings shared by all reward signals."""

    episodic: bool = False
    """End returns at the end of an episode or when an agent dies. If false, returns continue into the next episode, so
    that agents have no reason to avoid its end. Algorithms without a value estimate per reward always end returns.
    """
    normalize: bool = False
    """Divide the reward by the running standard deviation of its discounted returns."""


class TrainedConfig(SignalConfig):
    """Settings of reward signals that train networks."""

    lr: float = Field(default=1e-3, gt=0, lt=1)
    """Adam's learning rate."""
    epochs: int = Field(default=1, ge=1, le=1000)
    """Passes over a rollout per update."""
    num_minibatches: int = Field(default=4, ge=1, le=10_000)
    """Minibatches per epoch, each one gradient step."""
    max_grad_norm: float | None = Field(default=10.0, gt=0, le=10**12)
    """Maximum gradient norm; null: no clipping."""
    hidden_sizes: tuple[Units, ...] = Field(default=(64, 64), min_length=1)
    """Units of the hidden layers of each network."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """Activation after each hidden layer."""
    share_params: Literal["role", "all", "none"] = "role"
    """Agents that share parameters: those of a role (role), all agents of the team (all), or none."""
    normalize_obs: bool = True
    """Normalize vector observations by their running mean and standard deviation, and clip them to [-5, 5]."""


class LearnedConfig(TrainedConfig):
    """Settings of reward signals whose networks compute features of observations."""

    features: Units = 32
    """Number of features per observation."""


class ExtrinsicConfig(StreamConfig):
    """Settings of the environment's reward."""


class IcmConfig(LearnedConfig):
    """Settings of the intrinsic curiosity module, see `coterie.rewards.icm`."""

    weight: float = Field(default=0.02, ge=0, le=10**6)
    """Initial weight in the sum of rewards; 0 computes and logs the reward without training on it."""
    num_minibatches: int = Field(default=16, ge=1, le=10_000)
    """Minibatches per epoch, each one gradient step."""
    eta: float = Field(default=1.0, gt=0, le=10**6)
    """Factor of the forward model's error in the reward."""
    beta: float = Field(default=0.2, ge=0, le=1)
    """Weight of the forward model's loss; that of the inverse model is 1 - beta."""


class RndConfig(LearnedConfig):
    """Settings of random network distillation, see `coterie.rewards.rnd`."""

    weight: float = Field(default=0.5, ge=0, le=10**6)
    """Initial weight in the sum of rewards; 0 computes and logs the reward without training on it."""
    num_minibatches: int = Field(default=16, ge=1, le=10_000)
    """Minibatches per epoch, each one gradient step."""
    normalize: bool = True
    """Divide the reward by the running standard deviation of its discounted returns."""


class GailConfig(TrainedConfig):
    """Settings of generative adversarial imitation learning, see `coterie.rewards.gail`."""

    demos: DemosPath | None = None
    """File of demonstrations (coterie record)."""
    epochs: int = Field(default=2, ge=1, le=1000)
    """Passes over a rollout per update."""
    reward: Literal["positive", "negative", "bounded"] = "positive"
    """Reward as a function of D, the probability of being demonstrated: positive is -log(1 - D), which favors long
    episodes; negative is log D, which favors short episodes; bounded is 2 D - 1.
    """
    actions: bool = True
    """Input actions to the discriminator in addition to observations."""
    penalty: float = Field(default=1.0, ge=0, le=10**6)
    """Weight of the gradient penalty, which keeps the norm of the discriminator's gradient close to 1; 0: no penalty.
    """


class RewardsConfig(BaseModel):
    """Rewards of a team. Signals are off unless they are configured."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    extrinsic: ExtrinsicConfig = ExtrinsicConfig()
    """The environment's reward."""
    icm: IcmConfig | None = None
    """Curiosity: the error in predicting the outcome of an action. Enabled by setting any of its keys, or by {} for
    defaults.
    """
    rnd: RndConfig | None = None
    """Novelty: the error in predicting the output of a random network. Enabled by setting any of its keys, or by {} for
    defaults.
    """
    gail: GailConfig | None = None
    """Imitation: similarity to demonstrations. Enabled by setting any of its keys; requires `demos`."""

    @property
    def signals(self) -> dict[str, SignalConfig]:
        """The enabled signals by name."""
        return {name: value for name, value in self if isinstance(value, SignalConfig)}

    @property
    def is_extrinsic_only(self) -> bool:
        """True if the environment's reward is the only one and is not changed."""
        return not self.signals and self.extrinsic == ExtrinsicConfig()

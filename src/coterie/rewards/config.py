"""Settings of reward signals. They import nothing heavy: every run's configuration has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coterie.imitation.config import DemosPath

Units = Annotated[int, Field(ge=1, le=100_000)]


class StreamConfig(BaseModel):
    """How a reward counts among others."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    strength: float = Field(default=1.0, ge=0)
    """Weight among the rewards, at the start; 0 computes and logs without rewarding."""
    strength_schedule: Literal["constant", "linear"] = "constant"
    """How the weight goes from the start to `strength_end` times its value."""
    strength_end: float = Field(default=0.0, ge=0, le=1)
    """Share of the weight left at the end of its schedule."""
    gamma: float | None = Field(default=None, ge=0, le=1)
    """Discount a step; the algorithm's if not given. Another one wants an algorithm with a value for each reward."""


class SignalConfig(StreamConfig):
    """Settings that reward signals share."""

    episodic: bool = False
    """Its returns end with episodes and lives; else they go on into the next, so that an end is nothing to fear. Only
    where the algorithm has a value for each reward; in others all returns end so.
    """
    normalise: bool = False
    """It is divided by the running spread of its discounted returns."""


class TrainedConfig(SignalConfig):
    """Settings of signals that have networks of their own."""

    lr: float = Field(default=1e-3, gt=0, lt=1)
    """Adam's learning rate."""
    epochs: int = Field(default=1, ge=1, le=1000)
    """Passes over a window."""
    minibatches: int = Field(default=4, ge=1, le=10_000)
    """Parts of a window, each one step of the optimiser."""
    max_grad_norm: float | None = Field(default=10.0, gt=0)
    """Norm to which gradients are clipped; null: no clip."""
    hidden: tuple[Units, ...] = Field(default=(64, 64), min_length=1)
    """Units of the hidden layers of each network."""
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = "relu"
    """What stands behind every hidden layer."""
    share: Literal["role", "all", "none"] = "role"
    """Whose networks these are: a role's agents', all the team's, or each agent's own."""
    normalise_obs: bool = True
    """Observations that are vectors are shifted and scaled by their running mean and spread and clipped to [-5, 5]."""


class LearnedConfig(TrainedConfig):
    """Settings of signals whose networks make features of observations."""

    features: Units = 32
    """Numbers that an observation is made into."""


class ExtrinsicConfig(StreamConfig):
    """Settings of what the environment pays."""


class IcmConfig(LearnedConfig):
    """Settings of the intrinsic curiosity module: see `coterie.rewards.icm`."""

    strength: float = Field(default=0.02, ge=0)
    """Weight among the rewards, at the start; 0 computes and logs without rewarding."""
    minibatches: int = Field(default=16, ge=1, le=10_000)
    """Parts of a window, each one step of the optimiser."""
    eta: float = Field(default=1.0, gt=0)
    """Factor of the forward model's error, from which the reward is made."""
    beta: float = Field(default=0.2, ge=0, le=1)
    """Weight of the forward model's loss; what is left to 1 is the inverse model's."""


class RndConfig(LearnedConfig):
    """Settings of random network distillation: see `coterie.rewards.rnd`."""

    strength: float = Field(default=0.5, ge=0)
    """Weight among the rewards, at the start; 0 computes and logs without rewarding."""
    minibatches: int = Field(default=16, ge=1, le=10_000)
    """Parts of a window, each one step of the optimiser."""
    normalise: bool = True
    """It is divided by the running spread of its discounted returns."""


class GailConfig(TrainedConfig):
    """Settings of generative adversarial imitation learning: see `coterie.rewards.gail`."""

    demos: DemosPath | None = None
    """File of demonstrations (coterie record)."""
    epochs: int = Field(default=2, ge=1, le=1000)
    """Passes over a window."""
    reward: Literal["positive", "negative", "bounded"] = "positive"
    """Of the probability D of being demonstrated: -log(1 - D), with which to go on never costs; log D, with which every
    step costs; or 2 D - 1.
    """
    actions: bool = True
    """The discriminator reads what is done beside what is seen."""
    penalty: float = Field(default=1.0, ge=0)
    """Weight of the gradient penalty, which keeps the discriminator's slope near 1; 0: none."""


class RewardsConfig(BaseModel):
    """What a team is rewarded for. A signal that is not named is off."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    extrinsic: ExtrinsicConfig = ExtrinsicConfig()
    """What the environment pays."""
    icm: IcmConfig | None = None
    """Curiosity: the error in telling what an action leads to; on where any of its keys is given, {} for defaults."""
    rnd: RndConfig | None = None
    """Novelty: the error in telling what a random network says; on where any of its keys is given, {} for defaults."""

    gail: GailConfig | None = None
    """Imitation: likeness to demonstrations; on where any of its keys is given, wants `demos`."""

    @property
    def signals(self) -> dict[str, SignalConfig]:
        """The signals that are on, by name."""
        return {name: value for name, value in self if isinstance(value, SignalConfig)}

    @property
    def plain(self) -> bool:
        """Whether the environment's reward is all there is, as it is."""
        return not self.signals and self.extrinsic == ExtrinsicConfig()

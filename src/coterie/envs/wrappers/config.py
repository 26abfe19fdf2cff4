"""The keys `env.wrappers.*`, which every outside environment has."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class WrappersConfig(BaseModel):
    """What is changed about an environment, in the order in which it is applied, from the environment outwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sticky_actions: float = Field(default=0.0, ge=0, lt=1)
    """Probability that an agent does once more what it did in the environment's step before, whatever was chosen."""
    action_repeat: int = Field(default=1, ge=1)
    """Steps of the environment that a choice lasts. Rewards add up; it ends early when an agent or the episode does."""
    grey: bool = False
    """Whether coloured pictures become grey: one channel of their brightness."""
    resize: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=2)] | None = None
    """Height and width that pictures are brought to, each new pixel the mean of those it covers; null leaves them."""
    frame_stack: int = Field(default=1, ge=1)
    """Latest observations shown side by side, the oldest first: features of numbers, channels of pictures. A life's
    first observation stands for those before it."""
    reward_scale: float = Field(default=1.0, gt=0)
    """What rewards are multiplied with while training; evaluations count them as the environment pays them."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Largest size of a reward, behind its scale, while training; null leaves them."""

    def unshaped(self) -> WrappersConfig:
        """The same, with rewards as the environment pays them."""
        return self.model_copy(update={"reward_scale": 1.0, "reward_clip": None})


class HostedConfig(BaseModel):
    """Keys of every outside environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    training_only: ClassVar[tuple[str, ...]] = ()
    """Keys that change what agents are paid while training alone; elsewhere they are at their defaults."""

    wrappers: WrappersConfig = WrappersConfig()
    """What is changed about it."""

    def unshaped(self) -> HostedConfig:
        """The same, with rewards as the environment pays them."""
        own: dict[str, Any] = {key: type(self).model_fields[key].default for key in self.training_only}
        return self.model_copy(update={"wrappers": self.wrappers.unshaped(), **own})

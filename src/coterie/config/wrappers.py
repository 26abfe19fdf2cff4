"""Settings `env.wrappers.*` of external environments."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class WrappersConfig(BaseModel):
    """Wrappers of an environment, applied in the order of the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    sticky_actions: float = Field(default=0.0, ge=0, lt=1)
    """Probability that an agent repeats its action of the previous environment step instead of the chosen one."""
    action_repeat: int = Field(default=1, ge=1, le=1000)
    """Environment steps per action. Rewards are summed. Repetition stops when an agent or the episode ends."""
    channels_last: bool = False
    """Convert images from [channels, height, width] to [height, width, channels]. Images whose first axis is not the
    shortest one are unchanged.
    """
    grayscale: bool = False
    """Convert color images to one channel of brightness."""
    resize: Annotated[tuple[Annotated[int, Field(ge=1, le=10_000)], ...], Field(min_length=2, max_length=2)] | None = (
        None
    )
    """Height and width of images in pixels, resized by area averaging; null: not resized."""
    frame_stack: int = Field(default=1, ge=1, le=1000)
    """Number of latest observations that are concatenated, oldest first, along the features of vectors or the channels
    of images. An agent's first observation is repeated for missing ones.
    """
    reward_scale: float = Field(default=1.0, gt=0, le=10**12)
    """Factor of rewards in training. Evaluations use the environment's rewards."""
    reward_clip: float | None = Field(default=None, gt=0, le=10**12)
    """Maximum absolute reward in training, after scaling; null: no clipping."""

    def without_reward_shaping(self) -> WrappersConfig:
        """Returns the same wrappers with the environment's rewards."""
        return self.model_copy(update={"reward_scale": 1.0, "reward_clip": None})


class ExternalEnvConfig(BaseModel):
    """Settings shared by all external environments."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    training_only: ClassVar[tuple[str, ...]] = ()
    """Keys that change rewards in training only. Elsewhere they have their default values."""

    wrappers: WrappersConfig = WrappersConfig()
    """Wrappers."""

    def without_reward_shaping(self) -> ExternalEnvConfig:
        """Returns the same settings with the environment's rewards."""
        own: dict[str, Any] = {key: type(self).model_fields[key].default for key in self.training_only}
        return self.model_copy(update={"wrappers": self.wrappers.without_reward_shaping(), **own})

"""Settings of lessons. They import nothing heavy: every run's configuration has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_serializer,
    model_validator,
)

from coterie import messages
from coterie.envs.samplers import Sampler, sampler


def samplers(given: Any) -> dict[str, Sampler]:
    """Parameters by name as they were written. ValueError names the first that is none."""
    if not isinstance(given, Mapping):
        raise ValueError("expected parameters by name in braces, e.g. {speed: {uniform: [0.5, 1.5]}}")
    return {str(name): _named(name, value) for name, value in given.items()}


def _named(name: Any, given: Any) -> Sampler:
    try:
        return sampler(given)
    except ValueError as error:
        raise ValueError(f"the parameter '{name}': {error}") from error


Samplers = Annotated[dict[str, SerializeAsAny[Sampler]], BeforeValidator(samplers)]
"""Where parameters' values come from, by name; see `coterie.envs.samplers`."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class AdvanceConfig(_Strict):
    """When the next lesson begins: a metric has been past a threshold for long enough."""

    metric: str
    """A name of the log, e.g. `rollout/return_mean`, `steps`; or `progress`, the share of the run that is done."""
    above: float | None = None
    """The metric has to be above this."""
    below: float | None = None
    """The metric has to be below this."""
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Weight of the past in the mean that is compared: m <- smoothing m + (1 - smoothing) value."""
    window: int = Field(default=1, ge=1, le=10**6)
    """The mean of so many latest values is compared, once there are so many."""
    patience: int = Field(default=1, ge=1, le=10**6)
    """Values in a row at which the mean has to be past the threshold."""
    episodes: int = Field(default=0, ge=0, le=10**12)
    """Episodes that a lesson lasts at least."""

    @model_validator(mode="after")
    def _once(self) -> AdvanceConfig:
        if (self.above is None) == (self.below is None):
            raise ValueError("give either above or below, the threshold that the metric has to pass")
        if self.smoothing and self.window > 1:
            raise ValueError(f"smoothing={self.smoothing:g} and window={self.window} at once: keep one")
        return self

    def of(self, team: str) -> AdvanceConfig:
        """With the team's name where the metric says {team}."""
        return self.model_copy(update={"metric": self.metric.replace("{team}", team)})

    @model_serializer
    def _short(self) -> dict[str, Any]:
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in values if value != type(self).model_fields[name].default}


class LessonConfig(_Strict):
    """What the environment is like for a while."""

    name: str = Field(min_length=1)
    """What it is called in the log."""
    parameters: Samplers = Field(default_factory=dict)
    """The environment's parameters, each a value or a distribution; those that are not named stay as they were."""
    advance: AdvanceConfig | None = None
    """When it is over; the last lesson has none."""


def _lessons(given: Any) -> Any:
    """Lessons as they were written. ValueError names the lesson and what is wrong with it."""
    if not isinstance(given, list | tuple):
        raise ValueError("expected a list of lessons, each {name: ..., parameters: ..., advance: ...}")
    found: list[LessonConfig] = []
    for number, one in enumerate(given, 1):
        if isinstance(one, LessonConfig):
            found.append(one)
            continue
        if not isinstance(one, Mapping):
            raise ValueError(f"lesson {number} is {messages.show(one)}: expected {{name: ..., parameters: ...}}")
        called = f" ('{one['name']}')" if one.get("name") else ""
        try:
            found.append(LessonConfig.model_validate(one))
        except ValidationError as error:
            raise ValueError(f"lesson {number}{called}: {_mistake(error)}") from error
    for number, one in enumerate(found, 1):
        if (one.advance is None) != (number == len(found)):
            what = "the last, nothing comes after it: leave its advance out" if one.advance else "not the last: give it"
            raise ValueError(f"lesson {number} ('{one.name}') is {what}{'' if one.advance else ' an advance'}")
        if one.name in {other.name for other in found[: number - 1]}:
            raise ValueError(f"two lessons are called '{one.name}': give each a name of its own")
    return tuple(found)


def _mistake(error: ValidationError) -> str:
    """The first mistake in a lesson, in words."""
    fields = messages.leaf_fields(LessonConfig)
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        key = ".".join(str(part) for part in first["loc"])
        return f"there is no '{key}': {messages.nearest_keys(key, fields)}"
    return messages.mistakes(error, fields)[0][1]


class CurriculumConfig(_Strict):
    """Lessons that follow each other."""

    lessons: Annotated[tuple[LessonConfig, ...], BeforeValidator(_lessons)] = ()
    """What the environment is like, one lesson after the other; none: as `env` and `randomise` say."""
    evaluate: Literal["present", "last"] = "present"
    """On which lesson evaluations are made."""

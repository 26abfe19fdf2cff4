"""Settings of a curriculum. Loading them imports no heavy package, because every configuration includes them."""

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

from coterie.config import messages
from coterie.config.needs import Needs
from coterie.config.samplers import Sampler, parse_sampler


def parse_samplers(given: Any) -> dict[str, Sampler]:
    """Returns the samplers of parameters by name.

    Raises:
        ValueError: Names the first parameter that is not valid.
    """
    if not isinstance(given, Mapping):
        raise ValueError("expected parameters by name in braces, e.g. {speed: {uniform: [0.5, 1.5]}}")
    return {str(name): _parse_parameter(name, value) for name, value in given.items()}


def _parse_parameter(name: Any, given: Any) -> Sampler:
    try:
        return parse_sampler(given)
    except ValueError as error:
        raise ValueError(f"parameter '{name}': {error}") from error


Samplers = Annotated[dict[str, SerializeAsAny[Sampler]], BeforeValidator(parse_samplers)]
"""Samplers of parameters by name; see `coterie.config.samplers`."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class AdvanceConfig(_Strict):
    """Condition to advance to the next lesson or phase: a metric is past a threshold."""

    metric: str
    """Name of a logged metric, e.g. `rollout/return_mean` or `steps`; or `progress`, the fraction of the run that is
    complete.
    """
    above: float | None = None
    """Threshold that the metric must exceed."""
    below: float | None = None
    """Threshold that the metric must be less than."""
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Weight of earlier values in an exponential moving average m <- smoothing m + (1 - smoothing) value, which is
    compared with the threshold.
    """
    window: int = Field(default=1, ge=1, le=10**6)
    """Number of latest values whose mean is compared with the threshold, once that many are available."""
    patience: int = Field(default=1, ge=1, le=10**6)
    """Consecutive values at which the mean must be past the threshold."""
    episodes: int = Field(default=0, ge=0, le=10**12)
    """Minimum number of episodes in a lesson."""

    @model_validator(mode="after")
    def _check_exclusive(self) -> AdvanceConfig:
        if (self.above is None) == (self.below is None):
            raise ValueError("give either above or below, the threshold of the metric")
        if self.smoothing and self.window > 1:
            raise ValueError(f"smoothing={self.smoothing:g} and window={self.window} exclude each other; keep one")
        return self

    def for_team(self, team: str) -> AdvanceConfig:
        """Returns the condition with {team} in the metric's name replaced by the name of a team."""
        return self.model_copy(update={"metric": self.metric.replace("{team}", team)})

    @model_serializer
    def _without_defaults(self) -> dict[str, Any]:
        return {name: value for name, value in self if value != type(self).model_fields[name].default}


class LessonConfig(_Strict):
    """A lesson: parameters of the environment for part of the run."""

    name: str = Field(min_length=1)
    """Name of the lesson in the log."""
    parameters: Samplers = Field(default_factory=dict)
    """Parameters of the environment, each a value or a distribution. Others keep their values of earlier lessons."""
    advance: AdvanceConfig | None = None
    """Condition that ends the lesson. The last lesson has none."""


def _parse_lessons(given: Any) -> Any:
    """Returns the lessons. Raises a ValueError that names the lesson and the mistake."""
    if not isinstance(given, list | tuple):
        raise ValueError("expected a list of lessons, each {name: ..., parameters: ..., advance: ...}")
    lessons = tuple(_parse_lesson(number, lesson) for number, lesson in enumerate(given, 1))
    for number, lesson in enumerate(lessons, 1):
        where, is_last = f"lesson {number} ('{lesson.name}')", number == len(lessons)
        if is_last and lesson.advance is not None:
            raise ValueError(f"{where} is the last and cannot advance. Remove its advance")
        if not is_last and lesson.advance is None:
            raise ValueError(f"{where} is not the last. Give it an advance")
        if lesson.name in {other.name for other in lessons[: number - 1]}:
            raise ValueError(f"two lessons have the name '{lesson.name}'. Rename one")
    return lessons


def _parse_lesson(number: int, given: Any) -> LessonConfig:
    if isinstance(given, LessonConfig):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"lesson {number} is {messages.show(given)}: expected {{name: ..., parameters: ...}}")
    name = f" ('{given['name']}')" if given.get("name") else ""
    try:
        return LessonConfig.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"lesson {number}{name}: {_first_mistake(error)}") from error


def _first_mistake(error: ValidationError) -> str:
    """Returns the message of the first mistake in a lesson."""
    fields = messages.leaf_fields(LessonConfig)
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        key = ".".join(str(part) for part in first["loc"])
        return f"there is no '{key}'. {messages.nearest_keys(key, fields)}"
    return messages.mistakes(error, fields)[0][1]


class CurriculumConfig(_Strict):
    """A sequence of lessons."""

    lessons: Annotated[tuple[LessonConfig, ...], BeforeValidator(_parse_lessons)] = ()
    """Lessons in order. Without lessons the parameters are those of `env` and `randomize`."""
    evaluate: Annotated[Literal["current", "last"], Needs("lessons!=null")] = "current"
    """Lesson that evaluations use."""

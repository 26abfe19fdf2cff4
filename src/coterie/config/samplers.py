"""Distributions from which the parameters of an environment are sampled per episode.

Samplers are plain data and import PyTorch only to sample, so that commands start fast. A sampler is written as a value
or as a mapping that names a distribution:

    0.5                                      constant
    {uniform: [0.5, 1.5]}                    uniform between low and high
    {log_uniform: [0.01, 1]}                 log-uniform between low and high
    {integers: [2, 5]}                       uniform over integers, both bounds included
    {normal: [1, 0.2], low: 0.5, high: 1.5}  normal with mean and standard deviation, clipped to [low, high]
    {choices: [a, b, c], weights: [1, 1, 2]} one of several values, by default with equal probability
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_serializer,
    model_validator,
)

from coterie.config.messages import first_mistake
from coterie.core.errors import nearest

if TYPE_CHECKING:
    from torch import Tensor

Value = bool | int | float | str
"""Value of a parameter: a number, or text if the environment supports it."""

Pair = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]


class Sampler(BaseModel):
    """Base class of distributions of a parameter."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @abstractmethod
    def draw(self, noise: Tensor) -> Tensor:
        """Maps uniform noise to numbers.

        Args:
            noise: Uniform random numbers in [0, 1), of any shape.

        Returns:
            Samples of the same shape and dtype.

        Raises:
            ValueError: If values are text.
        """

    @abstractmethod
    def draw_one(self, noise: float) -> Value:
        """Returns the value for one uniform random number in [0, 1)."""

    @abstractmethod
    def within(self, low: float, high: float) -> Sampler:
        """Returns the sampler for a parameter with a range.

        Args:
            low: Minimum of the parameter.
            high: Maximum of the parameter.

        Raises:
            ValueError: If values can be outside of the range.
        """

    @abstractmethod
    def mean(self) -> float | None:
        """Returns the mean of the values; None if they are text."""


def _draw_number(sampler: Sampler, noise: float) -> float:
    import torch

    return float(sampler.draw(torch.tensor(noise, dtype=torch.float64)))


def _check_range(low: float, high: float, *values: float) -> None:
    """Raises a ValueError for the first value that is not in [low, high]."""
    for value in values:
        if not low <= value <= high:
            raise ValueError(f"{value:g} is not between {low:g} and {high:g}")


@final
class Constant(Sampler):
    """Constant value."""

    value: Value

    def draw(self, noise: Tensor) -> Tensor:
        import torch

        return torch.full_like(noise, _numeric(self.value))

    def draw_one(self, noise: float) -> Value:
        return self.value

    def within(self, low: float, high: float) -> Sampler:
        _check_range(low, high, _numeric(self.value))
        return self

    def mean(self) -> float | None:
        return None if isinstance(self.value, str) else float(self.value)

    @model_serializer
    def _serialize(self) -> Value:
        return self.value


@final
class Uniform(Sampler):
    """Uniform distribution between two numbers."""

    uniform: Pair

    @model_validator(mode="after")
    def _check_bounds(self) -> Uniform:
        _check_ascending(self.uniform)
        return self

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.functional import inverse_transform

        return inverse_transform.uniform(noise, *self.uniform)

    def draw_one(self, noise: float) -> Value:
        return _draw_number(self, noise)

    def within(self, low: float, high: float) -> Sampler:
        _check_range(low, high, *self.uniform)
        return self

    def mean(self) -> float:
        return sum(self.uniform) / 2


@final
class LogUniform(Sampler):
    """Log-uniform distribution between two positive numbers."""

    log_uniform: Pair

    @model_validator(mode="after")
    def _check_bounds(self) -> LogUniform:
        _check_ascending(self.log_uniform)
        if self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform begins at {self.log_uniform[0]:g}: expected a number greater than 0")
        return self

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.functional import inverse_transform

        return inverse_transform.log_uniform(noise, *self.log_uniform)

    def draw_one(self, noise: float) -> Value:
        return _draw_number(self, noise)

    def within(self, low: float, high: float) -> Sampler:
        _check_range(low, high, *self.log_uniform)
        return self

    def mean(self) -> float:
        low, high = self.log_uniform
        return low if low == high else (high - low) / math.log(high / low)


@final
class Integers(Sampler):
    """Uniform distribution over integers between two bounds, both included."""

    integers: Annotated[tuple[int, ...], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _check_bounds(self) -> Integers:
        _check_ascending(self.integers)
        return self

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.functional import inverse_transform

        return inverse_transform.integers(noise, *self.integers)

    def draw_one(self, noise: float) -> Value:
        return int(_draw_number(self, noise))

    def within(self, low: float, high: float) -> Sampler:
        _check_range(low, high, *self.integers)
        return self

    def mean(self) -> float:
        return sum(self.integers) / 2


@final
class Normal(Sampler):
    """Normal distribution with a mean and standard deviation, clipped to [low, high]."""

    normal: Pair
    low: float | None = None
    """Default: the minimum of the parameter."""
    high: float | None = None
    """Default: the maximum of the parameter."""

    @model_validator(mode="after")
    def _check_std(self) -> Normal:
        if self.normal[1] < 0:
            raise ValueError(f"normal has the standard deviation {self.normal[1]:g}: expected at least 0")
        _check_ascending(self._bounds())
        return self

    def _bounds(self) -> tuple[float, float]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.functional import inverse_transform

        (mean, std), (low, high) = self.normal, self._bounds()
        return inverse_transform.clipped_normal(noise, mean=mean, std=std, low=low, high=high)

    def draw_one(self, noise: float) -> Value:
        return _draw_number(self, noise)

    def within(self, low: float, high: float) -> Sampler:
        _check_range(low, high, *(bound for bound in (self.low, self.high) if bound is not None))
        bounds = {"low": low if self.low is None else self.low, "high": high if self.high is None else self.high}
        return self.model_copy(update={name: bound for name, bound in bounds.items() if math.isfinite(bound)})

    def mean(self) -> float:
        from coterie.functional.inverse_transform import clipped_normal_mean

        (mean, std), (low, high) = self.normal, self._bounds()
        return clipped_normal_mean(mean, std, low, high)

    @model_serializer
    def _serialize(self) -> dict[str, Any]:
        bounds = {"low": self.low, "high": self.high}
        return {"normal": list(self.normal)} | {name: bound for name, bound in bounds.items() if bound is not None}


@final
class Choices(Sampler):
    """One of several values."""

    choices: Annotated[tuple[Value, ...], Field(min_length=1)]
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """Relative probability of each choice. Default: equal."""

    @model_validator(mode="after")
    def _check_weights(self) -> Choices:
        if self.weights is not None and len(self.weights) != len(self.choices):
            raise ValueError(
                f"{len(self.weights)} weights for {len(self.choices)} choices: expected {len(self.choices)}"
            )
        if self.weights is not None and sum(self.weights) <= 0:
            raise ValueError("all weights are 0: expected at least one greater than 0")
        return self

    def _weights(self) -> tuple[float, ...]:
        return self.weights or (1.0,) * len(self.choices)

    def _indices(self, noise: Tensor) -> Tensor:
        from coterie.core.device_constants import constant
        from coterie.functional import inverse_transform

        return inverse_transform.choice(noise, constant(self._weights(), noise.device, noise.dtype))

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.core.device_constants import constant

        values = constant(tuple(_numeric(value) for value in self.choices), noise.device, noise.dtype)
        return values[self._indices(noise)]

    def draw_one(self, noise: float) -> Value:
        import torch

        return self.choices[int(self._indices(torch.tensor(noise, dtype=torch.float64)))]

    def within(self, low: float, high: float) -> Sampler:
        _check_range(low, high, *map(_numeric, self.choices))
        return self

    def mean(self) -> float | None:
        if any(isinstance(value, str) for value in self.choices):
            return None
        weights = self._weights()
        return sum(w * float(value) for w, value in zip(weights, self.choices, strict=True)) / sum(weights)

    @model_serializer
    def _serialize(self) -> dict[str, Any]:
        return {"choices": list(self.choices)} | ({} if self.weights is None else {"weights": list(self.weights)})


_KINDS: dict[str, type[Sampler]] = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "integers": Integers,
    "normal": Normal,
    "choices": Choices,
}
"""Class of each distribution by name."""


def parse_sampler(given: Any) -> Sampler:
    """Returns the sampler for a value or mapping, see the module.

    Raises:
        ValueError: If it is not valid. The message is one line.
    """
    if isinstance(given, Sampler):
        return given
    if isinstance(given, bool | int | float | str):
        if isinstance(given, float) and not math.isfinite(given):
            raise ValueError(f"{given} is not finite: expected a number")
        return Constant(value=given)
    if not isinstance(given, dict):
        kind = "null" if given is None else f"a {type(given).__name__}"
        raise ValueError(f"{kind} is not supported: expected a value, or one of {', '.join(_KINDS)} in braces")
    named = [name for name in _KINDS if name in given]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} exclude each other; keep one")
    if not named:
        kind = next(iter(given), "{}")
        raise ValueError(f"there is no distribution '{kind}'. {nearest(str(kind), _KINDS)}")
    try:
        return _KINDS[named[0]].model_validate(given)
    except ValidationError as error:
        raise ValueError(_one_line(named[0], error)) from error


def _one_line(kind: str, error: ValidationError) -> str:
    """Returns the message of the first mistake in a distribution."""
    first = error.errors()[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "value_error":
        return message
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{kind} has no '{place}'. {nearest(place, _KINDS[kind].model_fields)}"
    if first["type"] in {"too_short", "too_long"} or first["loc"] == (kind,):
        form = {"normal": "mean and standard deviation", "choices": "a list of values"}.get(kind, "low and high")
        return f"{kind} takes {form} in brackets"
    return f"{kind}: {first_mistake(error)}"


def _check_ascending(bounds: tuple[float, ...]) -> None:
    if bounds[0] > bounds[1]:
        raise ValueError(f"the lower bound {bounds[0]:g} is greater than the upper bound {bounds[1]:g}; swap them")


def _numeric(value: Value) -> float:
    if isinstance(value, str):
        raise ValueError(f"'{value}' is not a number")
    return float(value)

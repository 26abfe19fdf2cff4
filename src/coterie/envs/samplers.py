"""How a parameter of an environment is drawn for an episode: data only, so that starting a command loads no tensors.

A sampler is written as a value, or as a mapping that names a distribution:

    0.5                                      always this
    {uniform: [0.5, 1.5]}                    any number between
    {log_uniform: [0.01, 1]}                 the same of the logarithm
    {integers: [2, 5]}                       whole numbers, both ends included
    {normal: [1, 0.2], low: 0.5, high: 1.5}  mean and standard deviation, moved to the nearer end where it is outside
    {choices: [a, b, c], weights: [1, 1, 2]} one of these, by default each as likely
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, final

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

from coterie.errors import nearest

if TYPE_CHECKING:
    from torch import Tensor

Value = bool | int | float | str
"""What a parameter can be: a number, or a word where the environment takes words."""

Pair = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]


class Sampler(BaseModel):
    """Where a parameter's values come from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @abstractmethod
    def draw(self, noise: Tensor) -> Tensor:
        """Numbers from uniform noise in [0, 1), of its shape and dtype. ValueError where values are words."""

    @abstractmethod
    def pick(self, noise: float) -> Value:
        """One value from one such number."""

    @abstractmethod
    def within(self, low: float, high: float) -> Sampler:
        """The same for a parameter that goes from low to high. ValueError, with what is wrong, if it draws others."""

    @abstractmethod
    def mean(self) -> float | None:
        """The mean of its values; None where they are words."""


def _number(sampler: Sampler, noise: float) -> float:
    import torch

    return float(sampler.draw(torch.tensor(noise, dtype=torch.float64)))


def _inside(low: float, high: float, *reached: float) -> None:
    """ValueError for the first of `reached` that is not in [low, high]."""
    for value in reached:
        if not low <= value <= high:
            raise ValueError(f"{value:g} is not within {low:g} to {high:g}")


@final
class Constant(Sampler):
    """Always the same."""

    value: Value

    def draw(self, noise: Tensor) -> Tensor:
        import torch

        return torch.full_like(noise, _numeric(self.value))

    def pick(self, noise: float) -> Value:
        return self.value

    def within(self, low: float, high: float) -> Sampler:
        _inside(low, high, _numeric(self.value))
        return self

    def mean(self) -> float | None:
        return None if isinstance(self.value, str) else float(self.value)

    @model_serializer
    def _plain(self) -> Value:
        return self.value


@final
class Uniform(Sampler):
    """Any number between the two."""

    uniform: Pair

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        _ascending(self.uniform)
        return self

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.math import draws

        return draws.uniform(noise, *self.uniform)

    def pick(self, noise: float) -> Value:
        return _number(self, noise)

    def within(self, low: float, high: float) -> Sampler:
        _inside(low, high, *self.uniform)
        return self

    def mean(self) -> float:
        return sum(self.uniform) / 2


@final
class LogUniform(Sampler):
    """Any number between the two, its logarithm as likely as any other."""

    log_uniform: Pair

    @model_validator(mode="after")
    def _ordered(self) -> LogUniform:
        _ascending(self.log_uniform)
        if self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform begins at {self.log_uniform[0]:g}: expected a number above 0")
        return self

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.math import draws

        return draws.log_uniform(noise, *self.log_uniform)

    def pick(self, noise: float) -> Value:
        return _number(self, noise)

    def within(self, low: float, high: float) -> Sampler:
        _inside(low, high, *self.log_uniform)
        return self

    def mean(self) -> float:
        low, high = self.log_uniform
        return low if low == high else (high - low) / math.log(high / low)


@final
class Integers(Sampler):
    """Whole numbers from the first to the second, both included."""

    integers: Annotated[tuple[int, ...], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _ordered(self) -> Integers:
        _ascending(self.integers)
        return self

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.math import draws

        return draws.integers(noise, *self.integers)

    def pick(self, noise: float) -> Value:
        return int(_number(self, noise))

    def within(self, low: float, high: float) -> Sampler:
        _inside(low, high, *self.integers)
        return self

    def mean(self) -> float:
        return sum(self.integers) / 2


@final
class Normal(Sampler):
    """Mean and standard deviation; what falls outside of [low, high] is moved to its nearer end."""

    normal: Pair
    low: float | None = None
    """By default the least that the parameter can be."""
    high: float | None = None
    """By default the most that the parameter can be."""

    @model_validator(mode="after")
    def _wide(self) -> Normal:
        if self.normal[1] < 0:
            raise ValueError(f"normal has the standard deviation {self.normal[1]:g}: expected at least 0")
        _ascending(self._ends())
        return self

    def _ends(self) -> tuple[float, float]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def draw(self, noise: Tensor) -> Tensor:
        from coterie.math import draws

        (mean, std), (low, high) = self.normal, self._ends()
        return draws.clipped_normal(noise, mean, std, low, high)

    def pick(self, noise: float) -> Value:
        return _number(self, noise)

    def within(self, low: float, high: float) -> Sampler:
        _inside(low, high, *(end for end in (self.low, self.high) if end is not None))
        ends = {"low": low, "high": high}
        mine = {name: end for name in ends if (end := getattr(self, name)) is not None}
        return self.model_copy(update={name: end for name, end in (ends | mine).items() if math.isfinite(end)})

    def mean(self) -> float:
        from coterie.math.draws import clipped_normal_mean

        (mean, std), (low, high) = self.normal, self._ends()
        return clipped_normal_mean(mean, std, low, high)

    @model_serializer
    def _plain(self) -> dict[str, Any]:
        ends = {name: end for name in ("low", "high") if (end := getattr(self, name)) is not None}
        return {"normal": list(self.normal), **ends}


@final
class Choices(Sampler):
    """One of several values."""

    choices: Annotated[tuple[Value, ...], Field(min_length=1)]
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """How likely each is, beside the others; by default all alike."""

    @model_validator(mode="after")
    def _weighed(self) -> Choices:
        if self.weights is not None and len(self.weights) != len(self.choices):
            raise ValueError(f"{len(self.weights)} weights for {len(self.choices)} choices: expected as many")
        if self.weights is not None and sum(self.weights) <= 0:
            raise ValueError("all weights are 0: expected one above")
        return self

    def _weights(self) -> tuple[float, ...]:
        return self.weights or (1.0,) * len(self.choices)

    def _places(self, noise: Tensor) -> Tensor:
        import torch

        from coterie.math import draws

        return draws.choice(noise, torch.tensor(self._weights(), dtype=noise.dtype, device=noise.device))

    def draw(self, noise: Tensor) -> Tensor:
        import torch

        values = torch.tensor([_numeric(value) for value in self.choices], dtype=noise.dtype, device=noise.device)
        return values[self._places(noise)]

    def pick(self, noise: float) -> Value:
        import torch

        return self.choices[int(self._places(torch.tensor(noise, dtype=torch.float64)))]

    def within(self, low: float, high: float) -> Sampler:
        _inside(low, high, *map(_numeric, self.choices))
        return self

    def mean(self) -> float | None:
        if any(isinstance(value, str) for value in self.choices):
            return None
        weights = self._weights()
        return sum(w * float(value) for w, value in zip(weights, self.choices, strict=True)) / sum(weights)

    @model_serializer
    def _plain(self) -> dict[str, Any]:
        return {"choices": list(self.choices)} | ({} if self.weights is None else {"weights": list(self.weights)})


_KINDS: dict[str, type[Sampler]] = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "integers": Integers,
    "normal": Normal,
    "choices": Choices,
}
"""By the key that names the distribution."""


def sampler(given: Any) -> Sampler:
    """The sampler that was written, see the module. ValueError, with what is wrong in one line, if it is none."""
    if isinstance(given, Sampler):
        return given
    if isinstance(given, bool | int | float | str):
        if isinstance(given, float) and not math.isfinite(given):
            raise ValueError(f"{given} is not finite: expected a number")
        return Constant(value=given)
    if not isinstance(given, dict):
        said = "null" if given is None else f"a {type(given).__name__}"
        raise ValueError(f"{said} is no parameter: expected a value, or one of {', '.join(_KINDS)} in braces")
    named = [name for name in _KINDS if name in given]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} at once: keep one")
    if not named:
        kind = next(iter(given), "{}")
        raise ValueError(f"there is no distribution '{kind}': {nearest(str(kind), _KINDS)}")
    try:
        return _KINDS[named[0]].model_validate(given)
    except ValidationError as error:
        raise ValueError(_one_line(named[0], error)) from error


def _one_line(kind: str, error: ValidationError) -> str:
    """The first mistake of a distribution in words."""
    first = error.errors()[0]
    said = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "value_error":
        return said
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{kind} has no '{place}': {nearest(place, _KINDS[kind].model_fields)}"
    if first["type"] in {"too_short", "too_long"} or first["loc"] == (kind,):
        form = {"normal": "mean and standard deviation", "choices": "a list of values"}.get(kind, "low and high")
        return f"{kind} takes {form} in brackets"
    return f"{kind}: {place}: {said[:1].lower()}{said[1:]}"


def _ascending(ends: tuple[float, ...]) -> None:
    if ends[0] > ends[1]:
        raise ValueError(f"the low end {ends[0]:g} is above the high end {ends[1]:g}: exchange them")


def _numeric(value: Value) -> float:
    if isinstance(value, str):
        raise ValueError(f"'{value}' is no number")
    return float(value)


AnySampler = Annotated[SerializeAsAny[Sampler], BeforeValidator(sampler)]
"""A sampler as a field of a configuration, in whatever form it is written."""

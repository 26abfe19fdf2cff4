"""Dimensions of a search space: a range of numbers, or several values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

from coterie.config.overrides import parse


@dataclass(frozen=True)
class Dimension(ABC):
    """A setting that is searched.

    Attributes:
        key: Its dotted key.
    """

    key: str

    @property
    @abstractmethod
    def text(self) -> str:
        """The range as on the command line, such as `log(1e-05,0.01)`."""

    @abstractmethod
    def suggest(self, trial: Any) -> str:
        """Returns the value that an Optuna trial suggests, as text of the command line."""

    @abstractmethod
    def fixed(self, value: Any) -> Any:
        """Returns Optuna's parameter for a value of the setting; None if it is outside of the range."""

    @abstractmethod
    def contains(self, text: str) -> bool:
        """True if `suggest` may return the text."""

    @abstractmethod
    def examples(self) -> tuple[str, ...]:
        """Returns the bounds, or all values, as text of the command line."""


@final
@dataclass(frozen=True)
class NumberRange(Dimension):
    """Numbers from `low` to `high`, both included.

    Attributes:
        low, high: Bounds, low < high.
        log: True to search uniformly on a logarithmic scale, for low > 0.
        integer: True for integers only.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    @property
    def text(self) -> str:
        kind = "log" if self.log else "int" if self.integer else "uniform"
        return f"{kind}({','.join(self.examples())})"

    def suggest(self, trial: Any) -> str:
        if self.integer:
            return str(trial.suggest_int(self.key, int(self.low), int(self.high), log=self.log))
        return repr(trial.suggest_float(self.key, self.low, self.high, log=self.log))

    def fixed(self, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and self.low <= value <= self.high else None

    def contains(self, text: str) -> bool:
        try:
            return self.low <= (int(text) if self.integer else float(text)) <= self.high
        except ValueError:
            return False

    def examples(self) -> tuple[str, ...]:
        return tuple(str(int(bound)) if self.integer else repr(float(bound)) for bound in (self.low, self.high))


@final
@dataclass(frozen=True)
class Choices(Dimension):
    """One of several values, which are texts of the command line."""

    values: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"choice({','.join(self.values)})"

    def suggest(self, trial: Any) -> str:
        return str(trial.suggest_categorical(self.key, list(self.values)))

    def fixed(self, value: Any) -> Any:
        plain = list(value) if isinstance(value, tuple) else value
        return next((text for text in self.values if parse(f"{self.key}={text}").values[0] == plain), None)

    def contains(self, text: str) -> bool:
        return text in self.values

    def examples(self) -> tuple[str, ...]:
        return self.values

"""Criterion that a metric stays above or below a threshold for long enough."""

from __future__ import annotations

import math
from typing import Any, final

from coterie.config.curriculum import AdvanceConfig


def smooth(mean: float, value: float, smoothing: float) -> float:
    """Returns smoothing * mean + (1 - smoothing) * value, or the value if there is no mean yet (NaN)."""
    return value if math.isnan(mean) else smoothing * mean + (1 - smoothing) * value


@final
class Criterion:
    """Compares the mean of a metric's values with a threshold."""

    def __init__(self, config: AdvanceConfig):
        self._config = config
        self._latest: list[float] = []  # at most `window`
        self._mean, self._streak = math.nan, 0

    @property
    def mean(self) -> float:
        """Mean that is compared with the threshold; NaN while there are too few values."""
        return self._mean

    @property
    def met(self) -> bool:
        """True if the mean has passed the threshold for `patience` consecutive values."""
        return self._streak >= self._config.patience

    def mean_with(self, value: float) -> float:
        """Returns the mean after `add(value)`, without adding it."""
        config = self._config
        if not math.isfinite(value):
            return self._mean
        if config.window == 1:
            return smooth(self._mean, value, config.smoothing)
        latest = self._window_with(value)
        return math.fsum(latest) / config.window if len(latest) == config.window else math.nan

    def _window_with(self, value: float) -> list[float]:
        return [*self._latest, value][-self._config.window :]

    def add(self, value: float) -> None:
        """Adds a value. A value that is not finite does not pass the threshold and is left out of the mean."""
        config = self._config
        if not math.isfinite(value):
            self._streak = 0
            return
        self._mean = self.mean_with(value)
        if config.window > 1:
            self._latest = self._window_with(value)
        above = config.above is not None and self._mean > config.above
        below = config.below is not None and self._mean < config.below
        self._streak = self._streak + 1 if above or below else 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the values that the mean depends on."""
        mean = None if math.isnan(self._mean) else self._mean
        return {"latest": list(self._latest), "mean": mean, "streak": self._streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self._latest, self._streak = list(state["latest"]), state["streak"]
        self._mean = math.nan if state["mean"] is None else state["mean"]

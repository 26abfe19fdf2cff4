"""Whether a metric has been past its threshold for long enough."""

from __future__ import annotations

import math
from typing import Any, final

from coterie.curriculum.config import AdvanceConfig


def smoothed(past: float, value: float, smoothing: float) -> float:
    """smoothing past + (1 - smoothing) value; the first value where there is no past (NaN)."""
    return value if math.isnan(past) else smoothing * past + (1 - smoothing) * value


@final
class Criterion:
    """Hears the values of a lesson's metric, one after the other."""

    def __init__(self, config: AdvanceConfig):
        self._config = config
        self._latest: list[float] = []  # at most `window`
        self._mean, self._streak = math.nan, 0

    @property
    def mean(self) -> float:
        """What is compared with the threshold; NaN while there are too few values."""
        return self._mean

    @property
    def met(self) -> bool:
        """Whether the mean has been past the threshold at `patience` values in a row."""
        return self._streak >= self._config.patience

    def hear(self, value: float) -> None:
        """A new value; one that is not finite counts as not past the threshold and is left out of the mean."""
        config = self._config
        if not math.isfinite(value):
            self._streak = 0
            return
        if config.window > 1:
            self._latest = [*self._latest, value][-config.window :]
            full = len(self._latest) == config.window
            self._mean = math.fsum(self._latest) / config.window if full else math.nan
        else:
            self._mean = smoothed(self._mean, value, config.smoothing)
        above = config.above is not None and self._mean > config.above
        below = config.below is not None and self._mean < config.below
        self._streak = self._streak + 1 if above or below else 0

    def state_dict(self) -> dict[str, Any]:
        mean = None if math.isnan(self._mean) else self._mean
        return {"latest": list(self._latest), "mean": mean, "streak": self._streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._latest, self._streak = list(state["latest"]), state["streak"]
        self._mean = math.nan if state["mean"] is None else state["mean"]

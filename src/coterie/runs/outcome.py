"""Outcome of a run: its last returns compared with the random policy, its start and its own best, with their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

LAST = 3
"""Number of points whose mean is the end of a short run. With fewer after the start, the end is the last one."""
_EDGE = 0.1
"""Fraction of the points that the end of a long run is a mean of."""
DIFFERS = 3.0
"""Difference of two means in standard errors from which on they differ: p = 0.003 of the normal distribution."""
FELL = 4.0
"""The same for the best mean of many, which is too high by one to two errors. Of simulated runs whose returns stay
constant over 20 to 100 evaluations of 32 episodes, 1 or 2 in 1,000 pass it.
"""
LOST = 0.5
"""Share of a run's gain since the start that it has to lose to have fallen."""


@dataclass(frozen=True)
class Level:
    """Mean return with its standard error, NaN if unknown, and the environment steps of its last measurement."""

    mean: float
    error: float = math.nan
    steps: int = 0

    def errors_above(self, other: Level) -> float:
        """Returns the difference to another level in standard errors; NaN if an error is unknown.

        It is infinite if both errors are 0 and the means differ.
        """
        scale = math.hypot(self.error, other.error)
        difference = self.mean - other.mean
        if math.isnan(scale) or scale > 0:
            return difference / scale
        return math.copysign(math.inf, difference) if difference else 0.0


@dataclass(frozen=True)
class Outcome:
    """End of a run compared with what it can be compared with.

    Attributes:
        start: First return, of the untrained policy or of what the run was started with.
        end: Mean of the last returns.
        best: Best mean of as many consecutive returns.
        reference: Return of the random policy, or `start` if that is unknown.
        is_random: True if the reference is the random policy.
        count: Number of returns in `end`; 0 if the run has none after its start.
    """

    start: Level
    end: Level
    best: Level
    reference: Level
    is_random: bool
    count: int

    @property
    def reference_name(self) -> str:
        """Name of the reference."""
        return "the random policy" if self.is_random else "the start"

    @property
    def is_below(self) -> bool:
        """True if the run ended below the reference by more than the errors explain."""
        return self.count > 0 and self.end.errors_above(self.reference) < -DIFFERS

    @property
    def is_above(self) -> bool:
        """True if the run ended above the reference by more than the errors explain."""
        return self.count > 0 and self.end.errors_above(self.reference) > DIFFERS

    @property
    def has_risen(self) -> bool:
        """True if the run ended above its start by more than the errors explain."""
        return self.count > 0 and self.end.errors_above(self.start) > DIFFERS

    @property
    def has_fallen(self) -> bool:
        """True if the run has lost more than half of what it had gained above the reference, or ended below its start.

        A run that was never above the reference cannot fall.
        """
        if self.count < LAST or not (self.best.errors_above(self.end) > FELL):
            return False
        gained, lost = self.best.mean - self.reference.mean, self.best.mean - self.end.mean
        is_below_start = self.end.errors_above(self.start) < -FELL
        return self.best.errors_above(self.reference) > DIFFERS and (lost > LOST * gained or is_below_start)

    @property
    def is_poor(self) -> bool:
        """True if the run ended below the reference, or after enough returns not above it, or has fallen."""
        is_known = self.count >= LAST and not math.isnan(self.end.errors_above(self.reference))
        return self.is_below or (is_known and (not self.is_above or self.has_fallen))

    @property
    def problem(self) -> str:
        """`below random`, `fell` or `nothing learned` if the run ended so, of which the first counts; otherwise ""."""
        if self.is_below and self.is_random:
            return "below random"
        if self.has_fallen:
            return "fell"
        return "nothing learned" if self.is_poor else ""

    def describe(self, number: Callable[[float], str]) -> str:
        """Returns the end relative to the reference, and to the best if the run has fallen, as a phrase.

        Args:
            number: Formats a return.
        """
        difference = self.end.mean - self.reference.mean
        if self.is_below or self.is_above or self.count == 0 or math.isnan(self.end.errors_above(self.reference)):
            position = f"{number(abs(difference))} {'above' if difference >= 0 else 'below'}"
        else:
            position = "within the errors of"
        return f"{position} {self.reference_name} ({number(self.reference.mean)}){self.describe_fall(number)}"

    def describe_fall(self, number: Callable[[float], str]) -> str:
        """Returns how far the run has fallen as the end of a phrase; "" if it has not.

        Args:
            number: Formats a return.
        """
        lost = number(self.best.mean - self.end.mean)
        return f", fell by {lost} since step {self.best.steps:,}" if self.has_fallen else ""


def outcome_of(points: Sequence[Level], random: Level | None = None) -> Outcome | None:
    """Returns the outcome of returns in the order of time; None without returns.

    Args:
        points: Returns in the order of time. Their first one is the start.
        random: Return of the random policy; None if unknown. Its error, if unknown, is that of the start.

    Returns whose errors are unknown, such as those of single episodes, get the standard deviation of the second half of
    the returns as their error.
    """
    if not points:
        return None
    second_half = [point.mean for point in points[len(points) // 2 :]]
    if any(math.isnan(point.error) for point in points) and len(second_half) >= LAST:
        scatter = statistics.stdev(second_half)
        points = [replace(point, error=scatter) if math.isnan(point.error) else point for point in points]
    start, later = points[0], list(points[1:])
    count = max(LAST, int(_EDGE * len(later)))
    end = best = points[-1]
    if len(later) < count:
        count = min(1, len(later))
    if count:
        means = [_mean(later[k : k + count]) for k in range(len(later) - count + 1)]
        end = means[-1]
        best = max([start, *means], key=lambda level: level.mean)
    if random is not None and math.isnan(random.error):
        random = replace(random, error=start.error)
    return Outcome(start, end, best, start if random is None else random, random is not None, count)


def _mean(points: Sequence[Level]) -> Level:
    n = len(points)
    error = math.sqrt(sum(point.error**2 for point in points)) / n
    return Level(sum(point.mean for point in points) / n, error, points[-1].steps)

"""Schedules: a number that changes with the progress of a run."""

from __future__ import annotations

from typing import Literal

Shape = Literal["constant", "linear", "exponential"]


def scheduled(shape: Shape, start: float, end: float, progress: float) -> float:
    """The value at `progress` in [0, 1] of the way from `start` to `end`.

    constant stays at start; linear goes straight; exponential goes straight in the logarithm (both ends above zero).
    """
    progress = min(max(progress, 0.0), 1.0)
    if shape == "constant":
        return start
    if shape == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress


def decayed(start: float, factor: float, end: float, times: int) -> float:
    """start multiplied `times` times by `factor`, in [0, 1], and no less than `end`."""
    return max(start * factor**times, end)

"""Options of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coterie.reports.comparison import Score


@dataclass(frozen=True)
class CompareOptions:
    """Options of a comparison.

    Attributes:
        score: Score of each run; None: `fresh` if all runs have a fresh evaluation of the final policies, else `final`.
        normalize: Method of `normalization.normalize`.
        threshold: Threshold of the time to a threshold; None: the worst mean score of the algorithms on the task, or
            the baseline's.
        thresholds: Thresholds of single tasks, which take precedence.
        baseline: Algorithm that the others are compared with; None: all pairs.
        paired: True to compare runs with equal seeds.
        resample: Levels of the bootstrap: `seeds`, or `episodes` for seeds and then episodes of fresh evaluations.
        mixed: True to accept evaluations with different numbers of episodes.
    """

    score: Score | None = None
    normalize: str = "auto"
    threshold: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    baseline: str | None = None
    paired: bool = False
    resample: Literal["seeds", "episodes"] = "seeds"
    mixed: bool = False

"""Options of a comparison, which Python and the command line share. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Score = Literal["final", "peak", "fresh", "absolute"]
"""Score of a run: the last evaluation of training, the best one, and fresh evaluations of the final and the best
policies.
"""

Scale = Literal["team", "agent"]
"""Convention of returns: the sum over the agents of a team, or the mean per agent."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of a comparison: arguments of `coterie.compare`, which describes them.

    Fields with a help text are also options of the commands `compare` and `report`.
    """

    metric: str | None = field(
        default=None,
        metadata={
            "help": "Metric, such as won or rollout/return_mean; with a minus sign, lower is better. Default: "
            "evaluation returns.",
            "metavar": "NAME",
        },
    )
    team: str | None = field(
        default=None, metadata={"help": "Only this team. Default: teams that learn.", "metavar": "NAME"}
    )
    score: Score | None = field(
        default=None,
        metadata={
            "help": "Score of a run: last or best evaluation of training, or fresh evaluation of the final or the best "
            "policies. Default: fresh if all runs have one, else final."
        },
    )
    normalize: str = field(
        default="auto",
        metadata={
            "help": "Values of the normalized scores 0 and 1. auto: reference (random policy, published score) if "
            "known for all tasks, else random (random policy, best mean).",
            "metavar": "random|reference|range|none|MIN,MAX",
        },
    )
    threshold: float | Mapping[str, float] | None = None
    baseline: str | None = field(
        default=None, metadata={"help": "Compare all others with it. Default: all pairs.", "metavar": "ALGO"}
    )
    paired: bool = field(default=False, metadata={"help": "Compare runs with equal seeds."})
    resample: Literal["seeds", "episodes"] = field(
        default="seeds",
        metadata={"help": "Levels of the bootstrap; episodes: seeds, then episodes of the fresh evaluation."},
    )
    unfinished: bool = field(default=False, metadata={"help": "Include runs that are not finished."})
    mixed: bool = field(default=False, metadata={"help": "Accept evaluations with different numbers of episodes."})
    file_returns: Scale | None = field(
        default=None, metadata={"help": "Convention of returns in JSON files: per team or per agent."}
    )

    @property
    def thresholds(self) -> Mapping[str, float]:
        """Thresholds by task; "" for those of all other tasks."""
        if self.threshold is None:
            return {}
        return self.threshold if isinstance(self.threshold, Mapping) else {"": self.threshold}

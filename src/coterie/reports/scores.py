"""Scores of runs, and their bootstrap samples, which all statistics of a group share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.errors import UserError
from coterie.reports import bootstrap
from coterie.reports.comparison import Score
from coterie.reports.records import Trial

SCORES: tuple[Score, ...] = ("final", "peak", "fresh", "absolute")

Key = tuple[str, str]
"""Task and algorithm."""

Groups = Mapping[Key, Sequence[Trial]]
"""Trials by task and algorithm."""


def scores_of(trials: Sequence[Trial], score: Score, *, lowest: bool = False) -> np.ndarray | None:
    """Returns the score of each trial, [n]; None if one of them has none.

    Args:
        trials: The trials.
        score: Kind of score.
        lowest: True if lower values are better, for the peak.
    """
    if score == "final":
        return np.array([trial.series.final for trial in trials])
    if score == "peak":
        return np.array([trial.series.peak(lowest=lowest) for trial in trials])
    values = [trial.fresh if score == "fresh" else trial.absolute for trial in trials]
    if any(x is None for x in values):
        return None
    return np.array([x.mean() for x in values if x is not None])


def choose_score(wanted: Score | None, trials: Sequence[Trial]) -> Score:
    """Returns the score to compare: the wanted one, or a fresh evaluation of the final policies if all runs have it.

    Raises:
        UserError: If a run lacks the fresh evaluation that the wanted score needs.
    """
    if wanted is None:
        return "fresh" if all(trial.fresh is not None for trial in trials) else "final"
    if wanted in ("fresh", "absolute"):
        missing = [t.run for t in trials if (t.fresh if wanted == "fresh" else t.absolute) is None]
        if missing:
            word = "final" if wanted == "fresh" else "best"
            raise UserError(
                f"--score {wanted}: {missing[0].name} has no fresh evaluation of its {word} policies. Add --evaluate"
                + (", or leave the file out." if missing[0].origin == "marl-eval" else ".")
            )
    return wanted


@dataclass(frozen=True)
class Samples:
    """Scores by task and algorithm, [n], and their bootstrap samples, [R, n]; None for a single run."""

    scores: dict[Key, np.ndarray]
    samples: dict[Key, np.ndarray | None]

    @classmethod
    def draw(cls, groups: Groups, score: Score, *, lowest: bool, by_episodes: bool) -> Samples:
        """Draws the samples.

        Args:
            groups: Trials by task and algorithm.
            score: Kind of score.
            lowest: True if lower values are better.
            by_episodes: True to draw episodes, too: the two-level bootstrap.

        Raises:
            UserError: If episodes are wanted of a score that has none.
        """
        scores: dict[Key, np.ndarray] = {}
        samples: dict[Key, np.ndarray | None] = {}
        for key, trials in groups.items():
            found = scores_of(trials, score, lowest=lowest)
            assert found is not None
            rng = bootstrap.random_numbers(*key, "scores")
            scores[key] = found
            episodes = [t.fresh if score == "fresh" else t.absolute for t in trials]
            if len(trials) < 2:
                samples[key] = None
            elif by_episodes:
                if score not in ("fresh", "absolute"):
                    raise UserError(
                        f"--resample episodes: the score {score} has no single episodes. Add --evaluate --score fresh."
                    )
                samples[key] = bootstrap.resample_episodes([[x for x in episodes if x is not None]], rng)[0]
            else:
                samples[key] = bootstrap.resample([found], rng)[0]
        return cls(scores, samples)

    def of(self, keys: Sequence[Key]) -> list[np.ndarray] | None:
        """Returns the samples of several groups; None if one has a single run."""
        found = [self.samples[key] for key in keys]
        return None if any(x is None for x in found) else [x for x in found if x is not None]

"""Normalized scores: a linear map per task, so that scores of several tasks can be averaged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.errors import UserError
from coterie.reports.comparison import Task
from coterie.reports.records import Trial

METHODS = ("auto", "random", "reference", "range", "none")

_PHRASES = {
    "random": "0: random policy, 1: best mean score of the algorithms compared",
    "reference": "0: random policy, 1: highest published score",
    "range": "0 and 1: lowest and highest score of all runs of the task",
    "none": "none",
}


@dataclass(frozen=True)
class Normalization:
    """Tasks with their anchors.

    Attributes:
        phrase: Definition of the normalized scores 0 and 1.
        tasks: Tasks by label.
        notes: Sentences for the user.
    """

    phrase: str
    tasks: dict[str, Task]
    notes: tuple[str, ...] = ()


def normalize(
    scores: Mapping[tuple[str, str], np.ndarray], trials: Sequence[Trial], method: str, *, lowest: bool, returns: bool
) -> Normalization:
    """Returns the tasks with the anchors of a method.

    Args:
        scores: Scores by task and algorithm, [n].
        trials: All trials.
        method: `random`, `reference`, `range`, `none`, two numbers `MIN,MAX`, or `auto`: the first of reference and
            random that all tasks allow, `0,1` for rates, else range.
        lowest: True if lower values are better.
        returns: True if the scores are returns, which random and published ones are known of.

    Raises:
        UserError: If the method is unknown, not possible for a task, or if its score 1 would be worse than 0.
    """
    numbers = _numbers(method)
    if numbers is None and method not in METHODS:
        raise UserError(
            f"--normalize {method}: unknown. Choose random, reference, range, none, or two numbers MIN,MAX."
        )
    known = {task: _known(task, trials, lowest=lowest) for task in dict.fromkeys(task for task, _ in scores)}
    if not returns:
        known = dict.fromkeys(known, (None, None))
    if numbers is not None:
        if (numbers[1] > numbers[0]) == lowest:
            direction = "lower" if lowest else "higher"
            raise UserError(
                f"--normalize {method}: the score 1 would be worse than 0, as {direction} is better. Swap the numbers."
            )
        anchors = dict.fromkeys(known, numbers)
        phrase = f"0: {numbers[0]:g}, 1: {numbers[1]:g}"
    elif method == "auto":
        return _auto(scores, known, lowest=lowest, returns=returns)
    else:
        found = {task: _anchors(method, task, scores, known[task], lowest=lowest) for task in known}
        missing = next((task for task, pair in found.items() if pair is None), None)
        if missing is not None:
            raise UserError(f"--normalize {method}: {_why(method, missing, known[missing])}. Use another method.")
        anchors, phrase = {task: pair for task, pair in found.items() if pair is not None}, _PHRASES[method]
    return Normalization(phrase, _tasks(anchors, known))


def _auto(
    scores: Mapping[tuple[str, str], np.ndarray],
    known: Mapping[str, tuple[float | None, float | None]],
    *,
    lowest: bool,
    returns: bool,
) -> Normalization:
    every = np.concatenate(list(scores.values()))
    if not returns and every.min() >= 0 and every.max() <= 1:
        zero, one = (1.0, 0.0) if lowest else (0.0, 1.0)
        return Normalization(f"0: {zero:g}, 1: {one:g}", _tasks(dict.fromkeys(known, (zero, one)), known))
    for method in ("reference", "random", "range", "none"):
        found = {task: _anchors(method, task, scores, known[task], lowest=lowest) for task in known}
        anchors = {task: pair for task, pair in found.items() if pair is not None}
        if len(anchors) == len(known):
            return Normalization(_PHRASES[method], _tasks(anchors, known))
    raise AssertionError("none is always possible")


def _tasks(
    anchors: Mapping[str, tuple[float, float]], known: Mapping[str, tuple[float | None, float | None]]
) -> dict[str, Task]:
    return {task: Task(task, *pair, *known[task]) for task, pair in anchors.items()}


def _numbers(method: str) -> tuple[float, float] | None:
    """Returns the numbers of `MIN,MAX`; None for anything else."""
    match = re.fullmatch(r"\s*(\S+)\s*,\s*(\S+)\s*", method)
    try:
        pair = None if match is None else (float(match[1]), float(match[2]))
    except ValueError:
        return None
    if pair is None or not all(map(math.isfinite, pair)):
        return None
    if pair[0] == pair[1]:
        raise UserError(f"--normalize {method}: both numbers are equal. Give the values of the scores 0 and 1.")
    return pair


def _known(task: str, trials: Sequence[Trial], *, lowest: bool) -> tuple[float | None, float | None]:
    """Returns the mean return of the random policy over runs, and the best published score; None if unknown."""
    own = [trial for trial in trials if trial.task == task]
    random = [x for trial in own if (x := trial.run.random(trial.team)) is not None and math.isfinite(x)]
    published = [x for trial in own if (x := trial.run.reference(trial.team)) is not None and math.isfinite(x)]
    best = (min if lowest else max)(published) if published else None
    return float(np.mean(random)) if random else None, best


def _anchors(
    method: str,
    task: str,
    scores: Mapping[tuple[str, str], np.ndarray],
    known: tuple[float | None, float | None],
    *,
    lowest: bool,
) -> tuple[float, float] | None:
    """Returns the values of the normalized scores 0 and 1; None if 1 would not be better than 0."""
    own = [x for (name, _), x in scores.items() if name == task]
    sign = -1.0 if lowest else 1.0
    random, published = known
    if method == "none":
        return (0.0, sign)
    if method == "range":
        every = sign * np.concatenate(own)
        pair = (sign * float(every.min()), sign * float(every.max()))
    else:
        best = sign * max(sign * float(x.mean()) for x in own)
        zero, one = random, published if method == "reference" else best
        if zero is None or one is None:
            return None
        pair = (zero, one)
    return pair if sign * (pair[1] - pair[0]) > 0 else None


def _why(method: str, task: str, known: tuple[float | None, float | None]) -> str:
    if method == "range":
        return f"all scores of {task} are equal"
    if known[0] is None:
        return f"the return of the random policy is unknown for {task}"
    if method == "reference" and known[1] is None:
        return f"there is no published score for {task}"
    return f"no score of {task} is better than the random policy"

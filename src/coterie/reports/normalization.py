"""Normalized scores: a linear map per task, so that scores of several tasks can be averaged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from coterie.core.errors import UserError
from coterie.reports.comparison import Task
from coterie.reports.records import Trial

_PHRASES = {
    "reference": "0: random policy, 1: highest published score",
    "random": "0: random policy, 1: best mean score of the algorithms compared",
    "range": "0 and 1: lowest and highest score of all runs of the task",
    "none": "none",
}
"""Definitions of the methods. `auto` is the first one that is possible for all tasks."""


def normalize(
    scores: Mapping[tuple[str, str], np.ndarray], trials: Sequence[Trial], method: str, *, lowest: bool, returns: bool
) -> tuple[str, dict[str, Task]]:
    """Normalizes scores.

    Args:
        scores: Scores by task and algorithm, [n].
        trials: All trials.
        method: `random`, `reference`, `range`, `none`, two numbers `MIN,MAX`, or `auto`: the first of reference and
            random that all tasks allow, `0,1` for rates, else range.
        lowest: True if lower values are better.
        returns: True if the scores are returns, which random and published ones are known of.

    Returns:
        Definition of the normalized scores 0 and 1, and the tasks by label, with their anchors.

    Raises:
        UserError: If the method is unknown, not possible for a task, or if its score 1 would be worse than 0.
    """
    tasks = dict.fromkeys(task for task, _ in scores)
    known = {task: _known(task, trials, lowest=lowest) if returns else (None, None) for task in tasks}
    numbers = _numbers(method, lowest=lowest)
    if numbers is None and method not in (*_PHRASES, "auto"):
        raise UserError(
            f"--normalize {method}: unknown. Choose random, reference, range, none, or two numbers MIN,MAX."
        )
    every = np.concatenate(list(scores.values()))
    if method == "auto" and not returns and every.min() >= 0 and every.max() <= 1:
        numbers = (1.0, 0.0) if lowest else (0.0, 1.0)
    if numbers is not None:
        phrase = f"0: {numbers[0]:g}, 1: {numbers[1]:g}"
        return phrase, {task: Task(task, *numbers, *known[task]) for task in tasks}
    anchors: dict[str, tuple[float, float]] = {}
    for name in _PHRASES if method == "auto" else (method,):
        found = {task: _anchors(name, task, scores, known[task], lowest=lowest) for task in tasks}
        anchors = {task: pair for task, pair in found.items() if pair is not None}
        if len(anchors) == len(tasks):
            return _PHRASES[name], {task: Task(task, *anchors[task], *known[task]) for task in tasks}
    missing = next(task for task in tasks if task not in anchors)
    raise UserError(f"--normalize {method}: {_why(method, missing, known[missing])}. Use another method.")


def _numbers(method: str, *, lowest: bool) -> tuple[float, float] | None:
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
    if (pair[1] > pair[0]) == lowest:
        direction = "lower" if lowest else "higher"
        raise UserError(
            f"--normalize {method}: the score 1 would be worse than 0, as {direction} is better. Swap the numbers."
        )
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
    if method == "none":
        zero, one = 0.0, sign
    elif method == "range":
        every = sign * np.concatenate(own)
        zero, one = sign * float(every.min()), sign * float(every.max())
    else:
        zero, one = known
        if method == "random":
            one = sign * max(sign * float(x.mean()) for x in own)
    return (zero, one) if zero is not None and one is not None and sign * (one - zero) > 0 else None


def _why(method: str, task: str, known: tuple[float | None, float | None]) -> str:
    if method == "range":
        return f"all scores of {task} are equal"
    if known[0] is None:
        return f"the return of the random policy is unknown for {task}"
    if method == "reference" and known[1] is None:
        return f"there is no published score for {task}"
    return f"no score of {task} is better than the random policy"

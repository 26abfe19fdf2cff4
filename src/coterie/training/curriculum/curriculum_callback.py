"""Callback that advances a run from lesson to lesson."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from coterie.config.messages import format_value
from coterie.core.metrics import Metric, declare
from coterie.core.ranks import ONE, Ranks
from coterie.envs.contract.vector import VectorEnv
from coterie.runs.progress import number
from coterie.training.callback import TrainerCallback
from coterie.training.curriculum.criterion import Criterion
from coterie.training.curriculum.lessons import Lessons
from coterie.training.episodes import FinishedEpisodes
from coterie.training.evaluation import Evaluator

MISSING_METRIC_PATIENCE = 50
"""Log entries after which a warning says that the metric of a lesson has not been logged yet."""

declare(
    Metric("lesson", "", "mean of an environment parameter in the current lesson", better=None, combine="mean"),
    Metric("lesson/index", "", "number of the current lesson, from 1", better="up", combine="max"),
    Metric("lesson/episodes", "episode", "episodes finished in the current lesson", better=None, combine="sum"),
    Metric(
        "lesson/measure", "", "value that the current lesson compares with its threshold", better=None, combine="mean"
    ),
)


@dataclass(frozen=True)
class LessonEnvs:
    """The environments that lessons are applied to; both have the first lesson already.

    Attributes:
        train: The environments that are collected from.
        eval: The evaluator's environments, without wrappers.
    """

    train: VectorEnv
    eval: VectorEnv


@final
class CurriculumCallback(TrainerCallback):
    """Waits for the metric of the current lesson, then starts the next lesson.

    Args:
        lessons: The lessons of the run.
        envs: Environments to which lessons are applied.
        evaluator: Its task number is set to the lesson that is evaluated.
        total_steps: Environment steps of the run.
        ranks: Ranks that train together, with equally many environments.
    """

    name = "curriculum"

    def __init__(self, lessons: Lessons, envs: LessonEnvs, evaluator: Evaluator, total_steps: int, ranks: Ranks = ONE):
        self._ranks = ranks
        self._lessons, self._envs, self._evaluator, self._total_steps = lessons, envs, evaluator, total_steps
        evaluator.task = lessons.eval_lesson(0)
        self._start(0)

    def _start(self, lesson: int) -> None:
        advance = self._lessons.lessons[lesson].advance
        self.lesson = lesson
        self._advance, self._criterion = advance, None if advance is None else Criterion(advance)
        self._episodes, self._entries_without_metric = 0, 0
        # An environment has switched once it has finished an episode: that one may have started in the last lesson.
        env = self._envs.train
        self._switched = torch.zeros(env.num_envs * self._ranks.size, dtype=torch.bool, device=env.device)
        self._all_switched = False

    @property
    def title(self) -> str:
        """The current lesson, e.g. `lesson 2 of 3: far`; "" without named lessons."""
        return self._lessons.title(self.lesson) if self._lessons.named else ""

    def on_training_start(self) -> Sequence[str]:
        return [self._announcement()] if self._lessons.named else []

    def on_update(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        self._episodes += len(finished)
        return []

    def on_rollout_end(self, steps: int, finished: FinishedEpisodes) -> Sequence[str]:
        if len(finished) and not self._all_switched:
            self._switched[finished.env_index] = True
            self._all_switched = bool(self._switched.all())
        if self._criterion is None or self._advance is None or not self._criterion.met:
            return []
        if self._episodes < self._advance.episodes:
            return []
        why = f"{self._advance.metric} {number(self._criterion.mean)} after {self._episodes:,} episodes"
        self._start(self.lesson + 1)
        self._apply()
        return [f"{self._announcement()}; {why}"]

    def _apply(self) -> None:
        lessons, eval_lesson = self._lessons, self._lessons.eval_lesson(self.lesson)
        lessons.apply(self._envs.train, self.lesson)
        lessons.apply(self._envs.eval, eval_lesson)
        self._evaluator.task = eval_lesson

    def _announcement(self) -> str:
        parameters = [
            f"{name} {format_value(one.model_dump())}" for name, one in self._lessons.samplers(self.lesson).items()
        ]
        return f"{self.title} ({', '.join(parameters)})" if parameters else self.title

    def on_metrics(self, steps: int, metrics: Mapping[str, float]) -> Sequence[str]:
        if self._criterion is None or self._advance is None or self._is_of_last_lesson(self._advance.metric):
            return []
        metric, value = self._advance.metric, self._value(steps, metrics)
        if value is not None:
            self._entries_without_metric = -1
            self._criterion.add(value)
            return []
        is_evaluation = "eval/episodes" in metrics
        if self._entries_without_metric < 0 or is_evaluation != metric.startswith("eval/"):
            return []  # the metric has been logged before, or belongs to the other kind of log entry
        self._entries_without_metric += 1
        if self._entries_without_metric < MISSING_METRIC_PATIENCE:
            return []
        self._entries_without_metric = -1
        lesson = self._lessons.lessons[self.lesson].name
        return [
            f"lesson '{lesson}' waits for the metric '{metric}', which is missing from all of the last "
            f"{MISSING_METRIC_PATIENCE} log entries"
        ]

    def _is_of_last_lesson(self, metric: str) -> bool:
        """Returns True if some of the metric's episodes may belong to the previous lesson."""
        return metric.startswith("rollout/") and not self._all_switched

    def _value(self, steps: int, metrics: Mapping[str, float]) -> float | None:
        """Returns the value that the lesson compares; None if the log entry does not have it."""
        assert self._advance is not None
        metric = self._advance.metric
        value = steps / self._total_steps if metric == "progress" else metrics.get(metric)
        return None if value is None else float(value)

    def metrics(self, steps: int, entry: Mapping[str, float]) -> dict[str, float]:
        means = ((name, sampler.mean()) for name, sampler in self._lessons.samplers(self.lesson).items())
        found = {f"lesson/{name}": mean for name, mean in means if mean is not None}
        if self._lessons.named:
            found |= {"lesson/index": self.lesson + 1, "lesson/episodes": self._episodes}
        measure = self._measure(steps, {**entry, **found})
        return found | {"lesson/measure": measure} if math.isfinite(measure) else found

    def _measure(self, steps: int, entry: Mapping[str, float]) -> float:
        """Returns the mean that the lesson compares once the log entry is written; NaN if there is none."""
        if self._criterion is None or self._advance is None:
            return math.nan
        value = None if self._is_of_last_lesson(self._advance.metric) else self._value(steps, entry)
        return self._criterion.mean if value is None else self._criterion.mean_with(value)

    def state_dict(self) -> dict[str, Any]:
        return {
            "lesson": self.lesson,
            "criterion": None if self._criterion is None else self._criterion.state_dict(),
            "episodes": self._episodes,
            "switched": self._switched,
            "entries_without_metric": self._entries_without_metric,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start(state["lesson"])
        if self._criterion is not None:
            self._criterion.load_state_dict(state["criterion"])
        self._episodes, self._entries_without_metric = state["episodes"], state["entries_without_metric"]
        self._switched = state["switched"].to(self._switched.device)
        self._all_switched = bool(self._switched.all())
        self._apply()

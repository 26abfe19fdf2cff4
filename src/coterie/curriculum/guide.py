"""Leads a run from lesson to lesson: hears the metric that the present one waits for, and begins the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from coterie.curriculum.course import Course
from coterie.curriculum.criterion import Criterion
from coterie.envs.vector import VectorEnv
from coterie.episodes import Finished
from coterie.evaluation import Evaluator
from coterie.guide import Guide
from coterie.messages import show
from coterie.metrics import Metric, declare
from coterie.progress import number

PATIENCE_ROWS = 50
"""Logged rows after which a lesson says that its metric has not come yet."""

declare(
    Metric("lesson", "", "mean of a parameter of the environment, as the present lesson draws it", None, "mean"),
    Metric("lesson/index", "", "number of the present lesson, from 1", "up", "max"),
    Metric("lesson/episodes", "episode", "episodes that ended in the present lesson", None, "sum"),
    Metric("lesson/measure", "", "what the present lesson compares with its threshold", None, "mean"),
)


@final
class Lessons(Guide):
    """The lessons of a course, taught in one environment and evaluated, as the course says, in another.

    env: the copies that are collected from; judged: those of the evaluator, maybe inside of another environment; both
    have the first lesson already; total: environment steps of the run.
    """

    name = "curriculum"

    def __init__(self, course: Course, env: VectorEnv, judged: VectorEnv, evaluator: Evaluator, total: int):
        self._course, self._env, self._judged, self._evaluator, self._total = course, env, judged, evaluator, total
        evaluator.task = course.evaluated(0)
        self._start(0)

    def _start(self, lesson: int) -> None:
        advance = self._course.lessons[lesson].advance
        self.lesson = lesson
        self._advance, self._criterion = advance, None if advance is None else Criterion(advance)
        self._episodes, self._unheard = 0, 0
        # A copy is there once it has ended an episode since: that one may have begun before, later ones did not.
        self._there = torch.zeros(self._env.copies, dtype=torch.bool, device=self._env.device)
        self._all_there = False

    @property
    def title(self) -> str:
        """Where the run is, `lesson 2 of 3: far`; "" without lessons."""
        return self._course.title(self.lesson) if self._course.named else ""

    def begin(self) -> Sequence[str]:
        return [self._told()] if self._course.named else []

    def after_window(self, steps: int, finished: Finished) -> Sequence[str]:
        if len(finished.copy):
            self._episodes += len(finished.copy)
            if not self._all_there:
                self._there[finished.copy] = True
                self._all_there = bool(self._there.all())
        if self._criterion is None or self._advance is None or not self._criterion.met:
            return []
        if self._episodes < self._advance.episodes:
            return []
        why = f"{self._advance.metric} {number(self._criterion.mean)} after {self._episodes:,} episodes"
        self._start(self.lesson + 1)
        self._teach()
        return [f"{self._told()}; {why}"]

    def _teach(self) -> None:
        course = self._course
        course.set(self._env, self.lesson)
        course.set(self._judged, course.evaluated(self.lesson))
        self._evaluator.task = course.evaluated(self.lesson)

    def _told(self) -> str:
        shown = [f"{name} {show(one.model_dump())}" for name, one in self._course.samplers(self.lesson).items()]
        return f"{self.title} ({', '.join(shown)})" if shown else self.title

    def hear(self, steps: int, row: Mapping[str, float]) -> Sequence[str]:
        if self._criterion is None or self._advance is None:
            return []
        metric = self._advance.metric
        if metric.startswith("rollout/") and not self._all_there:
            return []  # its episodes may be of the lesson before
        value = steps / self._total if metric == "progress" else row.get(metric)
        if value is not None:
            self._unheard = -1
            self._criterion.hear(float(value))
            return []
        evaluated = "eval/episodes" in row
        if self._unheard < 0 or evaluated != metric.startswith("eval/"):  # not one of its rows
            return []
        self._unheard += 1
        if self._unheard < PATIENCE_ROWS:
            return []
        self._unheard = -1
        lesson = self._course.lessons[self.lesson].name
        return [f"lesson '{lesson}' waits for the metric '{metric}', which none of {PATIENCE_ROWS} logged rows had"]

    def metrics(self) -> dict[str, float]:
        means = ((name, sampler.mean()) for name, sampler in self._course.samplers(self.lesson).items())
        found = {f"lesson/{name}": mean for name, mean in means if mean is not None}
        if self._course.named:
            found |= {"lesson/index": self.lesson + 1, "lesson/episodes": self._episodes}
        if self._criterion is not None and math.isfinite(self._criterion.mean):
            found["lesson/measure"] = self._criterion.mean
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "lesson": self.lesson,
            "criterion": None if self._criterion is None else self._criterion.state_dict(),
            "episodes": self._episodes,
            "there": self._there,
            "unheard": self._unheard,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start(state["lesson"])
        if self._criterion is not None:
            self._criterion.load_state_dict(state["criterion"])
        self._episodes, self._unheard = state["episodes"], state["unheard"]
        self._there = state["there"].to(self._there.device)
        self._all_there = bool(self._there.all())
        self._teach()

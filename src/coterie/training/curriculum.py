"""Lessons of a curriculum: which environment parameters apply when, and the callback that advances a run from lesson to
lesson.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from coterie.config.curriculum import AdvanceConfig, CurriculumConfig, LessonConfig
from coterie.config.messages import format_value
from coterie.config.samplers import Sampler
from coterie.core import metrics
from coterie.core.errors import UserError, nearest
from coterie.core.metrics import Metric, declare
from coterie.envs.contract.parameters import RandomizableEnv
from coterie.envs.contract.vector import VectorEnv
from coterie.ranks.ranks import ONE, Ranks
from coterie.runs.progress import number
from coterie.training.callback import TrainerCallback
from coterie.training.episodes import FinishedEpisodes
from coterie.training.evaluation import Evaluator

ALWAYS = ("progress", "steps")
"""Values that can be waited for besides logged metrics."""
_RETURNS = ("return_mean", "return_std", "return_error", "group_return_mean")


def check_metric(
    waiting: str,
    name: str,
    *,
    teams: Sequence[str],
    env_metrics: Collection[str],
    has_group_reward: bool,
    evaluates: bool,
) -> None:
    """Checks that a run logs a metric.

    Args:
        waiting: The setting that waits for the metric, e.g. "curriculum.lessons: lesson 'far'".
        name: Name of the metric.
        teams: Names of all teams of the run.
        env_metrics: The environment's own metrics.
        has_group_reward: True if the environment gives group rewards.
        evaluates: True if the run has evaluations.

    Raises:
        UserError: If the run never logs the metric.
    """

    def error(why: str) -> UserError:
        return UserError(f"{waiting} waits for the metric '{name}', which {why}")

    if name in ALWAYS:
        return
    area, *rest = name.split("/")
    if metrics.lookup(name) is None or not rest:
        raise error(f"is never logged. {nearest(name, _known(teams))}")
    if area == "eval" and not evaluates:
        raise error("is never logged without evaluations (eval.every=0). Set eval.every, or use another metric.")
    if area in {"rollout", "eval"} and rest[0] == "metric":
        own = "/".join(rest[1:])
        if own not in env_metrics:
            known = nearest(own, env_metrics) if env_metrics else "It reports none."
            raise error(f"the environment does not report. {known}")
        return
    if "group_return_mean" in rest and not has_group_reward:
        raise error("is never logged, because the environment gives no group rewards. Use return_mean.")
    several = len(teams) > 1
    if several and rest[0] in _RETURNS:
        choice = " or ".join(f"'{area}/{team}/{'/'.join(rest)}'" for team in teams)
        raise error(f"is logged per team. Use {choice}.")
    known_names = {metric.partition("/")[2] for metric in metrics.declared() if metric.startswith(f"{area}/")}
    if "/".join(rest) in known_names or "/".join(rest[:-1]) in known_names:
        return
    if not several:
        raise error(f"is never logged, because the run has one team. Use '{area}/{'/'.join(rest[1:])}'.")
    if rest[0] not in teams:
        raise error(f"does not belong to a team of the run. {nearest(rest[0], teams)}")


def _known(teams: Sequence[str]) -> list[str]:
    """Returns the names that a user may have meant, with those of the teams if there are several."""
    found = [name for name in metrics.declared() if "/" in name]
    if len(teams) > 1:
        split = [name.partition("/") for name in found]
        found += [f"{area}/{team}/{rest}" for area, _, rest in split for team in teams]
    return [*ALWAYS, *found]


def smooth(mean: float, value: float, smoothing: float) -> float:
    """Returns smoothing * mean + (1 - smoothing) * value, or the value if there is no mean yet (NaN)."""
    return value if math.isnan(mean) else smoothing * mean + (1 - smoothing) * value


@final
class Criterion:
    """Compares the mean of a metric's values with a threshold."""

    def __init__(self, config: AdvanceConfig):
        self._config = config
        self._latest: list[float] = []  # at most `window`
        self._mean, self._streak = math.nan, 0

    @property
    def mean(self) -> float:
        """Mean that is compared with the threshold; NaN while there are too few values."""
        return self._mean

    @property
    def met(self) -> bool:
        """True if the mean has passed the threshold for `patience` consecutive values."""
        return self._streak >= self._config.patience

    def mean_with(self, value: float) -> float:
        """Returns the mean after `add(value)`, without adding it."""
        config = self._config
        if not math.isfinite(value):
            return self._mean
        if config.window == 1:
            return smooth(self._mean, value, config.smoothing)
        latest = self._window_with(value)
        return math.fsum(latest) / config.window if len(latest) == config.window else math.nan

    def _window_with(self, value: float) -> list[float]:
        return [*self._latest, value][-self._config.window :]

    def add(self, value: float) -> None:
        """Adds a value. A value that is not finite does not pass the threshold and is left out of the mean."""
        config = self._config
        if not math.isfinite(value):
            self._streak = 0
            return
        self._mean = self.mean_with(value)
        if config.window > 1:
            self._latest = self._window_with(value)
        above = config.above is not None and self._mean > config.above
        below = config.below is not None and self._mean < config.below
        self._streak = self._streak + 1 if above or below else 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the values that the mean depends on."""
        mean = None if math.isnan(self._mean) else self._mean
        return {"latest": list(self._latest), "mean": mean, "streak": self._streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self._latest, self._streak = list(state["latest"]), state["streak"]
        self._mean = math.nan if state["mean"] is None else state["mean"]


def lesson_of_checkpoint(state: Mapping[str, Any]) -> int | None:
    """Returns the lesson of a checkpoint, counted from 0; None without a curriculum."""
    return state.get("callbacks", {}).get("curriculum", {}).get("lesson")


def lesson_of_log(config: CurriculumConfig, entries: Sequence[Mapping[str, Any]]) -> str:
    """Returns the last lesson in a log, e.g. `lesson 2 of 3: far`; "" without a curriculum or for another one's log."""
    if not config.lessons:
        return ""
    number = next((entry["lesson/index"] for entry in reversed(entries) if "lesson/index" in entry), 1)
    return _title(config.lessons, int(number)) if 1 <= number <= len(config.lessons) else ""


def _title(lessons: Sequence[LessonConfig], number: int) -> str:
    return f"lesson {number} of {len(lessons)}: {lessons[number - 1].name}"


@final
class Lessons:
    """The lessons of a run, counted from 0. Parameters without lessons are a single unnamed lesson.

    Args:
        config: The curriculum.
        base_parameters: Parameters that apply from the start. Those of lessons take precedence.
    """

    def __init__(self, config: CurriculumConfig, base_parameters: dict[str, Sampler]):
        self.lessons = config.lessons or (LessonConfig(name="all"),)
        self.named = bool(config.lessons)
        self._base_parameters, self._evaluates_last = base_parameters, config.evaluate == "last"

    @property
    def last(self) -> int:
        """Number of the last lesson."""
        return len(self.lessons) - 1

    def eval_lesson(self, lesson: int) -> int:
        """Returns the lesson that is evaluated during `lesson`."""
        return self.last if self._evaluates_last else lesson

    def samplers(self, lesson: int) -> dict[str, Sampler]:
        """Returns all parameters of a lesson: its own and those kept from earlier lessons."""
        found = dict(self._base_parameters)
        for one in self.lessons[: lesson + 1]:
            found |= one.parameters
        return found

    def apply(self, env: VectorEnv, lesson: int) -> None:
        """Makes the episodes of `env` that start from now on part of a lesson.

        Raises:
            UserError: For parameters that the environment does not have.
        """
        samplers = self.samplers(lesson)
        if isinstance(env, RandomizableEnv):
            env.set_samplers(samplers)
        elif samplers:
            raise UserError(
                f"{env.spec.name}: the batch of environments has no parameters that can be set. Remove "
                f"{', '.join(sorted(samplers))} (for your own batch, derive from "
                "coterie.envs.contract.parameters.RandomizableEnv)."
            )

    def check(self, env: VectorEnv) -> None:
        """Checks the parameters of all lessons.

        Raises:
            UserError: For a parameter that the environment does not have, or a value that it cannot take.
        """
        if isinstance(env, RandomizableEnv):
            for lesson in self.lessons:
                env.check_parameters(self._base_parameters | lesson.parameters)
        else:
            self.apply(env, self.last)

    def title(self, lesson: int) -> str:
        """Returns e.g. `lesson 2 of 3: far`."""
        return _title(self.lessons, lesson + 1)


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

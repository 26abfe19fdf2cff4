"""Lessons of a curriculum: which environment parameters apply when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from coterie.config.curriculum import CurriculumConfig, LessonConfig
from coterie.config.samplers import Sampler
from coterie.core.errors import UserError
from coterie.envs.contract.parameters import RandomizableEnv
from coterie.envs.contract.vector import VectorEnv


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

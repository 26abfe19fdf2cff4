"""Which parameters hold in which lesson of a run, and which environments can have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from coterie.curriculum.config import CurriculumConfig, LessonConfig
from coterie.envs.parameters import Varying
from coterie.envs.samplers import Sampler
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError


def lesson_of(state: Mapping[str, Any]) -> int | None:
    """The lesson, from 0, that the state of a checkpoint is of; None without lessons."""
    return state.get("guides", {}).get("curriculum", {}).get("lesson")


def reached(config: CurriculumConfig, rows: Sequence[Mapping[str, Any]]) -> str:
    """The lesson that a run came to by its log, `lesson 2 of 3: far`; "" without lessons."""
    if not config.lessons:
        return ""
    number = int(next((row["lesson/index"] for row in reversed(rows) if "lesson/index" in row), 1))
    return _titled(config.lessons, number)


def _titled(lessons: Sequence[LessonConfig], number: int) -> str:
    return f"lesson {number} of {len(lessons)}: {lessons[number - 1].name}"


@final
class Course:
    """The lessons of a run, counted from 0. Where there are parameters and no lessons, there is one without a name.

    everywhere: parameters that hold from the start, under those of lessons.
    """

    def __init__(self, config: CurriculumConfig, everywhere: dict[str, Sampler]):
        self.lessons = config.lessons or (LessonConfig(name="all"),)
        self.named = bool(config.lessons)
        self._everywhere, self._evaluates_last = everywhere, config.evaluate == "last"

    @property
    def last(self) -> int:
        return len(self.lessons) - 1

    @property
    def empty(self) -> bool:
        """Nothing is ever varied."""
        return not self.named and not self._everywhere

    def evaluated(self, lesson: int) -> int:
        """The lesson that is evaluated while `lesson` is taught."""
        return self.last if self._evaluates_last else lesson

    def samplers(self, lesson: int) -> dict[str, Sampler]:
        """All parameters of a lesson: its own, and those that it leaves as they were."""
        found = dict(self._everywhere)
        for one in self.lessons[: lesson + 1]:
            found |= one.parameters
        return found

    def set(self, env: VectorEnv, lesson: int) -> None:
        """Episodes of `env` that begin from now on are of this lesson. UserError for what it does not have."""
        samplers = self.samplers(lesson)
        if isinstance(env, Varying):
            env.vary(samplers)
        elif samplers:
            raise UserError(
                f"{env.spec.name} steps its copies as one batch, whose parameters no lesson can change: leave "
                f"{', '.join(sorted(samplers))} out (a batch of your own: derive from coterie.envs.parameters.Varying)"
            )

    def check(self, env: VectorEnv) -> None:
        """UserError for parameters of any lesson that the environment does not have or cannot be given."""
        if isinstance(env, Varying):
            for lesson in self.lessons:
                env.check_parameters(self._everywhere | lesson.parameters)
        else:
            self.set(env, self.last)

    def title(self, lesson: int) -> str:
        """`lesson 2 of 3: far`."""
        return _titled(self.lessons, lesson + 1)

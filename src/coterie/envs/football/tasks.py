"""The tasks of Google Research Football, as far as they have to be known before there is an engine.

The figures are those of the package's own scenarios; the engine's test holds them against it. `3_vs_3_custom` is one of
this project's, see `three_vs_three`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A scenario.

    left, right: players of a side that can be controlled; controlled: how many of each side are, by default; frames:
    steps after which the episode is cut; on_score, on_out, on_loss: whether a goal, the ball out of play, and the ball
    lost to the other side end the episode.
    """

    left: int
    right: int
    frames: int
    controlled: tuple[int, int]
    on_score: bool = True
    on_out: bool = True
    on_loss: bool = True


TASKS: dict[str, Task] = {
    "academy_empty_goal_close": Task(2, 1, 400, (1, 1)),
    "academy_empty_goal": Task(2, 1, 400, (1, 1)),
    "academy_run_to_score": Task(2, 6, 400, (1, 5)),
    "academy_run_to_score_with_keeper": Task(2, 6, 400, (1, 5)),
    "academy_single_goal_versus_lazy": Task(11, 11, 3000, (11, 11)),
    "academy_3_vs_1_with_keeper": Task(4, 2, 400, (3, 1)),
    "1_vs_1_easy": Task(1, 1, 500, (1, 1), False, False, False),
    "3_vs_3_custom": Task(3, 3, 500, (3, 3), False, False, False),
    "5_vs_5": Task(4, 4, 3000, (4, 4), False, False, False),
    "11_vs_11_stochastic": Task(11, 11, 3000, (11, 11), False, False, False),
    "test_example_multiagent": Task(4, 2, 100, (3, 1)),
}
"""By name. Sides of fewer than eleven leave the goal to the engine by default, if they have a keeper and others."""

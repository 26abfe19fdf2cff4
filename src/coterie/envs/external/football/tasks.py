"""Static properties of the Google Research Football tasks that are needed before the engine is loaded.

The values are those of the package's scenarios and are verified by the engine's test. `3_vs_3_custom` is Coterie's own,
see `three_vs_three`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A scenario.

    Attributes:
        left, right: Controllable players per side.
        controlled: Default number of controlled players per side.
        frames: Maximum number of steps before truncation.
        on_score, on_out, on_loss: A goal, the ball out of play, or losing the ball ends the episode.
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
    "1_vs_1_easy": Task(1, 1, 500, (1, 1), on_score=False, on_out=False, on_loss=False),
    "3_vs_3_custom": Task(3, 3, 500, (3, 3), on_score=False, on_out=False, on_loss=False),
    "5_vs_5": Task(4, 4, 3000, (4, 4), on_score=False, on_out=False, on_loss=False),
    "11_vs_11_stochastic": Task(11, 11, 3000, (11, 11), on_score=False, on_out=False, on_loss=False),
    "test_example_multiagent": Task(4, 2, 100, (3, 1)),
}
"""Tasks by name. On sides of fewer than eleven, the goalkeeper is played by the engine by default if there are other
players.
"""

"""Rewards other than goals: checkpoints on the way to the goal, and ball position."""

from __future__ import annotations

from collections.abc import Sequence

CHECKPOINTS = 10
CHECKPOINT = 0.1


class Checkpoints:
    """Checkpoints collected by each of n players of a side.

    A player with the ball collects a checkpoint worth 0.1 for each of ten distances to the center of the opponent's
    goal, from 0.99 to 0.19, when it gets closer for the first time; when its side scores, it collects the remaining
    ones. Source: Kurach et al. 2020, section 3.3; thresholds as in the package's CheckpointRewardWrapper.
    """

    def __init__(self, n: int):
        self.collected = [0] * n

    def reset(self) -> None:
        self.collected = [0] * len(self.collected)

    def step(
        self, *, scored: bool, owns: bool, owner: int, active: Sequence[int], ball: tuple[float, float]
    ) -> list[int]:
        """Returns the number of checkpoints that each player collects in a step.

        Args:
            scored: The side scored in this step.
            owns: The side has the ball.
            owner: Index of the player with the ball.
            active: Player controlled by each agent.
            ball: Ball position relative to the side.
        """
        distance = ((ball[0] - 1) ** 2 + ball[1] ** 2) ** 0.5  # rounding as in the package
        new = []
        for i, player in enumerate(active):
            had = reached = self.collected[i]
            if scored:
                reached = CHECKPOINTS
            elif owns and player == owner:
                while reached < CHECKPOINTS and distance <= 0.99 - 0.8 / (CHECKPOINTS - 1) * reached:
                    reached += 1
            self.collected[i] = reached
            new.append(reached - had)
        return new


def ball_value(x: float, y: float) -> float:
    """Value of the ball position (x, y) for the side that plays toward positive x, odd in x and between -1 and 1.

    max(x - |y|, x / 2) for x > 0, else min(x + |y|, x / 2)
    """
    return max(x - abs(y), x / 2) if x > 0 else min(x + abs(y), x / 2)
